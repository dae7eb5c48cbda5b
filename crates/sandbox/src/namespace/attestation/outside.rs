//! What the host itself shows of a sandbox, and of itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bellglass_protocol::cage::{
    COVERED_FILES, COVERED_FOLDERS, NAMESPACES, READ_ONLY_FOLDERS, namespace_number,
};

use super::Claims;
use crate::namespace::record::Record;

/// What the host itself shows of a sandbox's control groups. It stands before the guest is there, so
/// it can be looked at while the guest makes itself ready.
#[derive(Clone)]
pub(in crate::namespace) struct Groups {
    /// What now stands in the files of control groups, in the order of the claims.
    pub(super) values: Vec<String>,
    /// The guest's control groups, one line for each hierarchy.
    pub(super) of_guest: String,
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
    /// The id maps of that process.
    pub(super) uid_map: String,
    pub(super) gid_map: String,
    pub(super) groups: Groups,
    /// For each thread of the guest its effective capabilities and whether it can gain others.
    pub(super) guest_threads: Vec<(String, String)>,
}

impl Groups {
    pub(in crate::namespace) fn look(claims: &Claims, guest: i32) -> Self {
        let read = |(file, _): &(PathBuf, String)| fs::read_to_string(file).unwrap_or_default();
        Self {
            values: claims.group_settings.iter().map(read).map(|v| v.trim().into()).collect(),
            of_guest: fs::read_to_string(format!("/proc/{guest}/cgroup")).unwrap_or_default(),
        }
    }
}

impl Outside {
    pub(in crate::namespace) fn look(record: &Record, host: &Host, groups: &Groups) -> Self {
        let map = |name: &str| {
            let table = fs::read_to_string(format!("/proc/{}/{name}", record.pid));
            id_ranges(&table.unwrap_or_default())
        };
        Self {
            host: host.clone(),
            namespaces: record.namespaces.clone(),
            uid_map: map("uid_map"),
            gid_map: map("gid_map"),
            groups: groups.clone(),
            guest_threads: threads(record.pid),
        }
    }
}

/// One range after the other, with single spaces.
fn id_ranges(table: &str) -> String {
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("; ")
}

fn threads(guest: i32) -> Vec<(String, String)> {
    let threads = fs::read_dir(format!("/proc/{guest}/task")).into_iter().flatten().flatten();
    let status = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    let fields = status.map(|status| {
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
