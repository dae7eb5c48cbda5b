//! What a tool process gives up before its program starts: ids, capabilities, limits, system calls.
//!
//! [`Confinement::prepare`] does everything that allocates; [`Confinement::apply`] runs between fork
//! and exec and makes nothing but system calls.

use std::io;

use bellglass_protocol::cage::most_data_of_one;
use bellglass_protocol::launch::GuestConfig;

use super::bpf::Program;
use super::{kernel_gaps, processors, seccomp};
use crate::core_dumps;
use crate::launch::privileges;

/// Tool processes are the first to go when memory runs out; the guest must outlive them.
const OOM_SCORE: &[u8] = b"500";

pub(super) struct Confinement {
    /// The ids to change to, unless the guest has them already.
    ids: Option<(u32, u32)>,
    limits: Vec<(Resource, u64)>,
    /// The processors to stay on, where nothing better limits CPU time.
    processors: Option<libc::cpu_set_t>,
    /// The capabilities of the bounding set, where the guest may drop them.
    bounding_set: Vec<libc::c_ulong>,
    /// Unless the guest has it upon itself already, so that whatever it starts inherits it.
    filter: Option<Program>,
}

/// The C library's name for the first argument of `setrlimit` differs from library to library.
#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

/// What could not be given up. Then the program is not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Stage {
    Descriptors = 1,
    Fork,
    Limits,
    Capabilities,
    Ids,
    NoNewPrivileges,
    SystemCalls,
    Folder,
    Program,
}

impl Stage {
    pub(super) fn from_code(code: u8) -> Option<Self> {
        use Stage::*;
        [
            Descriptors,
            Fork,
            Limits,
            Capabilities,
            Ids,
            NoNewPrivileges,
            SystemCalls,
            Folder,
            Program,
        ]
        .into_iter()
        .find(|stage| *stage as u8 == code)
    }
}

/// A stage that failed, with the kernel's error number.
pub(super) type Refused = (Stage, i32);

impl Confinement {
    pub(super) fn prepare(config: &GuestConfig) -> io::Result<Self> {
        // The real id: on a kernel without separate ids for files the effective one is the tools'.
        let own = rustix::process::getuid().as_raw();
        let ids = (config.tool_uid != own).then_some((config.tool_uid, config.tool_gid));
        let mut limits = vec![
            // What the kernel holds for a process beside its memory: pages that cannot be given
            // back, queues of messages, signals on their way.
            (libc::RLIMIT_MEMLOCK, 8 << 20),
            (libc::RLIMIT_MSGQUEUE, 800 << 10),
            (libc::RLIMIT_SIGPENDING, 4096),
            // Going before everybody else on the machine is not for tools.
            (libc::RLIMIT_RTPRIO, 0),
            (libc::RLIMIT_NICE, 0),
        ];
        // gVisor's kernel has no such things, so there is nothing to limit.
        limits.retain(|(resource, _)| can_be_limited(*resource));
        limits.push((libc::RLIMIT_NOFILE, u64::from(config.open_files)));
        limits.push((libc::RLIMIT_CORE, core_dumps::LIMIT));
        limits.extend(config.processes.map(|count| (libc::RLIMIT_NPROC, u64::from(count))));
        let data = config.memory.map(|room| (libc::RLIMIT_DATA, most_data_of_one(room.0)));
        limits.extend(data);
        // A hard limit cannot be raised; a lower one that is there already is as good.
        for (resource, limit) in &mut limits {
            *limit = (*limit).min(hard_limit(*resource)?);
        }
        Ok(Self {
            ids,
            limits,
            processors: config.processors.and_then(processors::choose),
            bounding_set: if may_drop_capabilities() { bounding_set() } else { Vec::new() },
            filter: Some(seccomp::filter(config, &kernel_gaps::calls())),
        })
    }

    /// Takes the tools' filter upon the guest itself: upon this thread and all it starts. It needs
    /// none of the calls, and a tool process then has nothing to load, which costs more than its fork.
    ///
    /// Where tools must do without calls that the guest makes, each loads its own.
    pub(super) fn take_filter_upon_guest(&mut self, config: &GuestConfig) -> io::Result<()> {
        if seccomp::spares_the_guest(config)
            && let Some(filter) = self.filter.take()
        {
            // Behind the filter this limit can no longer be changed, for a tool process either.
            core_dumps::forbid();
            // SAFETY: takes numbers only.
            let promised = check(unsafe { control(libc::PR_SET_NO_NEW_PRIVS, 1, 0) });
            promised
                // SAFETY: whatever this thread does later is among what the filter allows.
                .and_then(|()| unsafe { load_filter(&filter) })
                .map_err(io::Error::from_raw_os_error)?;
        }
        Ok(())
    }

    /// Confines the calling process for good.
    ///
    /// # Safety
    /// Only for a process that was forked and will exec or exit: it changes process-wide state.
    pub(super) unsafe fn apply(&self) -> Result<(), Refused> {
        // SAFETY: plain system calls on valid arguments; this process is ours to change.
        unsafe {
            prefer_as_victim_of_low_memory();
            libc::umask(0o022);
            if let Some(set) = &self.processors {
                check(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set))
                    .map_err(|errno| (Stage::Limits, errno))?;
            }
            for (resource, limit) in &self.limits {
                limit_to(*resource, *limit).map_err(|errno| (Stage::Limits, errno))?;
            }
            self.drop_bounding_set().map_err(|errno| (Stage::Capabilities, errno))?;
            // A host may be set up so that a change of ids makes this process traceable, and with it the
            // supervisor, whose memory it has. Nobody who has no capabilities may trace one who has some.
            control(libc::PR_SET_KEEPCAPS, 1, 0);
            self.change_ids().map_err(|errno| (Stage::Ids, errno))?;
            check(control(libc::PR_SET_DUMPABLE, 0, 0))
                .map_err(|errno| (Stage::Capabilities, errno))?;
            drop_capabilities().map_err(|errno| (Stage::Capabilities, errno))?;
            control(libc::PR_SET_KEEPCAPS, 0, 0);
            check(control(libc::PR_SET_NO_NEW_PRIVS, 1, 0))
                .map_err(|errno| (Stage::NoNewPrivileges, errno))?;
            if let Some(filter) = &self.filter {
                load_filter(filter).map_err(|errno| (Stage::SystemCalls, errno))?;
            }
        }
        Ok(())
    }

    unsafe fn drop_bounding_set(&self) -> Result<(), i32> {
        for capability in &self.bounding_set {
            // SAFETY: takes numbers only.
            check(unsafe { control(libc::PR_CAPBSET_DROP, *capability, 0) })?;
        }
        Ok(())
    }

    /// Raw system calls: the C library's wrappers would signal threads that a fork left behind.
    unsafe fn change_ids(&self) -> Result<(), i32> {
        let no_groups = std::ptr::null::<libc::gid_t>();
        // SAFETY: a list of no groups is never read.
        let groups = unsafe { libc::syscall(libc::SYS_setgroups, 0usize, no_groups) };
        let Some((uid, gid)) = self.ids else {
            // With a single mapped id the kernel forbids it. The report says which groups stay.
            return Ok(());
        };
        check_long(groups)?;
        // SAFETY: take numbers only.
        unsafe {
            check_long(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
            check_long(libc::syscall(libc::SYS_setresuid, uid, uid, uid))
        }
    }
}

/// Makes this thread, and all it starts, create and open files as that user would.
pub(super) fn work_on_files_as(uid: u32, gid: u32) -> io::Result<()> {
    if rustix::process::geteuid().as_raw() == uid {
        return Ok(());
    }
    // SAFETY: take numbers only. The calls give back the old id, so a second one tells the new.
    let (now_gid, now_uid) = unsafe {
        libc::syscall(libc::SYS_setfsgid, gid);
        libc::syscall(libc::SYS_setfsuid, uid);
        (libc::syscall(libc::SYS_setfsgid, -1), libc::syscall(libc::SYS_setfsuid, -1))
    };
    if now_gid == i64::from(gid) as libc::c_long && now_uid == i64::from(uid) as libc::c_long {
        return Ok(());
    }
    take_effective_ids(uid, gid).map_err(|errno| {
        let error = io::Error::from_raw_os_error(errno);
        io::Error::other(format!("cannot work on files as user {uid} and group {gid}: {error}"))
    })
}

/// The same for kernels without ids of their own for files, such as gVisor's. The real and the saved
/// ids stay: by these the kernel decides who may signal or trace the guest.
fn take_effective_ids(uid: u32, gid: u32) -> Result<(), i32> {
    const AS_IT_IS: libc::c_long = -1;
    // SAFETY: take numbers only; the sets that are read and written are what version 3 has.
    unsafe {
        check_long(libc::syscall(libc::SYS_setresgid, AS_IT_IS, gid, AS_IT_IS))?;
        check_long(libc::syscall(libc::SYS_setresuid, AS_IT_IS, uid, AS_IT_IS))?;
        // That took the effective capabilities, though not the permitted ones.
        let header = CapabilityHeader { version: CAPABILITY_VERSION_3, pid: 0 };
        let mut sets = [0u32; 6];
        check_long(libc::syscall(libc::SYS_capget, &header, sets.as_mut_ptr()))?;
        let [_, low_permitted, _, _, high_permitted, _] = sets;
        (sets[0], sets[3]) = (low_permitted, high_permitted);
        check_long(libc::syscall(libc::SYS_capset, &header, sets.as_ptr()))
    }
}

/// Makes things that belong to the guest and not to the tools' user. It matters where both are told
/// apart by the real id only, since who owns a pipe may open it through /proc.
pub(super) fn as_the_guest<T>(make: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let own = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let files = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if own == files {
        return make();
    }
    take_effective_ids(own.0, own.1).map_err(io::Error::from_raw_os_error)?;
    let made = make();
    take_effective_ids(files.0, files.1).map_err(io::Error::from_raw_os_error)?;
    made
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// Whether this process has CAP_SETPCAP. Without it there is nothing that a tool could regain:
/// its own sets are emptied, and no program file can fill them under `no_new_privs`.
fn may_drop_capabilities() -> bool {
    const CAP_SETPCAP: u32 = 8;
    privileges::has(CAP_SETPCAP)
}

/// What the guest itself has left of it: to drop a capability costs much more than to look whether it is there.
fn bounding_set() -> Vec<libc::c_ulong> {
    // SAFETY: takes numbers only.
    let held = |capability| unsafe { control(libc::PR_CAPBSET_READ, capability, 0) };
    let known = (0..64).map(|capability| (capability, held(capability)));
    known.take_while(|(_, held)| *held >= 0).filter(|(_, held)| *held > 0).map(|it| it.0).collect()
}

unsafe fn prefer_as_victim_of_low_memory() {
    // SAFETY: valid C strings and buffers. The file belongs to the effective user, but only while
    // the process can be traced, as the guest, whose copy this is, cannot; so this one can for a moment,
    // by no other user. Its memory is its supervisor's too, so that must not last. A failure only means that
    // the kernel chooses as it likes.
    unsafe {
        libc::syscall(libc::SYS_setfsuid, libc::geteuid());
        // After the change of id, which makes a process untraceable again.
        control(libc::PR_SET_DUMPABLE, 1, 0);
        let file = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY);
        if file >= 0 {
            libc::write(file, OOM_SCORE.as_ptr().cast(), OOM_SCORE.len());
            libc::close(file);
        }
        control(libc::PR_SET_DUMPABLE, 0, 0);
    }
}

fn hard_limit(resource: Resource) -> io::Result<u64> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call gets a valid structure.
    match unsafe { libc::getrlimit(resource, &mut now) } {
        0 => Ok(now.rlim_max),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the kernel takes limits on this at all: it must not refuse the one that is in force.
fn can_be_limited(resource: Resource) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a valid structure.
    unsafe { libc::getrlimit(resource, &mut limit) == 0 && libc::setrlimit(resource, &limit) == 0 }
}

unsafe fn limit_to(resource: Resource, limit: u64) -> Result<(), i32> {
    let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
    // SAFETY: the call gets a valid structure.
    check(unsafe { libc::setrlimit(resource, &limit) })
}

unsafe fn drop_capabilities() -> Result<(), i32> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    let nothing = [0u32; 6];
    // SAFETY: the header and two sets of three masks are what version 3 reads. Clearing the ambient
    // set takes numbers only, and old kernels that have none refuse it.
    unsafe {
        control(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0);
        check_long(libc::syscall(libc::SYS_capset, &header, nothing.as_ptr()))
    }
}

unsafe fn load_filter(filter: &Program) -> Result<(), i32> {
    // SAFETY: the program is valid and outlives the call, which only reads it.
    unsafe {
        let program = libc::sock_fprog {
            len: filter.len() as libc::c_ushort,
            filter: filter.as_ptr().cast_mut(),
        };
        let program = std::ptr::from_ref(&program) as libc::c_ulong;
        check(control(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER.into(), program))
    }
}

/// `prctl` with every argument as wide as the kernel reads it.
///
/// # Safety
/// The arguments must be what the operation expects.
pub(super) unsafe fn control(
    operation: libc::c_int,
    first: libc::c_ulong,
    second: libc::c_ulong,
) -> libc::c_int {
    const NOTHING: libc::c_ulong = 0;
    // SAFETY: up to the caller.
    unsafe { libc::prctl(operation, first, second, NOTHING, NOTHING) }
}

fn check(result: libc::c_int) -> Result<(), i32> {
    check_long(result.into())
}

fn check_long(result: libc::c_long) -> Result<(), i32> {
    if result >= 0 { Ok(()) } else { Err(last_errno()) }
}

pub(super) fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
