//! System calls that a tool process may not make, each with its reason.
//!
//! The rest is allowed: tools are arbitrary programs. The namespaces are the wall; this takes the
//! kernel's riskiest doors out of it. Debuggers (gdb, strace) do not work inside, by intent.

use std::collections::BTreeMap;
use std::io;

use bellglass_protocol::launch::GuestConfig;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

/// The filters, ready to load in this order.
pub(super) fn filters(config: &GuestConfig) -> io::Result<[BpfProgram; 2]> {
    Ok([absent_calls(config), denied_calls(config).map_err(io::Error::other)?])
}

/// Calls that fail as if this kernel had none of them, so that libraries fall back.
///
/// Written by hand because `seccompiler` gives one filter one answer, and knows nothing of x32.
fn absent_calls(config: &GuestConfig) -> BpfProgram {
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    /// The first call that came after this list was written (`open_tree_attr`): whoever adds calls
    /// to the kernel does not know our rules. The numbers of new calls are the same on every
    /// architecture. Above them lie x86's x32 calls: the same calls by other numbers, past all rules.
    const UNKNOWN_CALLS: u32 = 467;
    // Its flags lie in memory, where no filter can see them. Libraries fall back to clone.
    let mut absent = vec![libc::SYS_clone3];
    if config.memory.is_some() {
        // Memory that lies in no process and in no folder could not be added up by the guest.
        absent.extend([libc::SYS_memfd_create, libc::SYS_shmget]);
    }
    let instruction = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let mut program = vec![instruction(LOAD_NUMBER, 0, 0, 0)];
    // Each check jumps over the checks after it and over the permission that follows them.
    let over = |checks_after: usize| checks_after as u8 + 1;
    program.push(instruction(JUMP_IF_AT_LEAST, over(absent.len()), 0, UNKNOWN_CALLS));
    for (index, call) in absent.iter().enumerate() {
        let checks_after = absent.len() - 1 - index;
        program.push(instruction(JUMP_IF_EQUAL, over(checks_after), 0, *call as u32));
    }
    program.push(instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW));
    program.push(instruction(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32));
    program
}

fn denied_calls(config: &GuestConfig) -> Result<BpfProgram, seccompiler::Error> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        always_denied().into_iter().map(|call| (call, Vec::new())).collect();
    if config.processors.is_some() {
        // The choice of processors is all that limits CPU time here, so it must stand.
        rules.insert(libc::SYS_sched_setaffinity, Vec::new());
    }
    if config.nested_sandboxing {
        // A browser's sandbox leaves the file tree by a new root once it is in its own namespace.
        rules.remove(&libc::SYS_chroot);
    }
    rules.extend(denied_by_argument(config)?);
    // A foreign architecture (i386 by `int 0x80`) has other numbers: seccompiler kills it.
    let arch: TargetArch =
        std::env::consts::ARCH.try_into().map_err(seccompiler::Error::Backend)?;
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, denied, arch)
        .map_err(seccompiler::Error::Backend)?;
    filter.try_into().map_err(seccompiler::Error::Backend)
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

fn denied_by_argument(
    config: &GuestConfig,
) -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::Error> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    /// Nobody inside needs these.
    const NEVER: [libc::c_int; 4] =
        [libc::CLONE_NEWNS, libc::CLONE_NEWCGROUP, libc::CLONE_NEWUTS, libc::CLONE_NEWIPC];
    /// A browser's own sandbox is made of these, and a job may ask that it can be.
    const FOR_NESTED_SANDBOXES: [libc::c_int; 3] =
        [libc::CLONE_NEWUSER, libc::CLONE_NEWPID, libc::CLONE_NEWNET];
    const NEW_TIME_NAMESPACE: u64 = 0x80;
    const QUERY_PERSONALITY: u64 = 0xffff_ffff;
    // TIOCSTI and TIOCLINUX, which C libraries declare with different widths.
    const TYPE_INTO_TERMINAL: u64 = 0x5412;
    const PASTE_INTO_CONSOLE: u64 = 0x541c;
    // The rest of a socket's type are flags.
    const SOCKET_KIND: u64 = 0xf;
    const SOCK_DCCP: libc::c_int = 6;
    const SOCK_PACKET: libc::c_int = 10;

    // A user namespace of its own makes a process root over a large part of the kernel.
    let mut clone = Vec::new();
    let nested: &[libc::c_int] = if config.nested_sandboxing { &[] } else { &FOR_NESTED_SANDBOXES };
    for flag in NEVER.iter().chain(nested) {
        let flag = *flag as u64;
        clone.push(rule([(0, MaskedEq(flag), flag)])?);
    }
    let mut unshare = clone.clone();
    // In clone these bits are the exit signal, so only unshare can mean the namespace.
    unshare.push(rule([(0, MaskedEq(NEW_TIME_NAMESPACE), NEW_TIME_NAMESPACE)])?);

    let family = |family: libc::c_int| (0, Ne, family as u64);
    let mut socket = vec![
        // Rare address families (packet, vsock, alg, tipc, ...) are where the kernel's bugs are.
        rule([
            family(libc::AF_UNIX),
            family(libc::AF_INET),
            family(libc::AF_INET6),
            family(libc::AF_NETLINK),
        ])?,
        // Of netlink, programs need the list of interfaces and the list of sockets.
        rule([
            (0, Eq, libc::AF_NETLINK as u64),
            (2, Ne, libc::NETLINK_ROUTE as u64),
            (2, Ne, libc::NETLINK_SOCK_DIAG as u64),
        ])?,
    ];
    // Other kinds than streams and datagrams, and other protocols for streams (SCTP, DCCP, ...):
    // for these the kernel would load modules of its own accord.
    for family in [libc::AF_INET, libc::AF_INET6] {
        for kind in [libc::SOCK_RAW, libc::SOCK_RDM, libc::SOCK_SEQPACKET, SOCK_DCCP, SOCK_PACKET] {
            socket.push(rule([(0, Eq, family as u64), (1, MaskedEq(SOCKET_KIND), kind as u64)])?);
        }
        socket.push(rule([
            (0, Eq, family as u64),
            (1, MaskedEq(SOCKET_KIND), libc::SOCK_STREAM as u64),
            (2, Ne, 0),
            (2, Ne, libc::IPPROTO_TCP as u64),
            (2, Ne, libc::IPPROTO_MPTCP as u64),
        ])?);
    }
    // Other personalities switch protections off, such as the random layout of memory.
    let personality = vec![rule([(0, Ne, 0), (0, Ne, QUERY_PERSONALITY)])?];
    // These type into the terminal of somebody else.
    let ioctl = vec![rule([(1, Eq, TYPE_INTO_TERMINAL)])?, rule([(1, Eq, PASTE_INTO_CONSOLE)])?];

    Ok(BTreeMap::from([
        (libc::SYS_clone, clone),
        (libc::SYS_unshare, unshare),
        (libc::SYS_socket, socket),
        (libc::SYS_socketpair, vec![rule([family(libc::AF_UNIX)])?]),
        (libc::SYS_personality, personality),
        (libc::SYS_ioctl, ioctl),
    ]))
}

/// All of these arguments are 32 bits wide in the kernel, so higher bits must not matter.
fn rule<const N: usize>(
    conditions: [(u8, SeccompCmpOp, u64); N],
) -> Result<SeccompRule, seccompiler::Error> {
    let conditions = conditions
        .into_iter()
        .map(|(argument, operation, value)| {
            SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operation, value)
        })
        .collect::<Result<Vec<_>, _>>()
        .map_err(seccompiler::Error::Backend)?;
    SeccompRule::new(conditions).map_err(seccompiler::Error::Backend)
}
