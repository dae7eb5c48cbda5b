//! What the host itself shows of a sandbox, and of itself.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use bellglass_protocol::cage::{
    COVERED_FILES, COVERED_FOLDERS, NAMESPACES, READ_ONLY_FOLDERS, UNUSED_TUNNELS, namespace_number,
};

use bellglass_protocol::launch::Kernel;

use super::Claims;
use crate::namespace::record::Record;

/// What the host itself shows of a sandbox that stands before the guest is there, so that it can be looked
/// at while the guest makes itself ready.
#[derive(Clone)]
pub(in crate::namespace) struct Frame {
    /// What now stands in the files of control groups, in the order of the claims.
    pub(super) group_values: Vec<String>,
    /// The id maps of the cage's first process.
    pub(super) uid_map: String,
    pub(super) gid_map: String,
    /// Its control groups, one line for each hierarchy. It cannot leave them.
    pub(super) groups_of_guest: String,
}

/// What the host is like that all sandboxes are on.
#[derive(Clone)]
pub(in crate::namespace) struct Host {
    /// Our own namespaces, by kind, which no sandbox may share.
    pub(super) namespaces: BTreeMap<String, u64>,
    /// What there is in its /proc of all that must be covered or read-only in a sandbox's.
    pub(super) open_proc: Vec<&'static str>,
}

impl Host {
    pub(in crate::namespace) fn look() -> Self {
        let kept_from_tools =
            COVERED_FILES.iter().chain(&COVERED_FOLDERS).chain(&READ_ONLY_FOLDERS);
        let is_there = |name: &&&str| Path::new("/proc").join(name).exists();
        Self {
            namespaces: own_namespaces(),
            open_proc: kept_from_tools.filter(is_there).copied().collect(),
        }
    }
}

/// What the host itself shows.
pub(in crate::namespace) struct Outside {
    pub(super) host: Host,
    /// The namespaces of the cage's first process; none if they were not written down.
    pub(super) namespaces: BTreeMap<String, u64>,
    pub(super) frame: Frame,
    /// For each thread of the guest its effective capabilities and whether it can gain others.
    pub(super) guest_threads: Vec<(String, String)>,
}

impl Frame {
    pub(in crate::namespace) fn look(claims: &Claims, guest: i32) -> Self {
        let of_guest = |name: &str| kernel_text(format!("/proc/{guest}/{name}"));
        let settings = claims.group_settings.iter();
        Self {
            group_values: settings.map(|(file, _)| kernel_text(file).trim().into()).collect(),
            uid_map: id_ranges(&of_guest("uid_map")),
            gid_map: id_ranges(&of_guest("gid_map")),
            groups_of_guest: of_guest("cgroup"),
        }
    }
}

impl Outside {
    pub(in crate::namespace) fn look(record: &Record, host: &Host, frame: &Frame) -> Self {
        Self {
            host: host.clone(),
            namespaces: namespaces(record),
            frame: frame.clone(),
            guest_threads: threads(record.pid),
        }
    }
}

/// As they were written down. What runs on another kernel cannot tell from inside that it entered the network
/// which was made for it, so there it is looked at from here, where the host lets us.
fn namespaces(record: &Record) -> BTreeMap<String, u64> {
    const NETWORK: &str = "net";
    let mut namespaces = record.namespaces.clone();
    if record.claims.as_ref().is_some_and(|claims| claims.kernel != Kernel::Host) {
        let link = fs::read_link(format!("/proc/{}/ns/{NETWORK}", record.pid)).ok();
        let number = link.and_then(|link| namespace_number(link.to_str()?));
        match number {
            Some(number) => drop(namespaces.insert(NETWORK.to_owned(), number)),
            // Who may not look at the namespace may still see its devices.
            None if has_only_loopback(record.pid) => {}
            None => drop(namespaces.remove(NETWORK)),
        }
    }
    namespaces
}

fn has_only_loopback(pid: i32) -> bool {
    let devices = kernel_text(format!("/proc/{pid}/net/dev"));
    // Two lines of headings come first.
    let names = devices.lines().skip(2).filter_map(|line| line.split(':').next()).map(str::trim);
    let used: Vec<&str> = names.filter(|name| !UNUSED_TUNNELS.contains(name)).collect();
    used == ["lo"]
}

/// A file that the kernel writes as it is read, whose size nobody knows before; empty if it cannot be read.
fn kernel_text(path: impl AsRef<Path>) -> String {
    const USUAL: usize = 4096;
    const MOST: u64 = 1 << 20;
    let mut text = Vec::with_capacity(USUAL);
    let read = fs::File::open(path).and_then(|file| file.take(MOST).read_to_end(&mut text));
    read.ok().and_then(|_| String::from_utf8(text).ok()).unwrap_or_default()
}

/// One range after the other, with single spaces.
fn id_ranges(table: &str) -> String {
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("; ")
}

fn threads(guest: i32) -> Vec<(String, String)> {
    let threads = fs::read_dir(format!("/proc/{guest}/task")).into_iter().flatten().flatten();
    let status = threads.map(|thread| kernel_text(thread.path().join("status")));
    // One that has just ended shows nothing.
    let fields = status.filter(|status| !status.is_empty()).map(|status| {
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            value.unwrap_or_default().trim().to_owned()
        };
        (field("CapEff:"), field("NoNewPrivs:"))
    });
    fields.collect()
}

pub(super) fn own_namespaces() -> BTreeMap<String, u64> {
    let number = |kind: &str| {
        let link = fs::read_link(format!("/proc/self/ns/{kind}")).ok()?;
        Some((kind.to_owned(), namespace_number(link.to_str()?)?))
    };
    NAMESPACES.into_iter().filter_map(number).collect()
}
