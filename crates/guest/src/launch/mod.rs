//! Builds the cage around a new process and turns that process into the guest.
//!
//! Runs as a fresh, single-threaded process for each sandbox, which may have waited for it. It reads a
//! [`LaunchOrder`] from standard input, makes the process, says so on standard output ([`LaunchWord`]), gives
//! it what it cannot give itself, and ends with its standard input. The new process waits for the word to go, builds its own cage,
//! says there how that went, and lives on as a child of whoever started the launcher. Holds no secrets: the
//! guest goes on in a copy of this process's memory.

mod cage;
mod devices;
mod disk;
mod gvisor_room;
mod held;
mod id_maps;
mod mounts;
mod network;
pub(crate) mod privileges;
pub(crate) mod syscalls;
mod talk;
mod title;

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::exit;
use std::{fs, io};

use bellglass_protocol::cage::{NAMESPACES, namespace_number};
use bellglass_protocol::launch::{
    GO, IdMapping, Kernel, LEAST_LANDLOCK, LaunchFailure, LaunchOrder, LaunchWord, Launched,
    Storage,
};

use rustix::event::{PollFd, PollFlags, poll};

use crate::core_dumps;
use crate::inside::processors;
use network::Network;
use syscalls::Stage as _;
use talk::{Talk, Word};

/// The name of the kind of namespace that is made last.
const NETWORK: &str = "net";

/// What went wrong while the cage was built, and at which point.
#[derive(Debug, thiserror::Error)]
#[error("{stage}: {error}")]
pub(crate) struct Failed {
    stage: String,
    error: io::Error,
}

impl Failed {
    fn say(self, to: &OwnedFd) {
        let Self { stage, error } = self;
        let failure = LaunchFailure { stage, error: error.to_string() };
        say(to, &LaunchWord::Failed(failure));
    }
}

pub(crate) fn main() {
    // Whatever does not need an order is done while there is none.
    let place = title::Place::find();
    crate::inside::seccomp::make_ahead();
    // Both processes say how it went for them, and the standard streams are the guest's no more.
    let Ok(report) = rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3) else { exit(1) };
    let order = match read_order() {
        Ok(Some(order)) => order,
        Ok(None) => exit(0),
        Err(failed) => {
            failed.say(&report);
            exit(1)
        }
    };
    match launch(&order, place, &report) {
        Ok(launched) => {
            say(&report, &LaunchWord::Launched(launched));
            wait_for_the_end(report);
        }
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

/// To end takes a processor for a while, which the new process needs now. That has read all there was to read.
fn wait_for_the_end(report: OwnedFd) {
    // If the new process ends without a word, that must be heard.
    drop(report);
    // SAFETY: nothing is written there any more.
    drop(unsafe { OwnedFd::from_raw_fd(libc::STDOUT_FILENO) });
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
}

/// Nothing if whoever started this process wants nothing of it any more.
fn read_order() -> Result<Option<LaunchOrder>, Failed> {
    let mut text = String::new();
    io::stdin().read_line(&mut text).stage("read the launch order")?;
    if text.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(&text).map_err(io::Error::other).stage("understand the launch order")
}

/// In the new process: blocks until what the order speaks of is there, or never will be.
fn is_wanted() -> bool {
    let mut word = String::new();
    io::stdin().read_line(&mut word).is_ok() && word.as_bytes() == GO
}

/// Makes the process, gives it its identity, and lets it build its cage.
fn launch(
    order: &LaunchOrder,
    place: io::Result<title::Place>,
    report: &OwnedFd,
) -> Result<Launched, Failed> {
    place.and_then(|place| place.carry(&order.name)).stage("take the sandbox's name")?;
    // Root of the host may also raise a lower limit; inside nobody may.
    core_dumps::forbid();
    // Before the control groups are joined: what it costs to make a disk is not the job's.
    let scratch = match &order.storage {
        Storage::Memory => None,
        Storage::File { folder } => Some(disk::make(Path::new(folder), order.disk, order.ids)?),
    };
    let image = mounts::ImageSource::prepare(order)?;
    if nobody_hears(report) {
        // Whoever looked for this sandbox after its maker's end may not have known it by its name yet.
        exit(1);
    }
    let (launcher, new_process) = Talk::pair().stage("make a pair of sockets")?;
    let its_report = report.try_clone().stage("copy a descriptor")?;
    let anywhere = processors::usable_by_parent();

    let Some(child) = syscalls::clone_into_new_namespaces().stage("make namespaces")? else {
        drop(new_process);
        if order.kernel == Kernel::Host {
            // While it has to wait.
            privileges::bound();
        }
        // If the launcher died first, or nobody wants it any more, this process ends.
        if launcher.wait_for(Word::Ids).is_err() || !is_wanted() {
            exit(1);
        }
        let built = cage::build(order, image, scratch, &launcher, &its_report);
        processors::go_anywhere(&anywhere);
        inhabit(order, built, its_report)
    };
    // Each has another processor while the cage is built: woken by the other, they would share one.
    processors::keep_elsewhere(child, &anywhere);
    say(report, &LaunchWord::Made { pid: child });
    drop((launcher, its_report));
    let set_up = set_up(order, &image, child, &new_process);
    let namespaces = set_up.inspect_err(|_| syscalls::kill(child))?;
    let (enforced, missing) = describe(order);
    Ok(Launched { pid: child, namespaces, enforced, missing })
}

/// Gives the new process what it cannot give itself. Returns its namespaces.
fn set_up(
    order: &LaunchOrder,
    image: &mounts::ImageSource,
    child: i32,
    new_process: &Talk,
) -> Result<BTreeMap<String, u64>, Failed> {
    let owner =
        fs::File::open(format!("/proc/{child}/ns/user")).stage("open the user namespace")?;
    id_maps::write(order.ids, child)?;
    image.map_ids(owner.as_fd())?;
    new_process.say(Word::Ids).stage("give the new process its ids")?;
    // While the new process joins its control groups, if the sandbox's folder is there already.
    let early = listen(&order.wire).ok();
    let seen = new_process.see(|| namespaces_of(child));
    let mut namespaces = seen.stage("look at the new process")?;
    // The rest while it builds.
    let wire = early.map_or_else(|| listen(&order.wire), Ok)?;
    let network = Network::make(owner.as_fd())?;
    namespaces.insert(NETWORK.into(), network.number()?);
    let both = [network.descriptor(), wire.as_fd()];
    new_process.hand_over(both).stage("hand over the network and the wire")?;
    Ok(namespaces)
}

/// All but the network's, which is not there yet.
fn namespaces_of(pid: i32) -> BTreeMap<String, u64> {
    let number = |kind: &str| {
        let link = fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()?;
        Some((kind.to_owned(), namespace_number(link.to_str()?)?))
    };
    NAMESPACES.into_iter().filter(|kind| *kind != NETWORK).filter_map(number).collect()
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

/// The new process's side: says that its cage stands, and becomes the guest.
fn inhabit(order: &LaunchOrder, built: Result<UnixListener, Failed>, report: OwnedFd) -> ! {
    let wire = built.unwrap_or_else(|failed| give_up(failed, &report));
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
