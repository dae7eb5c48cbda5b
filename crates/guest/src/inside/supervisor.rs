//! The processes of one call: a supervisor, and under it the tool's program and all that it starts.
//!
//! The supervisor is a fork of the guest that adopts every orphan beneath it, so no daemon escapes
//! from the call that started it. It tells how the program ended, reaps until nothing is left, and
//! exits: once it is gone, so is the whole tree. Everything here runs after a fork in a program with
//! threads, so it allocates nothing, takes no lock and makes nothing but system calls.

use std::cell::UnsafeCell;
use std::os::fd::RawFd;

use libc::{c_char, c_int, c_void, pid_t};

use super::confine::{Confinement, Refused, Stage, control, last_errno};
use super::probe::{Attempts, look_around};

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

/// Until the program is named, there is only a supervisor, which waits.
pub(super) struct Awaited<'a> {
    /// In memory that the guest shares with the supervisor.
    pub(super) named: *const Named,
    /// Says that it is named. If this is closed instead, the supervisor ends.
    pub(super) orders: RawFd,
    /// Before that, a child that is confined as a program would be looks around, and tells here what it finds.
    pub(super) look: Option<(RawFd, &'a Attempts)>,
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
/// Where a supervisor that waits has the other two pipes.
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
        let named = match &plan.program {
            Program::Known(named) => *named,
            Program::Awaited(awaited) => wait_for_name(awaited, plan),
        };
        let child = spawn(begin, &(plan, named));
        if child < 0 {
            report_to(REPORTS, Report::Refused(Stage::Fork, last_errno()));
            libc::_exit(1);
        }
        // Held here, the pipes would never seem closed to the guest.
        close_all_between(0, 2);
        reap_until_alone(child)
    }
}

/// Exits if no program is wanted any more.
unsafe fn wait_for_name(awaited: &Awaited<'_>, plan: &Plan<'_>) -> Named {
    // SAFETY: the descriptors are open, and the guest has written the name by the time that it says so.
    unsafe {
        if let Some((_, attempts)) = awaited.look {
            let child = spawn(look, &(plan, attempts));
            libc::close(FINDINGS);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        let mut word = 0u8;
        if libc::read(ORDERS, (&raw mut word).cast(), 1) != 1 {
            libc::_exit(0);
        }
        libc::close(ORDERS);
        std::ptr::read_volatile(awaited.named)
    }
}

extern "C" fn begin(what: *mut c_void) -> c_int {
    // SAFETY: this was given to `spawn` below, which does not return before this is over.
    unsafe {
        let (plan, named) = &*what.cast_const().cast::<(&Plan<'_>, Named)>();
        let (stage, errno) = become_program(plan, named);
        report_to(REPORTS, Report::Refused(stage, errno));
        libc::_exit(127)
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

/// Starts a child in this process's own memory, which costs much less than a copy of it, and returns when the
/// child has its program or is gone.
unsafe fn spawn<T>(act: extern "C" fn(*mut c_void) -> c_int, what: &T) -> pid_t {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let what = std::ptr::from_ref(what).cast_mut().cast();
    // SAFETY: the child has a stack of its own, and this process stands still as long as both share memory.
    unsafe {
        let top = CHILD_STACK.0.get().cast::<u8>().add(STACK);
        libc::clone(act, top.map_addr(|address| address & !0xf).cast(), flags, what)
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
            if ended < 0 && last_errno() != libc::EINTR {
                libc::_exit(0);
            }
        }
    }
}

/// Tools let the guest go first where both compete for the sandbox's share of CPU time, so that
/// hundreds of busy processes cannot keep it from ending them. Among themselves nothing changes.
const NICENESS: c_int = 19;

/// Returns only if the program cannot be started.
unsafe fn become_program(plan: &Plan<'_>, named: &Named) -> Refused {
    // SAFETY: the pointers are valid, and this process is one of its own that will exec or exit.
    unsafe {
        libc::setsid();
        if plan.input == Input::Terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
            return (Stage::Descriptors, last_errno());
        }
        // Being nicer is allowed to all, and going back to none without a privilege.
        libc::syscall(libc::SYS_setpriority, libc::PRIO_PROCESS, 0, NICENESS);
        if let Err(refused) = plan.confinement.apply() {
            return refused;
        }
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

/// Raw, because the C library keeps two signals to itself that may have come ignored from outside.
unsafe fn forget_signal_handlers() {
    // All zero is the default action on every architecture, and large enough on each.
    let default = [0u64; 4];
    let nowhere = std::ptr::null_mut::<u8>();
    for signal in 1..=64 {
        // SAFETY: the structure is valid. Signals that cannot be set stay as they are.
        unsafe {
            libc::syscall(libc::SYS_rt_sigaction, signal, &default, nowhere, SIGNAL_SET);
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
