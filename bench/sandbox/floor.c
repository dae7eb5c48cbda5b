/* The floor: the least that a sandbox of this kind can cost on this kernel.
 *
 *   floor ROOTFS WHERE GROUP... -- PROGRAM ARGUMENT...
 *   floor - - GROUP... -- PROGRAM ARGUMENT...     only the groups: for a peer that sets no limits itself
 *
 * Makes namespaces of every kind, among them a user namespace with ids of its own, an overlay over the
 * idmapped image in a tmpfs at WHERE, /proc, a /dev with null, and a control group below each GROUP
 * (version 1 or 2) that it joins itself; pivots, gives up all capabilities, loads a system-call filter,
 * and runs the program as user 1000. It has no protocol, no supervisor, no record and no report, covers
 * nothing of /proc, and dies with its caller: what is measured beside it has all that on top. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_GROUPS 8
static char groups[MOST_GROUPS][512];
static const char *parents[MOST_GROUPS];
static int group_count;

static void remove_groups(void) {
    for (int i = 0; i < group_count; i++)
        for (int tries = 0; rmdir(groups[i]) != 0 && errno == EBUSY && tries < 1000; tries++)
            usleep(1000);
}

static void need(long result, const char *what) {
    if (result >= 0)
        return;
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    _exit(1);
}

static int put(const char *folder, const char *name, const char *text) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    long written = write(file, text, strlen(text));
    close(file);
    return written < 0 ? -1 : 0;
}

/* Limits as a job has them; a group takes those that its controller knows. */
static void join_group(const char *parent) {
    parents[group_count] = parent;
    char *folder = groups[group_count++];
    snprintf(folder, sizeof groups[0], "%s/floor-%d", parent, getpid());
    need(mkdir(folder, 0755), folder);
    put(folder, "memory.limit_in_bytes", "4294967296");
    put(folder, "memory.max", "4294967296");
    put(folder, "pids.max", "1104");
    put(folder, "cpu.cfs_quota_us", "200000");
    put(folder, "cpu.max", "200000 100000");
    if (put(folder, "tasks", "0") != 0)
        need(put(folder, "cgroup.procs", "0"), "join a control group");
}

static void load_filter(void) {
    static const int refused[] = {SYS_mount, SYS_umount2, SYS_ptrace, SYS_bpf, SYS_keyctl, SYS_unshare, SYS_setns,
                                  SYS_init_module, SYS_kexec_load, SYS_perf_event_open, SYS_userfaultfd,
                                  SYS_io_uring_setup, SYS_pivot_root, SYS_open_tree, SYS_move_mount, SYS_fsopen};
    enum { COUNT = sizeof refused / sizeof refused[0] };
    struct sock_filter code[COUNT + 3];
    code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < COUNT; i++)
        code[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)refused[i], COUNT - i, 0);
    code[COUNT + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[COUNT + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    struct sock_fprog program = {.len = COUNT + 3, .filter = code};
    need(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0), "load the filter");
}

static void inhabit(int image, const char *where, char **program) {
    need(setgroups(0, NULL), "setgroups");
    need(setresgid(0, 0, 0), "setresgid");
    need(setresuid(0, 0, 0), "setresuid");
    need(sethostname("floor", 5), "sethostname");
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    need(ioctl(control, SIOCSIFFLAGS, &loopback), "bring up loopback");
    need(mount("none", "/", "", MS_REC | MS_PRIVATE, ""), "separate the mounts");
    need(mount("floor", where, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=2g"), "mount the tmpfs");
    need(chdir(where), "chdir");
    need(mkdir("lower", 0755) | mkdir("upper", 0755) | mkdir("work", 0755) | mkdir("root", 0755), "mkdir");
    need(syscall(SYS_move_mount, image, "", AT_FDCWD, "lower", MOVE_MOUNT_F_EMPTY_PATH), "attach the image");
    need(mount("overlay", "root", "overlay", MS_NOSUID | MS_NODEV,
               "lowerdir=lower,upperdir=upper,workdir=work,userxattr"), "mount the overlay");
    need(mount("dev", "root/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=0755,size=64k"), "mount /dev");
    need(close(open("root/dev/null", O_CREAT | O_WRONLY, 0644)), "make /dev/null");
    need(mount("/dev/null", "root/dev/null", "", MS_BIND, ""), "mount /dev/null");
    need(mount("proc", "root/proc", "proc", MS_NOSUID | MS_NOEXEC | MS_NODEV, ""), "mount /proc");
    need(chdir("root"), "chdir");
    need(syscall(SYS_pivot_root, ".", "."), "pivot_root");
    need(umount2(".", MNT_DETACH), "let go of the host");
    need(chdir("/"), "chdir");
    for (int capability = 0; capability < 64; capability++)
        prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
    need(setresgid(1000, 1000, 1000), "setresgid");
    need(setresuid(1000, 1000, 1000), "setresuid");
    need(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    load_filter();
    execv(program[0], program);
    need(-1, program[0]);
}

static void map_ids(int pid, const char *file) {
    char path[64], map[64];
    snprintf(path, sizeof path, "/proc/%d", pid);
    snprintf(map, sizeof map, "0 %u 65536\n", 0x70000000u + ((unsigned)pid & 0xfff) * 65536u);
    need(put(path, file, map), file);
}

/* Its own group cannot be removed while this process is in it. */
static int leave_groups(int status) {
    for (int i = 0; i < group_count; i++)
        if (put(parents[i], "tasks", "0") != 0)
            put(parents[i], "cgroup.procs", "0");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int count, char **words) {
    if (count < 5)
        return 2;
    const char *rootfs = words[1], *where = words[2];
    char **next = words + 3;
    for (; *next && strcmp(*next, "--") != 0 && group_count < MOST_GROUPS; next++)
        join_group(*next);
    char **program = next + 1;
    atexit(remove_groups);
    int status;
    if (strcmp(rootfs, "-") == 0) {
        pid_t child = vfork();
        need(child, "vfork");
        if (child == 0) {
            execvp(program[0], program);
            _exit(127);
        }
        need(waitpid(child, &status, 0), "wait");
        return leave_groups(status);
    }
    int image = (int)syscall(SYS_open_tree, AT_FDCWD, rootfs, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    need(image, "open the image");
    int go[2];
    need(pipe2(go, O_CLOEXEC), "pipe");
    struct clone_args arguments = {
        .flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP,
        .exit_signal = SIGCHLD,
    };
    long child = syscall(SYS_clone3, &arguments, sizeof arguments);
    need(child, "make namespaces");
    if (child == 0) {
        char byte;
        if (read(go[0], &byte, 1) != 1)
            _exit(1);
        inhabit(image, where, program);
    }
    map_ids((int)child, "gid_map");
    map_ids((int)child, "uid_map");
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/ns/user", child);
    int namespace = open(path, O_RDONLY | O_CLOEXEC);
    struct mount_attr shifted = {.attr_set = MOUNT_ATTR_IDMAP | MOUNT_ATTR_RDONLY, .userns_fd = (unsigned)namespace};
    need(syscall(SYS_mount_setattr, image, "", AT_EMPTY_PATH, &shifted, sizeof shifted), "shift the image's owners");
    need(write(go[1], "g", 1), "go");
    need(waitpid((int)child, &status, 0), "wait");
    return leave_groups(status);
}
