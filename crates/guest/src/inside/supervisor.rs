//! The processes of one call: a supervisor, and under it the tool's program and all that it starts.
//!
//! The supervisor is a fork of the guest that adopts every orphan beneath it, so no daemon escapes
//! from the call that started it. It tells how the program ended, reaps until nothing is left, and
//! exits: once it is gone, so is the whole tree. Everything here runs after a fork in a program with
//! threads, so it allocates nothing, takes no lock and makes nothing but system calls.

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::os::fd::RawFd;

use libc::{c_char, c_int, c_void, cpu_set_t, pid_t};

use super::confine::{Confinement, Refused, Stage, control, last_errno};
use super::probe::{Attempts, look_around};
use super::processors;

/// Everything that the child needs, made before the fork.
pub(super) struct Plan<'a> {
    pub(super) program: Program<'a>,
    /// Become the child's descriptors 0, 1 and 2.
    pub(super) stdio: [RawFd; 3],
    pub(super) input: Input,
    /// Takes the reports.
    pub(super) reports: RawFd,
    pub(super) confinement: &'a Confinement,
}

/// Which program the child becomes.
pub(super) enum Program<'a> {
    Known(Named),
    /// One that is named later.
    Awaited(Awaited<'a>),
}

/// A program as the kernel takes it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Named {
    pub(super) program: *const c_char,
    /// Both end with a null pointer.
    pub(super) arguments: *const *const c_char,
    pub(super) environment: *const *const c_char,
    pub(super) folder: *const c_char,
}

/// Until the program is named, the child waits, confined as the program will be, in the supervisor's own memory.
pub(super) struct Awaited<'a> {
    /// In memory that the guest shares with both.
    pub(super) named: *const Named,
    /// Takes the child's process id, in the same memory.
    pub(super) child: *mut pid_t,
    /// Says that it is named. If this is closed instead, both end.
    pub(super) orders: RawFd,
    pub(super) who: Waiting,
    /// Before that, a child that is confined in the same way looks around, and tells here what it finds.
    pub(super) look: Option<(RawFd, &'a Attempts)>,
}

/// Who waits until the program is named.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// The child, which then has the least left to do.
    Child,
    /// The supervisor, where the kernel does not keep such a child from tools.
    Supervisor,
}

/// What standard input is to the program.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    Plain,
    /// The terminal that controls it: keys such as ctrl-c become signals.
    Terminal,
}

/// What the supervisor has to say, as it travels through the pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The program could not be started.
    Refused(Stage, i32),
    /// The program ended; the number is what `waitpid` said.
    Ended(i32),
}

pub(super) const REPORT_BYTES: usize = 8;

impl Report {
    fn encode(self) -> [u8; REPORT_BYTES] {
        let (kind, value) = match self {
            Self::Refused(stage, errno) => (stage as u8, errno),
            Self::Ended(status) => (0, status),
        };
        let [a, b, c, d] = value.to_le_bytes();
        [kind, 0, 0, 0, a, b, c, d]
    }

    pub(super) fn decode(bytes: [u8; REPORT_BYTES]) -> Option<Self> {
        let value = i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        match bytes[0] {
            0 => Some(Self::Ended(value)),
            code => Stage::from_code(code).map(|stage| Self::Refused(stage, value)),
        }
    }
}

/// Where the report pipe lies in the supervisor and, until it starts its program, in the child.
const REPORTS: RawFd = 3;
/// Where one whose child waits has the other two pipes.
const ORDERS: RawFd = 4;
const FINDINGS: RawFd = 5;

/// Forks the supervisor. Returns its process id, in the guest.
///
/// # Safety
/// The plan's pointers must be valid C strings and lists, and its descriptors open.
pub(super) unsafe fn start(plan: &Plan<'_>) -> Result<pid_t, i32> {
    // SAFETY: signals are blocked around the fork so that no handler of the guest, which would
    // write into the guest's own pipes, ever runs in the child.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let pid = fork();
        if pid == 0 {
            supervise(plan);
        }
        let errno = last_errno();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        if pid < 0 { Err(errno) } else { Ok(pid) }
    }
}

/// A bare fork: the C library's runs handlers and takes locks that other threads may hold.
///
/// # Safety
/// The child may only make system calls.
pub(super) unsafe fn fork() -> pid_t {
    const NOTHING: libc::c_ulong = 0;
    let flags = libc::SIGCHLD as libc::c_ulong;
    // SAFETY: without a new stack and without sharing, this is a plain fork on every architecture.
    unsafe { libc::syscall(libc::SYS_clone, flags, NOTHING, NOTHING, NOTHING, NOTHING) as pid_t }
}

unsafe fn supervise(plan: &Plan<'_>) -> ! {
    // SAFETY: this process is a fresh fork that belongs to this function alone.
    unsafe {
        // The guest's handlers must not run here; a default one lets children be waited for.
        forget_signal_handlers();
        control(libc::PR_SET_CHILD_SUBREAPER, 1, 0);
        control(libc::PR_SET_NAME, c"supervisor".as_ptr() as libc::c_ulong, 0);
        if let Err(errno) = arrange_descriptors(plan) {
            report_to(plan.reports, Report::Refused(Stage::Descriptors, errno));
            libc::_exit(1);
        }
        match &plan.program {
            Program::Known(_) => attend(spawn(begin, plan)),
            Program::Awaited(awaited) => supervise_ahead(plan, awaited),
        }
    }
}

/// With a child that waits, and before it one that looks around. Both begin on the processor that this process
/// leaves to them: elsewhere they would queue behind the guest, which is busy and waits for what is found.
unsafe fn supervise_ahead(plan: &Plan<'_>, awaited: &Awaited<'_>) -> ! {
    // SAFETY: this process is the supervisor's own, and since this never returns, everything lives until the
    // children are through.
    unsafe {
        let anywhere = processors::stay_here();
        if let Some((_, attempts)) = awaited.look {
            let child = spawn(look, &(plan, attempts));
            libc::close(FINDINGS);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        match awaited.who {
            Waiting::Child => {
                let what = Beside { plan, anywhere: &anywhere, supervisor: libc::getpid() };
                let child = spawn_beside(begin_beside, &what, awaited.child);
                processors::go_anywhere(&anywhere);
                attend(child)
            }
            Waiting::Supervisor => {
                let program = Program::Known(wait_for_name(awaited));
                processors::go_anywhere(&anywhere);
                attend(spawn(begin, &Plan { program, ..*plan }))
            }
        }
    }
}

unsafe fn attend(child: pid_t) -> ! {
    // SAFETY: nothing in this process uses these descriptors any more.
    unsafe {
        if child < 0 {
            report_to(REPORTS, Report::Refused(Stage::Fork, last_errno()));
            libc::_exit(1);
        }
        // Held here, the pipes would never seem closed to the guest, and orders would seem to be taken.
        close_all_between(0, 2);
        libc::close(ORDERS);
        reap_until_alone(child)
    }
}

/// What a child has to know that waits.
struct Beside<'a> {
    plan: &'a Plan<'a>,
    anywhere: &'a Option<cpu_set_t>,
    supervisor: pid_t,
}

extern "C" fn begin_beside(what: *mut c_void) -> c_int {
    // SAFETY: as below.
    unsafe {
        let Beside { plan, anywhere, supervisor } = &*what.cast_const().cast::<Beside<'_>>();
        // Where tools are the supervisor's own user, they can end it; a program that nobody supervises would have
        // no end in time. Where they are another, to become that user undoes this, and they cannot.
        control(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0);
        if libc::getppid() != *supervisor {
            libc::_exit(1);
        }
        processors::go_anywhere(anywhere);
        begin(std::ptr::from_ref(*plan).cast_mut().cast())
    }
}

extern "C" fn begin(what: *mut c_void) -> c_int {
    // SAFETY: this was given to `spawn` below, or to `spawn_beside` to be kept.
    unsafe {
        let (stage, errno) = become_program(&*what.cast_const().cast::<Plan<'_>>());
        report_to(REPORTS, Report::Refused(stage, errno));
        libc::_exit(127)
    }
}

/// What is looked for on the way to a shell's first command. In a new sandbox the kernel knows none of these names,
/// and to find out about them takes a while, as long as there is one.
const NAMES_OF_A_SHELL: [&CStr; 13] = [
    c"/usr/local/sbin/bash",
    c"/usr/local/bin/bash",
    c"/usr/sbin/bash",
    c"/usr/bin/bash",
    c"/lib64/ld-linux-x86-64.so.2",
    c"/etc/ld.so.preload",
    c"/etc/ld.so.cache",
    c"/lib/x86_64-linux-gnu/libtinfo.so.6",
    c"/lib/x86_64-linux-gnu/libc.so.6",
    c"/usr/lib/locale/locale-archive",
    c"/usr/lib/locale/C.UTF-8",
    c"/usr/lib/locale/C.utf8/LC_CTYPE",
    c"/dev/tty",
];

/// Exits if no program is wanted any more.
unsafe fn wait_for_name(awaited: &Awaited<'_>) -> Named {
    let mut word = 0u8;
    // SAFETY: the names are C strings, the descriptor is open, and the guest has written the name by the time that
    // it says so.
    unsafe {
        for name in NAMES_OF_A_SHELL {
            libc::access(name.as_ptr(), libc::F_OK);
        }
        if libc::read(ORDERS, (&raw mut word).cast(), 1) != 1 {
            libc::_exit(0);
        }
        // From now on the call's time is kept by the guest.
        control(libc::PR_SET_PDEATHSIG, 0, 0);
        forget_pending_signals();
        std::ptr::read_volatile(awaited.named)
    }
}

extern "C" fn look(what: *mut c_void) -> c_int {
    // SAFETY: as above.
    unsafe {
        let (plan, attempts) = &*what.cast_const().cast::<(&Plan<'_>, &Attempts)>();
        if plan.confinement.apply().is_ok() {
            look_around(FINDINGS, attempts);
        }
        libc::_exit(0)
    }
}

/// Where a child runs until it has a program. Only a supervisor uses it, in its own copy.
struct Stack(UnsafeCell<[u8; STACK]>);

const STACK: usize = 256 << 10;

// SAFETY: nothing looks at it but the one child that a supervisor has at a time.
unsafe impl Sync for Stack {}

static CHILD_STACK: Stack = Stack(UnsafeCell::new([0; STACK]));

type Act = extern "C" fn(*mut c_void) -> c_int;

/// Starts a child in this process's own memory, which costs much less than a copy of it, and returns when the
/// child has its program or is gone.
unsafe fn spawn<T>(act: Act, what: &T) -> pid_t {
    // SAFETY: this process stands still as long as both share memory.
    unsafe { spawn_with(libc::CLONE_VFORK, act, what, std::ptr::null_mut()) }
}

/// The same, and returns at once: who stands still for a child that waits would count as busy. `id` has the child's
/// process id as soon as there is one.
///
/// # Safety
/// What is given must be there until the child has its program, and until then both share `errno`: this process may
/// make no call whose error matters.
unsafe fn spawn_beside<T>(act: Act, what: &T, id: *mut pid_t) -> pid_t {
    // SAFETY: as promised.
    unsafe { spawn_with(libc::CLONE_PARENT_SETTID, act, what, id) }
}

unsafe fn spawn_with<T>(flag: c_int, act: Act, what: &T, id: *mut pid_t) -> pid_t {
    let flags = flag | libc::CLONE_VM | libc::SIGCHLD;
    let what = std::ptr::from_ref(what).cast_mut().cast();
    // SAFETY: the child has a stack of its own, which no other child uses at the same time.
    unsafe {
        let top = CHILD_STACK.0.get().cast::<u8>().add(STACK);
        libc::clone(act, top.map_addr(|address| address & !0xf).cast(), flags, what, id)
    }
}

unsafe fn reap_until_alone(child: pid_t) -> ! {
    // SAFETY: waits for children of this process only.
    unsafe {
        loop {
            let mut status: c_int = 0;
            let ended = libc::waitpid(-1, &mut status, 0);
            if ended == child {
                report_to(REPORTS, Report::Ended(status));
            }
            // No other error is possible but to be interrupted.
            if ended < 0 && last_errno() == libc::ECHILD {
                libc::_exit(0);
            }
        }
    }
}

/// Tools let the guest go first where both compete for the sandbox's share of CPU time, so that
/// hundreds of busy processes cannot keep it from ending them. Among themselves nothing changes.
const NICENESS: c_int = 19;

/// Returns only if the program cannot be started.
unsafe fn become_program(plan: &Plan<'_>) -> Refused {
    // SAFETY: the pointers are valid, and this process is one of its own that will exec or exit.
    unsafe {
        libc::setsid();
        if plan.input == Input::Terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
            return (Stage::Descriptors, last_errno());
        }
        if let Err(refused) = plan.confinement.apply() {
            return refused;
        }
        let named = match &plan.program {
            Program::Known(named) => *named,
            Program::Awaited(awaited) => wait_for_name(awaited),
        };
        // Being nicer is allowed to all, and going back to none without a privilege. Who waits does it no sooner, so
        // that it is woken at once.
        libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, NICENESS);
        if libc::chdir(named.folder) < 0 {
            return (Stage::Folder, last_errno());
        }
        unblock_signals();
        libc::execve(named.program, named.arguments, named.environment);
        (Stage::Program, last_errno())
    }
}

/// Puts the wanted descriptors at 0 and up, and closes all others, the guest's wire among them.
unsafe fn arrange_descriptors(plan: &Plan<'_>) -> Result<(), i32> {
    const OUT_OF_THE_WAY: c_int = 16;
    const NONE: RawFd = -1;
    let (orders, findings) = match &plan.program {
        Program::Known(_) => (NONE, NONE),
        Program::Awaited(Awaited { orders, look, .. }) => {
            (*orders, look.as_ref().map_or(NONE, |(findings, _)| *findings))
        }
    };
    let [stdin, stdout, stderr] = plan.stdio;
    let mut places = [stdin, stdout, stderr, plan.reports, orders, findings];
    // SAFETY: works on the descriptor table of this process, which shares it with nobody.
    unsafe {
        for place in places.iter_mut().filter(|place| **place != NONE) {
            *place = libc::fcntl(*place, libc::F_DUPFD_CLOEXEC, OUT_OF_THE_WAY);
            if *place < 0 {
                return Err(last_errno());
            }
        }
        for (target, copy) in (0..).zip(places) {
            // A successful exec closes all but the program's own three. That the reports end without a
            // word means success.
            let flags = if target < REPORTS { 0 } else { libc::O_CLOEXEC };
            if copy == NONE {
                libc::close(target);
            } else if libc::dup3(copy, target, flags) < 0 {
                return Err(last_errno());
            }
        }
        close_all_between(FINDINGS + 1, c_int::MAX);
    }
    Ok(())
}

/// # Safety
/// Nothing in this process may use these descriptors any more.
pub(super) unsafe fn close_all_between(first: RawFd, last: RawFd) {
    // SAFETY: takes numbers only.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, last, 0) < 0 {
            // Kernels before 5.9. A guest has far fewer descriptors than this.
            for descriptor in first..=last.min(65_536) {
                libc::close(descriptor);
            }
        }
    }
}

/// Bytes of the kernel's own signal set, which is smaller than the C library's.
const SIGNAL_SET: usize = 8;

unsafe fn forget_signal_handlers() {
    // SAFETY: the default action is there for each.
    unsafe { set_all_signals(libc::SIG_DFL as u64) };
}

/// Raw, because the C library keeps two signals to itself that may have come ignored from outside.
unsafe fn set_all_signals(handler: u64) {
    // The handler comes first on every architecture, and all that follows may be zero.
    let action = [handler, 0, 0, 0];
    let nowhere = std::ptr::null_mut::<u8>();
    for signal in 1..=64 {
        // SAFETY: the structure is valid. Signals that cannot be set stay as they are.
        unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, &action, nowhere, SIGNAL_SET);
        }
    }
}

/// What tools sent to a process that waited was not meant for the program that it becomes.
unsafe fn forget_pending_signals() {
    /// That it should go on was said to it by the guest, and has no other effect.
    const GO_ON: u64 = 1 << (libc::SIGCONT - 1);
    let mut pending = 0u64;
    // SAFETY: the set is valid and as long as said.
    unsafe {
        libc::syscall(libc::SYS_rt_sigpending, &raw mut pending, SIGNAL_SET);
        if pending & !GO_ON != 0 {
            // Whoever is ignored is forgotten.
            set_all_signals(libc::SIG_IGN as u64);
            set_all_signals(libc::SIG_DFL as u64);
        }
    }
}

unsafe fn unblock_signals() {
    let none = 0u64;
    let nowhere = std::ptr::null_mut::<u8>();
    // SAFETY: the set is valid and as long as said.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &none, nowhere, SIGNAL_SET);
    }
}

unsafe fn report_to(pipe: RawFd, report: Report) {
    let bytes = report.encode();
    // SAFETY: the buffer is valid; so short a write into a pipe is never split.
    unsafe { libc::write(pipe, bytes.as_ptr().cast(), bytes.len()) };
}
