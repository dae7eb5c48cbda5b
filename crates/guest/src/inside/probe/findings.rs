//! Turns what was written down while looking around into the report's words. Pure.

use std::collections::BTreeMap;

use bellglass_protocol::cage::SWITCHED_OFF;
use bellglass_protocol::launch::GuestConfig;
use bellglass_protocol::report::{MountPoint, Probe};

use super::looking::SECTION;
use crate::inside::landlock;

pub(super) fn understand(config: &GuestConfig, found: &str) -> Probe {
    let sections: BTreeMap<&str, &str> =
        found.split(char::from(SECTION)).filter_map(|section| section.split_once('\n')).collect();
    let section = |name: &str| sections.get(name).copied().unwrap_or_default();
    let status = |name: &str| {
        let lines = section("status").lines();
        let line = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(':')).next();
        line.map(|value| value.split_whitespace().collect::<Vec<_>>().join(" ")).unwrap_or_default()
    };
    let system = rustix::system::uname();
    let mounts: Vec<MountPoint> = section("mounts").lines().filter_map(mount_point).collect();
    Probe {
        tool_uid: config.tool_uid,
        tool_ids: format!("{} / {} / {}", status("Uid"), status("Gid"), status("Groups"))
            .trim_end()
            .to_owned(),
        uid_map: squeezed(section("uid_map")),
        gid_map: squeezed(section("gid_map")),
        capabilities: status("CapEff"),
        other_capabilities: union_of_masks(["CapPrm", "CapInh", "CapAmb"].map(status)),
        bounding_set: status("CapBnd"),
        no_new_privs: section("no_new_privs").trim() == "1",
        seccomp_mode: status("Seccomp").parse().unwrap_or(0),
        landlock_abi: landlock::version(),
        landlock_refuses: section("device").trim() == libc::EACCES.to_string(),
        nested_sandboxing: section("user namespace").trim() == "0",
        namespaces: section("namespaces").lines().filter_map(namespace).collect(),
        interfaces: interfaces(section("interfaces"), section("switched off")),
        routes: routes(section("routes"), section("routes6")),
        connections: section("connections").lines().filter_map(connection).collect(),
        kernel: system.release().to_string_lossy().into_owned(),
        hostname: super::host_name(),
        mounts: u32::try_from(mounts.len()).unwrap_or(u32::MAX),
        mount_list: mounts,
        writable: section("writable").lines().map(str::to_owned).collect(),
        limits: limits(section("limits")),
    }
}

/// Masks that cannot be read count as full.
fn union_of_masks(masks: [String; 3]) -> String {
    let mask = |text: &String| u64::from_str_radix(text, 16).unwrap_or(u64::MAX);
    format!("{:016x}", masks.iter().map(mask).fold(0, |all, mask| all | mask))
}

/// `kind:[number]`
fn namespace(line: &str) -> Option<(String, u64)> {
    let (kind, number) = line.split_once(":[")?;
    Some((kind.to_owned(), number.strip_suffix(']')?.parse().ok()?))
}

/// `id parent device root path flags [optional…] - kind source options`
fn mount_point(line: &str) -> Option<MountPoint> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(4);
    let (path, flags) = (fields.next()?, fields.next()?);
    let kind = after.split(' ').next()?;
    Some(MountPoint { path: path.into(), kind: kind.into(), flags: flags.into() })
}

/// Two lines of headings, then `name: numbers`. Those that are switched off are marked.
fn interfaces(table: &str, switched_off: &str) -> Vec<String> {
    let rows = table.lines().skip(2).filter_map(|line| line.split_once(':'));
    rows.map(|(name, _)| {
        let name = name.trim();
        let is_off = switched_off.lines().any(|off| off == name);
        format!("{name}{}", if is_off { SWITCHED_OFF } else { "" })
    })
    .collect()
}

/// A line of headings, then `interface destination …`; of the newer protocol the interface comes
/// last. What leads to loopback leads to the sandbox itself.
fn routes(table: &str, newer: &str) -> Vec<String> {
    let old = table.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    let new = newer.lines().filter_map(|line| line.split_whitespace().last());
    old.chain(new).filter(|interface| *interface != "lo").map(str::to_owned).collect()
}

fn connection(line: &str) -> Option<(String, String)> {
    let (address, errno) = line.split_once(' ')?;
    let said = match errno.parse().ok()? {
        libc::ENETUNREACH | libc::EHOSTUNREACH => "unreachable".to_owned(),
        0 | libc::EINPROGRESS => "reachable".to_owned(),
        errno => std::io::Error::from_raw_os_error(errno).to_string(),
    };
    Some((address.to_owned(), said))
}

/// A line of headings, then `Name of the limit   soft   hard   units`.
fn limits(table: &str) -> BTreeMap<String, String> {
    const WANTED: [(&str, &str); 5] = [
        ("Max open files", "open_files"),
        ("Max processes", "processes"),
        ("Max core file size", "core_dump"),
        ("Max data size", "data"),
        ("Max locked memory", "locked_memory"),
    ];
    let value = |heading: &str| {
        let line = table.lines().find_map(|line| line.strip_prefix(heading))?;
        // The hard limit: the soft one is the process's own affair.
        line.split_whitespace().nth(1).map(str::to_owned)
    };
    WANTED
        .iter()
        .filter_map(|(heading, name)| Some(((*name).to_owned(), value(heading)?)))
        .collect()
}

/// One line for each range, with single spaces.
fn squeezed(table: &str) -> String {
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read() {
        let line = "36 35 0:30 / /tmp rw,nosuid,nodev shared:1 master:2 - tmpfs none rw,size=1k";
        let mount = mount_point(line).unwrap();
        assert_eq!(
            (&*mount.path, &*mount.kind, &*mount.flags),
            ("/tmp", "tmpfs", "rw,nosuid,nodev")
        );
        assert_eq!(namespace("mnt:[4026531840]"), Some(("mnt".into(), 4_026_531_840)));
        assert_eq!(namespace("mnt"), None);
        let table = "Limit  Soft Limit  Hard Limit  Units\n\
                     Max processes             64                   128        processes\n\
                     Max open files            unlimited            4096       files\n";
        let limits = limits(table);
        assert_eq!((&*limits["processes"], &*limits["open_files"]), ("128", "4096"));
        let devices = "Inter-|\n face |\n    lo: 0 0\ntunl0: 0 0\n sit0: 0 0\n";
        assert_eq!(interfaces(devices, "sit0\ngre0\n"), ["lo", "tunl0", "sit0 (down)"]);
        let old = "Iface Destination\neth0 00000000\nlo 0000007F\n";
        assert_eq!(routes(old, "00 00 lo\nfe 00 eth1\n"), ["eth0", "eth1"]);
        assert_eq!(connection("192.0.2.1 101").unwrap().1, "unreachable");
        assert_eq!(connection("192.0.2.1 115").unwrap().1, "reachable");
        assert_eq!(union_of_masks(["0".into(), "1".into(), "10".into()]), "0000000000000011");
        assert_eq!(union_of_masks(["0".into(), String::new(), "0".into()]), "ffffffffffffffff");
    }
}
