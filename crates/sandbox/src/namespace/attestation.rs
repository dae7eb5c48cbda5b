//! What the backend claims about a sandbox, held against what was found from inside and from outside.
//!
//! Pure but for reading the host's own files. What does not hold keeps a sandbox from being used.

mod mounts;
mod outside;

use std::collections::BTreeMap;
use std::path::PathBuf;

use bellglass_protocol::cage::{
    GUEST_CAPABILITIES, SWITCHED_OFF, UNUSED_TUNNELS, most_data_of_one,
};
use bellglass_protocol::launch::{IdMapping, Kernel, LEAST_LANDLOCK, LaunchOrder};
use bellglass_protocol::report::{Check, Probe};
use serde::{Deserialize, Serialize};

use super::control_groups::Relief;
use mounts::mounts;
pub(super) use outside::{Frame, Host, Outside};

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
            landlock: order.kernel == Kernel::Host
                && crate::host::landlock_version() >= LEAST_LANDLOCK,
            writable: writable.map(String::from).into(),
            limits,
            least_core_dump: own_core_dump_limit().min(CORE_DUMP_LIMIT),
            group_settings,
            groups,
        }
    }

    /// Has its groups no more processor time than is claimed.
    pub(super) fn end_relief(&self) {
        Relief::end(&self.group_settings);
    }
}

/// What the launcher sets.
const CORE_DUMP_LIMIT: u64 = 1;

fn own_core_dump_limit() -> u64 {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Core).maximum.unwrap_or(u64::MAX)
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
        interfaces(inside),
        connections(inside),
        writable(claims, inside),
        namespaces(claims, inside, outside),
        Check::equal("user id map", &claims.uid_map, &outside.frame.uid_map),
        Check::equal("group id map", &claims.gid_map, &outside.frame.gid_map),
    ];
    match &claims.kernel {
        Kernel::Host => checks.extend(of_the_hosts_kernel(claims, inside, outside)),
        // What gVisor's kernel says of namespaces, ids and mounts is its own affair: nothing of the
        // host is behind it. The cage that it runs in is looked at from outside.
        Kernel::Gvisor { .. } => {
            let ours = rustix::system::uname().release().to_string_lossy().into_owned();
            let same = (inside.kernel == ours).then(|| "it is the host's".to_owned());
            checks.push(check("kernel", "other than the host's", same.into_iter().collect()));
        }
    }
    checks.push(core_dump(claims.least_core_dump, inside));
    checks.extend(claims.limits.iter().map(|(name, most)| limit(name, *most, inside)));
    checks.extend(membership(claims, outside));
    let settings = claims.group_settings.iter().zip(&outside.frame.group_values);
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
        Check::equal("user id map inside", &claims.uid_map, &inside.uid_map),
        Check::equal("group id map inside", &claims.gid_map, &inside.gid_map),
        Check::equal(
            "new user namespaces",
            if claims.nested_sandboxing { "possible, as the job asked" } else { "refused" },
            if inside.nested_sandboxing { "possible, as the job asked" } else { "refused" },
        ),
        Check::equal("routes", "none", or_none(inside.routes.join(", "))),
        guest_threads(outside),
        mounts(&inside.mount_list, &outside.host.open_proc),
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

/// As they look from outside, and on the host's kernel from inside too.
fn namespaces(claims: &Claims, inside: &Probe, outside: &Outside) -> Check {
    let views = [
        Some(&outside.namespaces).filter(|seen| !seen.is_empty()),
        Some(&inside.namespaces).filter(|_| claims.kernel == Kernel::Host),
    ];
    let views: Vec<_> = views.into_iter().flatten().collect();
    let shared = outside.host.namespaces.iter().filter(|(kind, ours)| {
        // One that could not be looked at is not known to be another.
        let is_another =
            |view: &&BTreeMap<_, u64>| view.get(*kind).is_some_and(|theirs| theirs != *ours);
        views.is_empty() || !views.iter().all(is_another)
    });
    let mut problems: Vec<String> =
        shared.map(|(kind, _)| format!("{kind} is the host's")).collect();
    // The network was made by another than who lives in it, and only who does can tell.
    let networks: Vec<_> = views.iter().filter_map(|view| view.get("net")).collect();
    if networks.windows(2).any(|pair| pair[0] != pair[1]) {
        problems.push("net is not the one that was made".into());
    }
    check("namespaces", "all other than the host's", problems)
}

/// Loopback, and what the kernel puts beside it into every network, as long as that is switched off.
fn interfaces(inside: &Probe) -> Check {
    let is_unused = |name: &String| {
        let device = name.strip_suffix(SWITCHED_OFF);
        device.is_some_and(|device| UNUSED_TUNNELS.contains(&device))
    };
    let in_use: Vec<&str> =
        inside.interfaces.iter().filter(|name| !is_unused(name)).map(String::as_str).collect();
    Check {
        found: inside.interfaces.join(", "),
        ..Check::equal("interfaces", "lo", in_use.join(", "))
    }
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
    let lines =
        outside.frame.groups_of_guest.lines().filter(|line| line.ends_with(&format!("/{name}")));
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
