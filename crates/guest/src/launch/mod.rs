//! Builds the cage around a new process and turns that process into the guest.
//!
//! Runs as a fresh, single-threaded process for each sandbox, which may have waited for it. It reads a
//! [`LaunchOrder`] from standard input, makes the process, says so on standard output ([`LaunchWord`]), and
//! ends; the new process builds its own cage, says there how that went, and lives on as a child of whoever
//! started the launcher. Holds no secrets: the guest goes on in a copy of this process's memory.

mod cage;
mod devices;
mod disk;
mod gvisor_room;
mod held;
mod id_maps;
mod mounts;
pub(crate) mod privileges;
pub(crate) mod syscalls;
mod title;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::exit;
use std::{fs, io};

use bellglass_protocol::cage::{NAMESPACES, namespace_number};
use bellglass_protocol::launch::{
    IdMapping, Kernel, LEAST_LANDLOCK, LaunchFailure, LaunchOrder, LaunchWord, Launched, Storage,
};

use rustix::event::{PollFd, PollFlags, poll};

use crate::core_dumps;
use syscalls::Stage as _;

/// What went wrong while the cage was built, and at which point.
#[derive(Debug, thiserror::Error)]
#[error("{stage}: {error}")]
pub(crate) struct Failed {
    stage: String,
    error: io::Error,
    /// The new process, if there was one already.
    child: Option<i32>,
}

impl Failed {
    fn say(self, to: &OwnedFd) {
        let Self { stage, error, child } = self;
        let failure = LaunchFailure { stage, error: error.to_string(), pid: child };
        say(to, &LaunchWord::Failed(failure));
    }
}

pub(crate) fn main() {
    // Both processes say how it went for them, and the standard streams are the guest's no more.
    let Ok(report) = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3) else { exit(1) };
    let order = match read_order() {
        Ok(Some(order)) => order,
        // Whoever started this process wants nothing of it any more.
        Ok(None) => exit(0),
        Err(failed) => {
            failed.say(&report);
            exit(1)
        }
    };
    match launch(&order, &report) {
        Ok(launched) => say(&report, &LaunchWord::Launched(launched)),
        Err(failed) => {
            failed.say(&report);
            exit(1)
        }
    }
}

/// Whoever does not listen any more has given up, and ends what there is.
fn say(report: &OwnedFd, word: &LaunchWord) {
    let _ = rustix::io::write(report.as_fd(), word.line().as_bytes());
}

fn nobody_hears(report: &OwnedFd) -> bool {
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut watched = [PollFd::new(report, PollFlags::empty())];
    poll(&mut watched, Some(&now)).is_ok() && watched[0].revents().contains(PollFlags::ERR)
}

fn read_order() -> Result<Option<LaunchOrder>, Failed> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text).stage("read the launch order")?;
    if text.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(&text).map_err(io::Error::other).stage("understand the launch order")
}

/// Makes the process, gives it its identity, and lets it build its cage.
fn launch(order: &LaunchOrder, report: &OwnedFd) -> Result<Launched, Failed> {
    title::carry(&order.name).stage("take the sandbox's name")?;
    if nobody_hears(report) {
        // Whoever looked for this sandbox after its maker's end did not know it by its name yet.
        exit(1);
    }
    // Root of the host may also raise a lower limit; inside nobody may.
    core_dumps::forbid();
    let wire = listen(&order.wire)?;
    // Before the control groups are joined: what it costs to make a disk is not the job's.
    let scratch = match &order.storage {
        Storage::Memory => None,
        Storage::File { folder } => Some(disk::make(Path::new(folder), order.disk, order.ids)?),
    };
    for file in &order.cgroup_joins {
        // Joining as oneself before the new process exists is several times cheaper than having it
        // moved, and the control-group namespace then begins at the sandbox's own group.
        fs::write(file, "0").stage("join a control group")?;
    }
    let image = mounts::ImageSource::prepare(order)?;
    let (go_reader, go_writer) = rustix::pipe::pipe().stage("make a pipe")?;
    let its_report = report.try_clone().stage("copy a descriptor")?;

    let Some(child) = syscalls::clone_into_new_namespaces().stage("make namespaces")? else {
        drop(go_writer);
        wait_for_go(go_reader);
        inhabit(order, image, scratch, wire, its_report)
    };
    drop((go_reader, its_report));
    // Now, since a process that cannot be traced does not show them to everybody.
    let namespaces = namespaces_of(child);
    let set_up =
        id_maps::write(order.ids, child).and_then(|()| image.map_ids(order.ids, child)).and_then(
            |()| rustix::io::write(&go_writer, b"g").map(drop).map_err(io::Error::from).stage("go"),
        );
    if let Err(failed) = set_up {
        syscalls::kill(child);
        return Err(Failed { child: Some(child), ..failed });
    }
    let (enforced, missing) = describe(order);
    Ok(Launched { pid: child, namespaces, enforced, missing })
}

fn namespaces_of(pid: i32) -> BTreeMap<String, u64> {
    let number = |kind: &str| {
        let link = fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()?;
        Some((kind.to_owned(), namespace_number(link.to_str()?)?))
    };
    NAMESPACES.into_iter().filter_map(number).collect()
}

/// Binds the socket through its folder's descriptor, since a socket's path is limited to 108 bytes.
fn listen(path: &str) -> Result<UnixListener, Failed> {
    let path = std::path::Path::new(path);
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::other("the wire's path has no folder")).stage("bind the wire");
    };
    let folder = fs::File::open(folder).stage("open the sandbox's run folder")?;
    let short = format!("/proc/self/fd/{}/{}", folder.as_raw_fd(), name.to_string_lossy());
    UnixListener::bind(short).stage("bind the wire")
}

/// Blocks until the launcher has written the id maps. If it died first, so does this process.
fn wait_for_go(reader: OwnedFd) {
    let mut byte = [0];
    if !matches!(rustix::io::read(reader.as_fd(), &mut byte), Ok(1)) {
        exit(1);
    }
}

/// The new process's side: builds its cage, says so, and becomes the guest.
fn inhabit(
    order: &LaunchOrder,
    image: mounts::ImageSource,
    scratch: Option<OwnedFd>,
    wire: UnixListener,
    report: OwnedFd,
) -> ! {
    if let Err(failed) = cage::build(order, image, scratch, &wire, &report) {
        give_up(failed, &report);
    }
    match &order.kernel {
        Kernel::Host if order.held => {
            let builder = held::Builder::leave_behind(order.clone());
            let builder = builder.unwrap_or_else(|failed| give_up(failed, &report));
            let adapt = Box::new(|adoption: &_| builder.build(adoption));
            crate::inside::run_ahead(wire, order.guest.clone(), || be_ready(report), adapt)
        }
        Kernel::Host => {
            if let Err(failed) = privileges::drop_all_but_needed() {
                give_up(failed, &report);
            }
            be_ready(report);
            crate::inside::run(wire, order.guest.clone())
        }
        Kernel::Gvisor { .. } => match crate::warden::start_gvisor(order) {
            Ok(sandbox) => {
                be_ready(report);
                crate::warden::keep(wire, sandbox)
            }
            Err(failed) => give_up(failed, &report),
        },
    }
}

/// The last that is said there: nothing of the host stays open.
fn be_ready(report: OwnedFd) {
    say(&report, &LaunchWord::Ready);
}

fn give_up(failed: Failed, report: &OwnedFd) -> ! {
    failed.say(report);
    exit(1)
}

/// What stands, in words, for the sandbox's report.
fn describe(order: &LaunchOrder) -> (Vec<String>, Vec<String>) {
    let mut enforced: Vec<String> = [
        "own user, mount, pid, network, ipc, uts, cgroup and, where the kernel has them, time namespaces",
        "image read-only under an overlay of its own",
        match order.kernel {
            Kernel::Host => "no host path is mounted; /proc is masked; /sys is absent",
            Kernel::Gvisor { .. } => {
                "a kernel of its own in user space (gVisor), which answers every system call; /proc, \
                 /sys and /dev are that kernel's"
            }
        },
        "no network device but loopback",
        "tools run without capabilities, with no_new_privs and a system-call filter",
    ]
    .map(String::from)
    .into();
    let mut missing = Vec::new();
    let place = match order.storage {
        Storage::Memory => "in memory",
        Storage::File { .. } => "on a disk of its own, which is reserved",
    };
    enforced.push(format!("at most {} can be written inside, {place}", order.disk));
    enforced.push(match order.guest.nested_sandboxing {
        true => "user namespaces can be made inside, because the job asked for it".into(),
        false => "no user namespaces can be made inside".into(),
    });
    match &order.kernel {
        Kernel::Host if crate::inside::landlock::version() >= LEAST_LANDLOCK => {
            let folders = order.guest.writable_folders().join(" ");
            enforced.push(format!("tools can write below {folders} and nowhere else (Landlock)"));
        }
        Kernel::Host => missing
            .push("no Landlock in this kernel: add `landlock` to its `lsm=` parameter".into()),
        Kernel::Gvisor { .. } => {
            missing.push("no Landlock: gVisor's kernel, which tools ask, has none".into());
        }
    }
    match order.ids {
        IdMapping::Range { base } => {
            enforced.push(format!("ids 0-65535 inside are {base} and up outside"))
        }
        IdMapping::Subordinate { uid_base, .. } => {
            enforced.push(format!("ids of tools are subordinate ids from {uid_base} outside"));
            missing.push(
                "sandboxes of a plain user share one range of ids, and root inside is the server's \
                 own user outside: as root each has ids of its own"
                    .into(),
            );
        }
        IdMapping::Single => {
            missing.push(
                "no subordinate ids: guest and tools share one user, which is the server's own \
                 outside; install uidmap and add a line to /etc/subuid and /etc/subgid"
                    .into(),
            );
            if has_more_groups_than_its_own() {
                missing.push(
                    "tools keep the server user's groups outside: with one id the kernel lets \
                     nobody give them up"
                        .into(),
                );
            }
        }
    }
    match core_dumps::gap() {
        Some(gap) => missing.push(gap.into()),
        None => enforced.push("a crash inside leaves no core dump and starts no program".into()),
    }
    (enforced, missing)
}

/// Inside and outside alike: a group that no id inside stands for is not the own one either.
fn has_more_groups_than_its_own() -> bool {
    let own = rustix::process::getgid();
    rustix::process::getgroups().is_ok_and(|groups| groups.iter().any(|group| *group != own))
}
