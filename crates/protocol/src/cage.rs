//! What stands in every cage: for whoever builds one, and for whoever checks what was built.

/// The folder that tools work in.
pub const WORKSPACE: &str = "/workspace";

/// The guest's own folder, which the tools may use as it does.
pub const GUEST_FOLDER: &str = "/tmp/.bellglass";

/// Where the desktop's VNC server takes connections.
pub const DESKTOP_SOCKET: &str = "/tmp/.bellglass/desktop/rfb";

/// Devices that hold no state and lead nowhere.
pub const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Files of /proc that tell about or act on the whole machine. `/dev/null` lies on them.
pub const COVERED_FILES: [&str; 10] = [
    "kcore",         // the kernel's memory
    "keys",          // other users' keyrings
    "latency_stats", // what other processes wait for
    "timer_list",    // kernel addresses
    "timer_stats",   // what other processes do
    "sched_debug",   // names of other processes
    "sysrq-trigger", // reboots the machine
    "kallsyms",      // kernel addresses
    "interrupts",    // when others press keys or get packets
    "cmdline",       // how the host was booted
];

/// Folders of /proc that tell about hardware. Empty ones lie on them.
pub const COVERED_FOLDERS: [&str; 3] = ["acpi", "scsi", "asound"];

/// Folders of /proc through which the kernel is configured. They are read-only.
pub const READ_ONLY_FOLDERS: [&str; 4] = ["sys", "bus", "fs", "irq"];

/// The kinds of namespaces, by their names below `/proc/PID/ns`. A kernel may have fewer.
pub const NAMESPACES: [&str; 8] = ["cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"];

/// Devices that some kernels put into every new network, switched off and not to be removed: the ends of tunnels
/// that nobody has made.
pub const UNUSED_TUNNELS: [&str; 9] =
    ["tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"];

/// Follows the name of a network device that is switched off. No name has a space in it.
pub const SWITCHED_OFF: &str = " (down)";

/// The number of a namespace in the target of such a name: `mnt:[4026531840]`.
pub fn namespace_number(link: &str) -> Option<u64> {
    link.split_once(":[")?.1.strip_suffix(']')?.parse().ok()
}

/// Capabilities, valid only inside the sandbox's user namespace, that the guest needs.
pub const GUEST_CAPABILITIES: [u32; 4] = [
    5, // CAP_KILL: end processes of the tool user
    6, // CAP_SETGID: become the tool user's group
    7, // CAP_SETUID: become the tool user
    8, // CAP_SETPCAP: empty the bounding set of tools
];

/// The most data that one process may have where nobody but the guest adds up what all of them have:
/// it looks again and again, and this keeps one from running away in between.
pub fn most_data_of_one(room: u64) -> u64 {
    room.saturating_add(room / 4)
}
