//! Nothing that is less than it is claimed to be passes.

use bellglass_protocol::report::MountPoint;

use super::outside::own_namespaces;
use super::*;

fn claims() -> Claims {
    Claims {
        kernel: Kernel::Host,
        hostname: "job".into(),
        tool_uid: 1000,
        keeps_groups: false,
        uid_map: "0 500000 65536".into(),
        gid_map: "0 500000 65536".into(),
        nested_sandboxing: false,
        landlock: true,
        writable: vec!["/workspace".into(), "/tmp".into()],
        limits: BTreeMap::from([("open_files".into(), 64)]),
        least_core_dump: 1,
        group_settings: vec![("/groups/job/memory.max".into(), "8192".into())],
        groups: vec!["/groups/p-job".into()],
    }
}

fn mount(path: &str, kind: &str, flags: &str) -> MountPoint {
    MountPoint { path: path.into(), kind: kind.into(), flags: flags.into() }
}

fn sealed() -> (Probe, Outside) {
    const NONE: &str = "0000000000000000";
    let probe = Probe {
        tool_uid: 1000,
        tool_ids: "1000 1000 1000 1000 / 1000 1000 1000 1000 /".into(),
        uid_map: "0 500000 65536".into(),
        gid_map: "0 500000 65536".into(),
        capabilities: NONE.into(),
        other_capabilities: NONE.into(),
        bounding_set: NONE.into(),
        no_new_privs: true,
        seccomp_mode: 2,
        landlock_abi: 7,
        landlock_refuses: true,
        nested_sandboxing: false,
        namespaces: BTreeMap::from([("net".into(), 11), ("user".into(), 12)]),
        interfaces: vec!["lo".into()],
        routes: Vec::new(),
        connections: BTreeMap::from([("192.0.2.1".into(), "unreachable".into())]),
        kernel: String::new(),
        hostname: "job".into(),
        mounts: 0,
        mount_list: vec![
            mount("/", "overlay", "rw,nosuid,nodev"),
            mount("/tmp", "tmpfs", "rw,nosuid,nodev"),
            mount("/dev", "tmpfs", "ro,nosuid,noexec"),
            mount("/dev/null", "devtmpfs", "rw"),
            mount("/dev/shm", "tmpfs", "rw,nosuid,nodev"),
            mount("/proc", "proc", "rw,nosuid,nodev,noexec"),
            mount("/proc/sys", "proc", "ro,nosuid,nodev,noexec"),
            mount("/proc/keys", "devtmpfs", "rw"),
        ],
        writable: vec!["/tmp".into()],
        limits: BTreeMap::from([
            ("open_files".into(), "64".into()),
            ("core_dump".into(), "1".into()),
        ]),
    };
    let outside = Outside {
        host: Host {
            namespaces: BTreeMap::from([("net".into(), 1), ("user".into(), 2)]),
            open_proc: vec!["keys", "sys"],
        },
        namespaces: BTreeMap::from([("net".into(), 11), ("user".into(), 12)]),
        frame: Frame {
            group_values: vec!["8192".into()],
            uid_map: "0 500000 65536".into(),
            gid_map: "0 500000 65536".into(),
            groups_of_guest: "4:memory:/a/bellglass/p-job\n0::/\n".into(),
        },
        guest_threads: vec![("00000000000001e0".into(), "1".into())],
    };
    (probe, outside)
}

/// The subjects of what does not hold after a change for the worse.
fn failing(worsen: impl FnOnce(&mut Probe, &mut Outside)) -> Vec<String> {
    let (mut probe, mut outside) = sealed();
    worsen(&mut probe, &mut outside);
    let checks = examine(&claims(), &probe, &outside);
    checks.into_iter().filter(|check| !check.holds).map(|check| check.subject).collect()
}

#[test]
fn a_sealed_sandbox_passes() {
    assert_eq!(failing(|_, _| {}), Vec::<String>::new());
    // The kernel rounds sizes down, and hosts have lower limits of their own.
    assert_eq!(
        failing(|_, host| host.frame.group_values = vec!["4096".into()]),
        Vec::<String>::new()
    );
    // Some kernels have the ends of tunnels in every network, which nobody can remove.
    let tunnels = ["tunl0 (down)", "ip6tnl0 (down)"].map(String::from);
    assert_eq!(failing(|probe, _| probe.interfaces.extend(tunnels)), Vec::<String>::new());
    let lower = failing(|probe, _| drop(probe.limits.insert("open_files".into(), "32".into())));
    assert_eq!(lower, Vec::<String>::new());
}

#[test]
fn each_fault_is_found() {
    type Worsen = fn(&mut Probe, &mut Outside);
    let faults: [(&str, Worsen); 44] = [
        ("host name", |probe, _| probe.hostname = "host".into()),
        ("ids of tools", |probe, _| probe.tool_ids = "0 0 0 0 / 0 0 0 0 /".into()),
        ("ids of tools", |probe, _| probe.tool_ids.push_str(" 27")),
        ("user id map", |_, host| host.frame.uid_map = "0 0 4294967295".into()),
        ("group id map", |_, host| host.frame.gid_map.clear()),
        ("user id map inside", |probe, _| probe.uid_map = "0 0 4294967295".into()),
        ("group id map inside", |probe, _| probe.gid_map.clear()),
        ("effective capabilities", |probe, _| probe.capabilities = "000001ffffffffff".into()),
        ("effective capabilities", |probe, _| probe.capabilities.clear()),
        ("other capabilities", |probe, _| probe.other_capabilities = "0000000000000001".into()),
        ("bounding set", |probe, _| probe.bounding_set = "0000000000000100".into()),
        ("no_new_privs", |probe, _| probe.no_new_privs = false),
        ("system-call filter", |probe, _| probe.seccomp_mode = 0),
        ("new user namespaces", |probe, _| probe.nested_sandboxing = true),
        ("interfaces", |probe, _| probe.interfaces.push("eth0".into())),
        ("interfaces", |probe, _| probe.interfaces.push("eth0 (down)".into())),
        ("interfaces", |probe, _| probe.interfaces.push("tunl0".into())),
        ("routes", |probe, _| probe.routes.push("eth0".into())),
        ("landlock", |probe, _| probe.landlock_refuses = false),
        ("namespaces", |probe, _| {
            probe.namespaces.insert("net".into(), 1);
        }),
        ("namespaces", |probe, _| {
            probe.namespaces.remove("user");
        }),
        ("namespaces", |_, host| {
            host.namespaces.insert("user".into(), 2);
        }),
        ("namespaces", |_, host| {
            host.namespaces.remove("net");
        }),
        ("addresses outside", |probe, _| {
            probe.connections.insert("169.254.169.254".into(), "reachable".into());
        }),
        ("addresses outside", |probe, _| probe.connections.clear()),
        ("mounts", |probe, _| probe.mount_list.push(mount("/host", "xfs", "rw,nosuid,nodev"))),
        ("mounts", |probe, _| probe.mount_list.push(mount("/host", "ext4", "rw,nosuid,nodev"))),
        ("mounts", |probe, _| probe.mount_list.push(mount("/run", "tmpfs", "rw,nosuid,nodev"))),
        ("mounts", |probe, _| probe.mount_list[7].kind = "ext4".into()),
        ("mounts", |probe, _| drop(probe.mount_list.pop())),
        ("mounts", |_, host| host.host.open_proc.push("sysrq-trigger")),
        ("mounts", |_, host| host.host.open_proc.push("acpi")),
        ("mounts", |probe, _| probe.mount_list[5].path = "/proc/1".into()),
        ("the guest's threads", |_, host| {
            host.guest_threads.push(("000001ffffffffff".into(), "1".into()));
        }),
        ("the guest's threads", |_, host| host.guest_threads[0].1 = "0".into()),
        ("mounts", |probe, _| probe.mount_list.push(mount("/sys", "sysfs", "ro,nosuid,nodev"))),
        ("mounts", |probe, _| probe.mount_list[0].flags = "rw,nodev".into()),
        ("mounts", |probe, _| probe.mount_list[6].flags = "rw,nosuid,nodev".into()),
        ("writable", |probe, _| probe.writable.push("/etc".into())),
        ("limit on open_files", |probe, _| {
            probe.limits.insert("open_files".into(), "unlimited".into());
        }),
        ("limit on core_dump", |probe, _| {
            probe.limits.insert("core_dump".into(), "0".into());
        }),
        ("limit on core_dump", |probe, _| {
            probe.limits.insert("core_dump".into(), "unlimited".into());
        }),
        ("control groups", |_, host| host.frame.groups_of_guest = "4:memory:/\n".into()),
        ("control group's memory.max", |_, host| host.frame.group_values = vec!["max".into()]),
    ];
    for (subject, worsen) in faults {
        assert_eq!(failing(worsen), [subject]);
    }
}

#[test]
fn groups_that_cannot_be_given_up_are_nobodys() {
    let single = Claims { keeps_groups: true, ..claims() };
    let ids = "1000 1000 1000 1000 / 1000 1000 1000 1000 /";
    for (groups, holds) in
        [("", true), (" 1000", true), (" 65534 1000", true), (" 27", false), (" 65534 0", false)]
    {
        let (mut probe, outside) = sealed();
        probe.tool_ids = format!("{ids}{groups}");
        let checks = examine(&single, &probe, &outside);
        assert_eq!(checks.iter().all(|check| check.holds), holds, "{groups}");
    }
    let (mut probe, outside) = sealed();
    probe.tool_ids = "1000 1000 1000 0 / 1000 1000 1000 1000 / 65534".into();
    assert!(examine(&single, &probe, &outside).iter().any(|check| !check.holds));
}

#[test]
fn a_probe_that_says_nothing_passes_nothing() {
    let (_, outside) = sealed();
    let checks = examine(&claims(), &Probe::default(), &outside);
    let holding: Vec<_> = checks.iter().filter(|check| check.holds).map(|c| &*c.subject).collect();
    // These need no word from inside, or say that nothing bad was found.
    let expected = [
        "writable",
        "user id map",
        "group id map",
        "new user namespaces",
        "routes",
        "the guest's threads",
        "control groups",
        "control group's memory.max",
    ];
    assert_eq!(holding, expected);
}

#[test]
fn our_own_namespaces_are_known() {
    let own = own_namespaces();
    for kind in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] {
        assert!(own.contains_key(kind), "{own:?}");
    }
}
