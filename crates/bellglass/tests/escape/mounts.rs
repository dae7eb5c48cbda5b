//! The file tree: it is finished when tools run, and nothing of the host is in it.

use crate::attempt::assert_refused_to_all;

#[tokio::test]
async fn mounting() {
    const BIND: &str = "0x1000";
    let bind = format!("call('mount', b'/proc/1/root', b'/tmp', None, {BIND}, None)");
    let attempts = [
        ("call('mount', b'none', b'/tmp', b'tmpfs', 0, None)", "EPERM"),
        ("call('mount', b'none', b'/tmp', b'proc', 0, None)", "EPERM"),
        ("call('mount', b'none', b'/tmp', b'sysfs', 0, None)", "EPERM"),
        ("call('mount', b'none', b'/tmp', b'debugfs', 0, None)", "EPERM"),
        ("call('mount', b'/dev/sda', b'/tmp', b'ext4', 0, None)", "EPERM"),
        (bind.as_str(), "EPERM"),
        // Uncovering what is covered, and making writable what is not.
        ("call('mount', b'none', b'/proc/sys', None, 0x1020, None)", "EPERM"),
        ("call('mount', b'none', b'/', None, 0x1020, None)", "EPERM"),
        ("call('umount2', b'/proc/kallsyms', 2)", "EPERM"),
        ("call('umount2', b'/proc/sys', 2)", "EPERM"),
        ("call('umount2', b'/', 2)", "EPERM"),
    ];
    assert_refused_to_all(&attempts).await;
}

#[tokio::test]
async fn the_newer_ways_to_mount() {
    let attempts = [
        ("call('fsopen', b'tmpfs', 0)", "EPERM"),
        ("call('fspick', -100, b'/', 0)", "EPERM"),
        ("call('fsconfig', 0, 6, None, None, 0)", "EPERM"),
        ("call('fsmount', 0, 0, 0)", "EPERM"),
        ("call('open_tree', -100, b'/', 1)", "EPERM"),
        ("call('open_tree', -100, b'/', 0x8001)", "EPERM"),
        ("call('move_mount', -100, b'/proc', -100, b'/tmp', 0)", "EPERM"),
        ("call('mount_setattr', -100, b'/', 0, bytes(32), 32)", "EPERM"),
        // Newer than the list of what is denied, so it is as if the kernel did not have it.
        ("call('open_tree_attr', -100, b'/', 1, bytes(32), 32)", "ENOSYS"),
        ("call('file_setattr', -100, b'/workspace', bytes(24), 24, 0)", "ENOSYS"),
    ];
    assert_refused_to_all(&attempts).await;
}

#[tokio::test]
async fn overlay_tricks() {
    let over = "call('mount', b'o', b'/tmp', b'overlay', 0, \
                b'lowerdir=/etc,upperdir=/workspace/u,workdir=/workspace/w')";
    // What is asked after a mark is known to be refused, or to have been kept by a kernel that gives it another name.
    let mark = |path: &str, name: &str, value: &str| {
        format!(
            r"
version = [int(part) for part in re.findall('[0-9]+', os.uname().release)[:2]]
try: os.setxattr('{path}', 'user.overlay.{name}', {value})
except OSError as error: assert error.errno in (errno.EPERM, errno.EOPNOTSUPP), error
else: assert version >= [6, 7], version"
        )
    };
    let redirect = format!(
        "os.mkdir('/home/agent/a')\n{}\nos.stat('/home/agent/a/passwd')",
        mark("/home/agent/a", "redirect", "b'/etc'")
    );
    let metacopy = format!(
        "open('/home/agent/b', 'w').close()\n{}\nread('/home/agent/b')",
        mark("/home/agent/b", "metacopy", "b''")
    );
    let attempts = [
        (over, "EPERM"),
        // Marks by which overlayfs itself says where a folder's content really lies. The kernel refuses them, or,
        // since Linux 6.7, keeps them under another name; either way the overlay follows none.
        (redirect.as_str(), "ENOENT"),
        (metacopy.as_str(), "ENODATA"),
        (
            r"
options = next(line.split(' - ')[1] for line in open('/proc/self/mountinfo') if line.split()[4] == '/')
follows = [each for each in ('redirect_dir=on', 'redirect_dir=follow', 'metacopy=on') if each in options]
if 'userxattr' in options and not follows: raise OSError(errno.ENOENT, 'none')
options
",
            "ENOENT",
        ),
        ("os.setxattr('/home/agent', 'trusted.overlay.redirect', b'/etc')", "EPERM"),
        // A file that stands for one that was deleted below.
        ("os.mknod('/home/agent/whiteout', 0o20666, 0)", "EPERM|EACCES"),
        // The layers themselves are nowhere to be seen.
        ("os.listdir('/tmp/upper')", "ENOENT"),
        ("os.listdir('/upper')", "ENOENT"),
        ("os.listdir('/tmp/lower')", "ENOENT"),
        // The image below is not written to, whoever the owner seems to be.
        ("write('/usr/bin/bash', b'x')", "EACCES|EROFS|ETXTBSY"),
        ("write('/etc/passwd', b'x')", "EACCES|EROFS"),
        ("os.rename('/usr/bin/env', '/usr/bin/env2')", "EACCES|EROFS"),
    ];
    assert_refused_to_all(&attempts).await;
}

#[tokio::test]
async fn idmapped_mounts() {
    let own = "mapped = struct.pack('<QQQQ', 0x100000, 0, 0, os.open('/proc/self/ns/user', os.O_RDONLY))\n\
               call('mount_setattr', -100, b'/workspace', 0x1000, mapped, 32)";
    let attempts = [
        (own, "EPERM"),
        ("os.open('/proc/1/ns/user', os.O_RDONLY)", "EACCES|EPERM"),
        ("write('/proc/self/uid_map', b'0 0 1')", "EPERM|EACCES"),
        ("write('/proc/self/gid_map', b'0 0 1')", "EPERM|EACCES"),
        ("write('/proc/self/setgroups', b'allow')", "EPERM|EACCES"),
        // With a single id there is no other to give it to.
        ("os.chown('/workspace', 0, 0)", "EPERM|EINVAL"),
        ("os.chown('/workspace', 65536, 65536)", "EINVAL|EPERM"),
    ];
    assert_refused_to_all(&attempts).await;
}

#[tokio::test]
async fn pivoting_back() {
    let attempts = [
        ("call('pivot_root', b'.', b'.')", "EPERM"),
        ("call('pivot_root', b'/workspace', b'/workspace')", "EPERM"),
        // Past the top of the tree there is only the top again.
        (
            r"
os.chdir('/')
for _ in range(50): os.chdir('..')
here, root = os.stat('.'), os.stat('/')
if (here.st_dev, here.st_ino) == (root.st_dev, root.st_ino): os.stat('/not-there')
os.getcwd()
",
            "ENOENT",
        ),
        ("os.listdir('/proc/1/root')", "EACCES|EPERM"),
        ("os.listdir('/proc/1/cwd')", "EACCES|EPERM"),
        ("os.listdir('/proc/1/task/1/root')", "EACCES|EPERM"),
        ("os.listdir('/oldroot')", "ENOENT"),
        ("call('name_to_handle_at', -100, b'/', bytes(128), bytes(8), 0)", "EPERM"),
        // The handle of inode 2: the root of most file systems, and so of the host's.
        (
            "call('open_by_handle_at', os.open('/', os.O_RDONLY), struct.pack('<IiII', 8, 1, 2, 0), 0)",
            "EPERM",
        ),
    ];
    assert_refused_to_all(&attempts).await;
}

#[tokio::test]
async fn chroot_escape() {
    let attempts = [
        ("os.chroot('/workspace')", "EPERM"),
        (
            "os.mkdir('/workspace/a')\nhere = os.open('/', os.O_RDONLY)\nos.chroot('/workspace/a')",
            "EPERM",
        ),
        ("run(compiled('int main(){return chroot(\"/tmp\") ? 9 : 0;}'))", "EREMOTEIO"),
    ];
    assert_refused_to_all(&attempts).await;
}

#[tokio::test]
async fn hard_links_to_what_is_not_ours() {
    let attempts = [
        ("os.link('/etc/passwd', '/workspace/x')", "EXDEV|EPERM"),
        ("os.link('/usr/bin/python3', '/home/agent/x')", "EPERM|EACCES|EXDEV"),
        ("os.link('/proc/1/environ', '/workspace/x')", "EXDEV|EPERM|EACCES"),
        ("open('/tmp/f', 'w').close()\nos.link('/tmp/f', '/workspace/x')", "EXDEV"),
        (
            "call('linkat', os.open('/bin/true', 0o10000000), b'', -100, b'/workspace/x', 0x1000)",
            "ENOENT|EPERM|EXDEV",
        ),
    ];
    assert_refused_to_all(&attempts).await;
}
