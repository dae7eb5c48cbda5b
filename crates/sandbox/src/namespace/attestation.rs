//! What the backend claims about a sandbox, held against what was found from inside and from outside.
//!
//! Pure but for reading the host's own files. What does not hold keeps a sandbox from being used.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use bellglass_protocol::cage::{
    COVERED_FILES, COVERED_FOLDERS, DEVICES, GUEST_CAPABILITIES, READ_ONLY_FOLDERS, WORKSPACE,
    most_data_of_one,
};
use bellglass_protocol::launch::{IdMapping, Kernel, LEAST_LANDLOCK, LaunchOrder};
use bellglass_protocol::report::{Check, MountPoint, Probe};
use serde::{Deserialize, Serialize};

/// What is claimed about one sandbox. Kept with its record, so that it can be asked about again.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Claims {
    /// Whose kernel was asked from inside.
    #[serde(default)]
    kernel: Kernel,
    hostname: String,
    tool_uid: u32,
    /// Whether tools still have the groups of the server's user, as those that no id inside stands for.
    #[serde(default)]
    keeps_groups: bool,
    uid_map: String,
    gid_map: String,
    nested_sandboxing: bool,
    landlock: bool,
    /// Folders that tools may find writable.
    writable: Vec<String>,
    /// At the most, by the names that the probe uses.
    limits: BTreeMap<String, u64>,
    /// The least limit on core dumps. At 1 the kernel starts no program for one, and at 0 it does;
    /// where our own limit is 0, there is no other, and the report says so.
    #[serde(default)]
    least_core_dump: u64,
    /// Files of control groups, with what was written to them.
    group_settings: Vec<(PathBuf, String)>,
    /// The folders of the control groups that all processes are in.
    groups: Vec<PathBuf>,
}

impl Claims {
    pub(super) fn of(
        order: &LaunchOrder,
        groups: Vec<PathBuf>,
        group_settings: Vec<(PathBuf, String)>,
    ) -> Self {
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let guest = &order.guest;
        let (uid_map, gid_map) = match order.ids {
            IdMapping::Range { base } => (format!("0 {base} 65536"), format!("0 {base} 65536")),
            IdMapping::Subordinate { uid_base, gid_base, count } => (
                format!("0 {uid} 1; 1 {uid_base} {count}"),
                format!("0 {gid} 1; 1 {gid_base} {count}"),
            ),
            IdMapping::Single => {
                (format!("{0} {uid} 1", guest.tool_uid), format!("{0} {gid} 1", guest.tool_gid))
            }
        };
        let writable = guest.writable_folders();
        let mut limits = BTreeMap::from([("open_files".to_owned(), u64::from(guest.open_files))]);
        limits.extend(guest.processes.map(|count| ("processes".to_owned(), u64::from(count))));
        limits.extend(guest.memory.map(|room| ("data".to_owned(), most_data_of_one(room.0))));
        Self {
            kernel: order.kernel.clone(),
            hostname: order.name.clone(),
            tool_uid: guest.tool_uid,
            keeps_groups: order.ids == IdMapping::Single,
            uid_map,
            gid_map,
            nested_sandboxing: guest.nested_sandboxing,
            landlock: crate::host::landlock_version() >= LEAST_LANDLOCK,
            writable: writable.map(String::from).into(),
            limits,
            least_core_dump: own_core_dump_limit().min(CORE_DUMP_LIMIT),
            group_settings,
            groups,
        }
    }
}

/// What the launcher sets.
const CORE_DUMP_LIMIT: u64 = 1;

fn own_core_dump_limit() -> u64 {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Core).maximum.unwrap_or(u64::MAX)
}

/// What the host itself shows of a sandbox's control groups. It stands before the guest is there, so
/// it can be looked at while the guest makes itself ready.
#[derive(Clone)]
pub(super) struct Groups {
    /// What now stands in the files of control groups, in the order of the claims.
    pub(super) values: Vec<String>,
    /// The guest's control groups, one line for each hierarchy.
    pub(super) of_guest: String,
}

/// What the host itself shows.
pub(super) struct Outside {
    /// Our own namespaces, by kind.
    pub(super) namespaces: BTreeMap<String, u64>,
    pub(super) groups: Groups,
    /// For each thread of the guest its effective capabilities and whether it can gain others.
    pub(super) guest_threads: Vec<(String, String)>,
}

impl Groups {
    pub(super) fn look(claims: &Claims, guest: i32) -> Self {
        let read = |(file, _): &(PathBuf, String)| fs::read_to_string(file).unwrap_or_default();
        Self {
            values: claims.group_settings.iter().map(read).map(|v| v.trim().into()).collect(),
            of_guest: fs::read_to_string(format!("/proc/{guest}/cgroup")).unwrap_or_default(),
        }
    }
}

impl Outside {
    pub(super) fn look(guest: i32, namespaces: &BTreeMap<String, u64>, groups: &Groups) -> Self {
        let (namespaces, groups) = (namespaces.clone(), groups.clone());
        Self { namespaces, groups, guest_threads: threads(guest) }
    }
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

/// The namespaces of this process, by kind.
pub(super) fn own_namespaces() -> BTreeMap<String, u64> {
    ["cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"]
        .into_iter()
        .filter_map(|kind| {
            let link = fs::read_link(format!("/proc/self/ns/{kind}")).ok()?;
            let number = link.to_str()?.split_once(":[")?.1.strip_suffix(']')?.parse().ok()?;
            Some((kind.to_owned(), number))
        })
        .collect()
}

const NO_CAPABILITIES: &str = "0000000000000000";

/// Holds every claim against what was found.
pub(super) fn examine(claims: &Claims, inside: &Probe, outside: &Outside) -> Vec<Check> {
    let mut checks = vec![
        Check::equal("host name", &claims.hostname, &inside.hostname),
        tool_ids(claims, inside),
        Check::equal("effective capabilities", NO_CAPABILITIES, &inside.capabilities),
        Check::equal("bounding set", NO_CAPABILITIES, &inside.bounding_set),
        Check::equal("no_new_privs", "true", inside.no_new_privs.to_string()),
        Check::equal("system-call filter", "2", inside.seccomp_mode.to_string()),
        Check::equal("interfaces", "lo", inside.interfaces.join(", ")),
        connections(inside),
        writable(claims, inside),
    ];
    match &claims.kernel {
        Kernel::Host => checks.extend(of_the_hosts_kernel(claims, inside, outside)),
        // What gVisor's kernel says of namespaces, ids and mounts is its own affair: nothing of the
        // host is behind it. The cage that it runs in is held by the control groups below.
        Kernel::Gvisor { .. } => {
            let ours = rustix::system::uname().release().to_string_lossy().into_owned();
            let same = (inside.kernel == ours).then(|| "it is the host's".to_owned());
            checks.push(check("kernel", "other than the host's", same.into_iter().collect()));
        }
    }
    checks.push(core_dump(claims.least_core_dump, inside));
    checks.extend(claims.limits.iter().map(|(name, most)| limit(name, *most, inside)));
    checks.extend(membership(claims, outside));
    let settings = claims.group_settings.iter().zip(&outside.groups.values);
    checks.extend(settings.map(|((file, claimed), found)| group(file, claimed, found)));
    checks
}

/// Users, groups, and the groups beside these. With a single id the kernel lets nobody give up the
/// groups of the server's user; inside they are nobody's, or the tools' own.
fn tool_ids(claims: &Claims, inside: &Probe) -> Check {
    /// How the kernel shows a group that no id inside stands for.
    const NOBODYS: &str = "65534";
    let tool = claims.tool_uid.to_string();
    let ids = [tool.as_str(); 4].join(" ");
    let claimed = format!("{ids} / {ids} /");
    if !claims.keeps_groups {
        return Check::equal("ids of tools", claimed, &inside.tool_ids);
    }
    let groups = inside.tool_ids.strip_prefix(&claimed).map(str::split_whitespace);
    let are_kept = |mut groups: std::str::SplitWhitespace<'_>| {
        groups.all(|group| group == NOBODYS || group == tool)
    };
    Check {
        subject: "ids of tools".into(),
        claimed: format!("{claimed} at most {tool} and {NOBODYS}"),
        found: inside.tool_ids.clone(),
        holds: groups.is_some_and(are_kept),
    }
}

/// What only a sandbox that runs on the host's own kernel can be asked.
fn of_the_hosts_kernel(claims: &Claims, inside: &Probe, outside: &Outside) -> Vec<Check> {
    let mut checks = vec![
        Check::equal("other capabilities", NO_CAPABILITIES, &inside.other_capabilities),
        Check::equal("user id map", &claims.uid_map, &inside.uid_map),
        Check::equal("group id map", &claims.gid_map, &inside.gid_map),
        Check::equal(
            "new user namespaces",
            if claims.nested_sandboxing { "possible, as the job asked" } else { "refused" },
            if inside.nested_sandboxing { "possible, as the job asked" } else { "refused" },
        ),
        Check::equal("routes", "none", or_none(inside.routes.join(", "))),
        namespaces(inside, outside),
        guest_threads(outside),
        mounts(&inside.mount_list),
    ];
    if claims.landlock {
        checks.push(Check::equal(
            "landlock",
            "refuses",
            match inside.landlock_refuses {
                true => "refuses",
                false => "does not refuse",
            },
        ));
    }
    checks
}

fn or_none(list: String) -> String {
    if list.is_empty() { "none".into() } else { list }
}

fn check(subject: &str, claimed: &str, problems: Vec<String>) -> Check {
    let holds = problems.is_empty();
    let found = if holds { claimed.to_owned() } else { problems.join(", ") };
    Check { subject: subject.into(), claimed: claimed.into(), found, holds }
}

fn namespaces(inside: &Probe, outside: &Outside) -> Check {
    let shared = outside.namespaces.iter().filter(|(kind, ours)| {
        // One that could not be looked at is not known to be another.
        inside.namespaces.get(*kind).is_none_or(|theirs| theirs == *ours)
    });
    let problems = shared.map(|(kind, _)| format!("{kind} is the host's")).collect();
    check("namespaces", "all other than the host's", problems)
}

fn connections(inside: &Probe) -> Check {
    let mut problems: Vec<String> = inside
        .connections
        .iter()
        .filter(|(_, said)| *said != "unreachable")
        .map(|(address, said)| format!("{address}: {said}"))
        .collect();
    if inside.connections.is_empty() {
        problems.push("nothing was tried".into());
    }
    check("addresses outside", "unreachable", problems)
}

/// No thread of the guest has kept what only the building of the cage needed.
fn guest_threads(outside: &Outside) -> Check {
    let kept = GUEST_CAPABILITIES.iter().fold(0u64, |mask, number| mask | 1 << number);
    let mut problems: Vec<String> = outside
        .guest_threads
        .iter()
        .filter(|(capabilities, no_new_privs)| {
            let mask = u64::from_str_radix(capabilities, 16).unwrap_or(u64::MAX);
            mask & !kept != 0 || no_new_privs != "1"
        })
        .map(|(capabilities, no_new_privs)| format!("{capabilities}, no_new_privs {no_new_privs}"))
        .collect();
    if outside.guest_threads.is_empty() {
        problems.push("no thread was found".into());
    }
    let claimed = format!("at most capabilities {kept:x}, with no_new_privs");
    check("the guest's threads", &claimed, problems)
}

/// Nothing of the host is mounted: only what stands in every cage, no set-uid anywhere, and device
/// files only as single files below /dev.
fn mounts(mounts: &[MountPoint]) -> Check {
    let mut problems = Vec::new();
    for MountPoint { path, kind, flags } in mounts {
        let has = |flag: &str| flags.split(',').any(|each| each == flag);
        let furniture = Furniture::at(path);
        if !furniture.as_ref().is_some_and(|expected| expected.is_of(kind, mounts)) {
            problems.push(format!("{path} is {kind}"));
        }
        let is_device = matches!(furniture, Some(Furniture::Device | Furniture::CoveredFile));
        let is_in_proc = path.starts_with("/proc/");
        if !has("nosuid") && !is_device && !is_in_proc {
            problems.push(format!("{path} allows set-uid programs"));
        }
        if !has("nodev") && !path.starts_with("/dev") && !is_in_proc {
            problems.push(format!("{path} allows device files"));
        }
    }
    let read_only = ["/dev", "/proc/sys"];
    for path in read_only {
        let mount = mounts.iter().rev().find(|mount| mount.path == path);
        if !mount.is_some_and(|mount| mount.flags.split(',').any(|flag| flag == "ro")) {
            problems.push(format!("{path} is not read-only"));
        }
    }
    check("mounts", "the sandbox's own, without set-uid programs and devices", problems)
}

/// What is mounted at a place in every cage.
#[derive(Debug, PartialEq, Eq)]
enum Furniture {
    Of(&'static [&'static str]),
    Device,
    CoveredFile,
}

impl Furniture {
    fn at(path: &str) -> Option<Self> {
        let below = |folder: &str, names: &[&str]| {
            path.strip_prefix(folder).is_some_and(|name| names.contains(&name))
        };
        match path {
            "/" => Some(Self::Of(&["overlay"])),
            // The sandbox's scratch space, which is in memory or on a disk of its own.
            WORKSPACE | "/tmp" => Some(Self::Of(&["tmpfs", "ext4"])),
            "/dev" | "/dev/shm" => Some(Self::Of(&["tmpfs"])),
            "/dev/pts" => Some(Self::Of(&["devpts"])),
            "/proc" => Some(Self::Of(&["proc"])),
            _ if below("/dev/", &DEVICES) => Some(Self::Device),
            _ if below("/proc/", &COVERED_FILES) => Some(Self::CoveredFile),
            _ if below("/proc/", &COVERED_FOLDERS) => Some(Self::Of(&["tmpfs"])),
            _ if below("/proc/", &READ_ONLY_FOLDERS) => Some(Self::Of(&["proc"])),
            _ => None,
        }
    }

    fn is_of(&self, kind: &str, mounts: &[MountPoint]) -> bool {
        match self {
            Self::Of(kinds) => kinds.contains(&kind),
            // Of whatever kind the host's /dev is.
            Self::Device => true,
            // What lies there is /dev/null.
            Self::CoveredFile => {
                mounts.iter().any(|mount| mount.path == "/dev/null" && mount.kind == kind)
            }
        }
    }
}

fn writable(claims: &Claims, inside: &Probe) -> Check {
    let too_much = inside.writable.iter().filter(|path| !claims.writable.contains(path));
    let claimed = format!("at most {}", claims.writable.join(" "));
    let mut found = check("writable", &claimed, too_much.cloned().collect());
    if found.holds {
        found.found = inside.writable.join(" ");
    }
    found
}

fn limit(name: &str, most: u64, inside: &Probe) -> Check {
    let found = inside.limits.get(name).map_or("not found", String::as_str);
    Check {
        subject: format!("limit on {name}"),
        claimed: format!("at most {most}"),
        found: found.into(),
        // A hard limit of the host may be lower than what was asked for.
        holds: found.parse::<u64>().is_ok_and(|found| found <= most),
    }
}

fn core_dump(least: u64, inside: &Probe) -> Check {
    let found = inside.limits.get("core_dump").map_or("not found", String::as_str);
    let range = least..=CORE_DUMP_LIMIT;
    Check {
        subject: "limit on core_dump".into(),
        claimed: if least == CORE_DUMP_LIMIT { "exactly 1".into() } else { "at most 1".into() },
        found: found.into(),
        holds: found.parse::<u64>().is_ok_and(|found| range.contains(&found)),
    }
}

/// Whether the guest is in the groups that were made, in as many hierarchies.
fn membership(claims: &Claims, outside: &Outside) -> Option<Check> {
    let name = claims.groups.first()?.file_name()?.to_string_lossy().into_owned();
    let lines = outside.groups.of_guest.lines().filter(|line| line.ends_with(&format!("/{name}")));
    let claimed = format!("in {} groups of its own", claims.groups.len());
    Some(Check::equal("control groups", claimed, format!("in {} groups of its own", lines.count())))
}

fn group(file: &std::path::Path, claimed: &str, found: &str) -> Check {
    let number = |text: &str| text.parse::<u64>().ok();
    // The kernel rounds sizes down to whole pages.
    let within = number(found).zip(number(claimed)).is_some_and(|(found, most)| found <= most);
    let subject = file.file_name().unwrap_or_default().to_string_lossy();
    Check {
        subject: format!("control group's {subject}"),
        claimed: claimed.into(),
        found: found.into(),
        holds: found == claimed || within,
    }
}

#[cfg(test)]
mod tests;
