//! System calls that a tool process may not make, each with its reason.
//!
//! The rest is allowed: tools are arbitrary programs. The namespaces are the wall; this takes the
//! kernel's riskiest doors out of it. Debuggers (gdb, strace) do not work inside, by intent.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use bellglass_protocol::launch::GuestConfig;

use super::bpf::{Condition, Program, Rule, Verdict, assemble};

/// The first call that came after this list was written (`open_tree_attr`): whoever adds calls to the
/// kernel does not know our rules. The numbers of new calls are the same on every architecture. Above
/// them lie x86's x32 calls: the same calls by other numbers, past all rules.
const UNKNOWN_CALLS: u32 = 467;

/// Numbers that this architecture had not given to any call. New ones that only it has come here.
#[cfg(target_arch = "x86_64")]
const GAP: std::ops::Range<i64> = 335..424;
#[cfg(target_arch = "aarch64")]
const GAP: std::ops::Range<i64> = 295..424;

/// What of a sandbox makes a difference to its filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Needs {
    /// The choice of processors is all that limits CPU time.
    processors_are_chosen: bool,
    /// The guest adds up the sandbox's memory.
    memory_is_counted: bool,
    nested_sandboxing: bool,
}

impl Needs {
    fn of(config: &GuestConfig) -> Self {
        Self {
            processors_are_chosen: config.processors.is_some(),
            memory_is_counted: config.memory.is_some(),
            nested_sandboxing: config.nested_sandboxing,
        }
    }
}

/// The filter of most sandboxes, if somebody had the time to make it.
static USUAL: OnceLock<Program> = OnceLock::new();

/// Makes the filter of most sandboxes before there is one.
pub(crate) fn make_ahead() {
    USUAL.get_or_init(|| assembled(Needs::default(), &[]));
}

/// The filter, ready to load. `gaps` are calls that this kernel must not be asked, and how they fail.
pub(super) fn filter(config: &GuestConfig, gaps: &[(i64, i32)]) -> Program {
    let needs = Needs::of(config);
    let made = USUAL.get().filter(|_| needs == Needs::default() && gaps.is_empty());
    made.cloned().unwrap_or_else(|| assembled(needs, gaps))
}

fn assembled(needs: Needs, gaps: &[(i64, i32)]) -> Program {
    let refused = |errno| move |call: i64| (call, Verdict::Refuse(errno));
    let mut verdicts: BTreeMap<i64, Verdict> =
        always_denied().into_iter().map(refused(libc::EPERM)).collect();
    if needs.processors_are_chosen {
        // The choice must stand.
        verdicts.insert(libc::SYS_sched_setaffinity, Verdict::Refuse(libc::EPERM));
    }
    if needs.nested_sandboxing {
        // A browser's sandbox leaves the file tree by a new root once it is in its own namespace.
        verdicts.remove(&libc::SYS_chroot);
    }
    verdicts.extend(absent(needs).into_iter().map(refused(libc::ENOSYS)));
    let by_argument = denied_by_argument(needs).into_iter();
    verdicts.extend(by_argument.map(|(call, rules)| (call, Verdict::RefuseIf(rules))));
    let ignored = ignored_by_argument().into_iter();
    verdicts.extend(ignored.map(|(call, rules)| (call, Verdict::IgnoreIf(rules))));
    verdicts.extend(gaps.iter().map(|(call, errno)| (*call, Verdict::Refuse(*errno))));
    let verdicts = verdicts.into_iter().map(|(call, verdict)| (call as u32, verdict)).collect();
    assemble(&verdicts, UNKNOWN_CALLS)
}

/// Whether the filter leaves the guest all that it needs itself: memory without a file for what a
/// program is to read, and the choice of processors for its tools.
pub(super) fn spares_the_guest(config: &GuestConfig) -> bool {
    config.memory.is_none() && config.processors.is_none()
}

/// Calls that fail as if this kernel had none of them, so that libraries fall back.
fn absent(needs: Needs) -> Vec<i64> {
    // Its flags lie in memory, where no filter can see them. Libraries fall back to clone.
    let mut absent = vec![libc::SYS_clone3];
    absent.extend(GAP);
    if needs.memory_is_counted {
        // Memory that lies in no process and in no folder could not be added up by the guest: the
        // kernel's own for sets of semaphores and queues of messages neither.
        absent.extend([libc::SYS_memfd_create, libc::SYS_shmget]);
        absent.extend([libc::SYS_semget, libc::SYS_msgget]);
    }
    absent
}

fn always_denied() -> Vec<i64> {
    #[allow(unused_mut, reason = "some architectures have nothing to add")]
    let mut calls = vec![
        // Mounts make the file tree; it is finished when tools run.
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_move_mount,
        libc::SYS_open_tree,
        libc::SYS_fsopen,
        libc::SYS_fsmount,
        libc::SYS_fsconfig,
        libc::SYS_fspick,
        libc::SYS_mount_setattr,
        // A new root confuses whatever confines by paths.
        libc::SYS_chroot,
        // Other namespaces are nobody's business inside.
        libc::SYS_setns,
        // Reading and steering other processes: the guest is one of them.
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_kcmp,
        libc::SYS_pidfd_getfd,
        // Programs for the kernel, and its counters: a long history of holes.
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        // Stops the kernel in the middle of a copy, which makes races in it easy to win.
        libc::SYS_userfaultfd,
        // Does what other calls do without making them, so no filter sees it.
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
        // The keyring is shared by user id, not by namespace.
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_request_key,
        // Kernel code, another kernel, and the machine's power.
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_delete_module,
        libc::SYS_kexec_load,
        libc::SYS_kexec_file_load,
        libc::SYS_reboot,
        // Belong to the administration of the whole machine.
        libc::SYS_swapon,
        libc::SYS_swapoff,
        libc::SYS_acct,
        libc::SYS_quotactl,
        libc::SYS_quotactl_fd,
        libc::SYS_syslog,
        libc::SYS_vhangup,
        libc::SYS_sethostname,
        libc::SYS_setdomainname,
        // Handles reach files past every mount and every path.
        libc::SYS_open_by_handle_at,
        libc::SYS_name_to_handle_at,
        // There is one clock for all.
        libc::SYS_settimeofday,
        libc::SYS_clock_settime,
        libc::SYS_adjtimex,
        libc::SYS_clock_adjtime,
        // Watches whole file systems, not just what is visible inside.
        libc::SYS_fanotify_init,
        // Leftovers without a use, or without an implementation.
        libc::SYS_nfsservctl,
        libc::SYS_lookup_dcookie,
        // Memory that nobody else can read, not even to look for an attack.
        libc::SYS_memfd_secret,
    ];
    #[cfg(target_arch = "x86_64")]
    calls.extend([
        // Direct access to the hardware's ports.
        libc::SYS_iopl,
        libc::SYS_ioperm,
        // 16-bit code segments: rarely used, rarely tested.
        libc::SYS_modify_ldt,
    ]);
    calls
}

fn denied_by_argument(needs: Needs) -> BTreeMap<i64, Vec<Rule>> {
    /// Nobody inside needs these.
    const NEVER: [libc::c_int; 4] =
        [libc::CLONE_NEWNS, libc::CLONE_NEWCGROUP, libc::CLONE_NEWUTS, libc::CLONE_NEWIPC];
    /// A browser's own sandbox is made of these, and a job may ask that it can be.
    const FOR_NESTED_SANDBOXES: [libc::c_int; 3] =
        [libc::CLONE_NEWUSER, libc::CLONE_NEWPID, libc::CLONE_NEWNET];
    const NEW_TIME_NAMESPACE: u32 = 0x80;
    const QUERY_PERSONALITY: u32 = 0xffff_ffff;
    // TIOCSTI and TIOCLINUX, which C libraries declare with different widths.
    const TYPE_INTO_TERMINAL: u32 = 0x5412;
    const PASTE_INTO_CONSOLE: u32 = 0x541c;
    // TIOCSETD.
    const SET_LINE_DISCIPLINE: u32 = 0x5423;
    // SIOCGIFBR and SIOCSIFBR, SIOCBRADDBR and SIOCBRDELBR; SIOCADDDLCI and SIOCDELDLCI; SIOCGIFVLAN and
    // SIOCSIFVLAN.
    const BRIDGES_AND_TAGS: [u32; 8] =
        [0x8940, 0x8941, 0x89a0, 0x89a1, 0x8980, 0x8981, 0x8982, 0x8983];
    // SHM_HUGETLB.
    const HUGE_SEGMENT: u32 = 0o4000;
    // The rest of a socket's type are flags.
    const SOCKET_KIND: u32 = 0xf;
    // The first of the options by which each of the old packet filters is changed and read.
    const IP_TABLES: libc::c_int = 64;
    const ARP_TABLES: libc::c_int = 96;
    const BRIDGE_TABLES: libc::c_int = 128;

    let is = |argument, value: libc::c_int| Condition::Is { argument, value: value as u32 };
    let is_not = |argument, value: libc::c_int| Condition::IsNot { argument, value: value as u32 };
    let has_flag = |argument, flag: u32| Condition::HasAnyOf { argument, mask: flag };

    // A user namespace of its own makes a process root over a large part of the kernel.
    let nested: &[libc::c_int] = if needs.nested_sandboxing { &[] } else { &FOR_NESTED_SANDBOXES };
    let namespaces = NEVER.iter().chain(nested).fold(0, |all, flag| all | *flag as u32);
    let clone = vec![vec![has_flag(0, namespaces)]];
    // In clone these bits are the exit signal, so only unshare can mean the namespace.
    let unshare = vec![vec![has_flag(0, namespaces | NEW_TIME_NAMESPACE)]];

    let mut socket = vec![
        // Rare address families (packet, vsock, alg, tipc, ...) are where the kernel's bugs are.
        vec![
            is_not(0, libc::AF_UNIX),
            is_not(0, libc::AF_INET),
            is_not(0, libc::AF_INET6),
            is_not(0, libc::AF_NETLINK),
        ],
        // Of netlink, programs need the list of interfaces and the list of sockets.
        vec![
            is(0, libc::AF_NETLINK),
            is_not(2, libc::NETLINK_ROUTE),
            is_not(2, libc::NETLINK_SOCK_DIAG),
        ],
    ];
    if needs.nested_sandboxing {
        // Root of a network of its own, such as a nested sandbox makes, could else have the kernel make
        // devices, queues and classifiers there: code with many holes, and modules that it loads for them.
        // Programs are left without the list of interfaces.
        socket.push(vec![is(0, libc::AF_NETLINK), is(2, libc::NETLINK_ROUTE)]);
    }
    // Other kinds than streams and datagrams, and other protocols for these (SCTP, DCCP, L2TP, ...):
    // for them the kernel would load modules of its own accord.
    let (mask, argument) = (SOCKET_KIND, 1);
    let is_kind = |kind: libc::c_int| Condition::Bits { argument, mask, value: kind as u32 };
    let is_not_kind =
        |kind: libc::c_int| Condition::BitsAreNot { argument, mask, value: kind as u32 };
    let of_internet = [is_not(0, libc::AF_UNIX), is_not(0, libc::AF_NETLINK)];
    let rules_for_kinds: [&[Condition]; 3] = [
        &[is_not_kind(libc::SOCK_STREAM), is_not_kind(libc::SOCK_DGRAM)],
        &[
            is_kind(libc::SOCK_STREAM),
            is_not(2, 0),
            is_not(2, libc::IPPROTO_TCP),
            is_not(2, libc::IPPROTO_MPTCP),
        ],
        &[
            is_kind(libc::SOCK_DGRAM),
            is_not(2, 0),
            is_not(2, libc::IPPROTO_UDP),
            is_not(2, libc::IPPROTO_ICMP),
            is_not(2, libc::IPPROTO_ICMPV6),
        ],
    ];
    socket.extend(rules_for_kinds.map(|rule| [&of_internet, rule].concat()));
    // Other personalities switch protections off, such as the random layout of memory.
    let other = |value| Condition::IsNot { argument: 0, value };
    let personality = vec![vec![other(0), other(QUERY_PERSONALITY)]];
    // Two type into the terminal of somebody else; the third puts seldom used code of the kernel, such as that
    // of modems, behind a terminal. For the others, which make bridges and the like, the kernel loads modules
    // before it asks who wants them.
    let request = |value: u32| vec![Condition::Is { argument: 1, value }];
    let ioctl = [TYPE_INTO_TERMINAL, PASTE_INTO_CONSOLE, SET_LINE_DISCIPLINE]
        .into_iter()
        .chain(BRIDGES_AND_TAGS)
        .map(request)
        .collect();

    // The old tables of packet filters, which are no use on loopback and had many holes. Root of a user
    // namespace, such as a nested sandbox makes, could else replace them (ip, arp and bridge) and look at
    // them, which loads modules. Each has a block of options; those of IPv6 lie around two of its own.
    let block = |level, first: libc::c_int, count: u32| {
        let options = Condition::Bits { argument: 2, mask: !(count - 1), value: first as u32 };
        vec![is(1, level), options]
    };
    let packet_filters: Vec<Rule> = vec![
        block(libc::IPPROTO_IP, IP_TABLES, 4),
        block(libc::IPPROTO_IPV6, IP_TABLES, 2),
        block(libc::IPPROTO_IPV6, IP_TABLES + 4, 2),
        block(libc::IPPROTO_IP, ARP_TABLES, 4),
        block(libc::IPPROTO_IP, BRIDGE_TABLES, 4),
    ];

    // Huge pages are counted by no limit on memory. They are the host's, which set them aside for somebody else.
    let mut mmap = vec![vec![has_flag(3, libc::MAP_HUGETLB as u32)]];
    let huge_file = vec![vec![has_flag(1, libc::MFD_HUGETLB)]];
    let huge_segment = vec![vec![has_flag(2, HUGE_SEGMENT)]];

    let mut rules = BTreeMap::from([
        (libc::SYS_setsockopt, packet_filters.clone()),
        (libc::SYS_getsockopt, packet_filters),
        (libc::SYS_clone, clone),
        (libc::SYS_unshare, unshare),
        (libc::SYS_socket, socket),
        (libc::SYS_socketpair, vec![vec![is_not(0, libc::AF_UNIX)]]),
        (libc::SYS_personality, personality),
        (libc::SYS_ioctl, ioctl),
    ]);
    if needs.memory_is_counted {
        // Memory that several processes share and no file holds could not be added up by the guest:
        // it stays when it is unmapped but for one page.
        let shared = [libc::MAP_SHARED, libc::MAP_ANONYMOUS];
        mmap.push(shared.map(|flag| has_flag(3, flag as u32)).into());
    } else {
        rules.extend([(libc::SYS_memfd_create, huge_file), (libc::SYS_shmget, huge_segment)]);
    }
    rules.insert(libc::SYS_mmap, mmap);
    rules
}

/// The limit on core dumps stands as it is: with a lower one the kernel would start the host's program
/// for them. It can be read. Programs that keep secrets, such as ssh-agent, set it to zero and give up if
/// they cannot; they are left to believe it, since there is no core dump either way.
fn ignored_by_argument() -> [(i64, Vec<Rule>); 2] {
    #[allow(clippy::unnecessary_cast, reason = "musl has a signed number here")]
    let core_dumps = |argument| Condition::Is { argument, value: libc::RLIMIT_CORE as u32 };
    let new_limits = 2;
    [
        (libc::SYS_setrlimit, vec![vec![core_dumps(0)]]),
        (
            libc::SYS_prlimit64,
            vec![
                vec![core_dumps(1), Condition::IsNot { argument: new_limits, value: 0 }],
                vec![core_dumps(1), Condition::HighIsNot { argument: new_limits, value: 0 }],
            ],
        ),
    ]
}
