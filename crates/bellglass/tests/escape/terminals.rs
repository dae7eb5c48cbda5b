//! Typing into terminals of others.

use crate::attempt::assert_refused_to_all;

#[tokio::test]
async fn typing_into_a_terminal() {
    let attempts = [
        ("fcntl.ioctl(0, 0x5412, b'x')", "EPERM"),
        ("ours, theirs = pty.openpty()\nfcntl.ioctl(theirs, 0x5412, b'x')", "EPERM"),
        // The kernel looks at 32 bits of the request; so must the filter.
        ("ours, theirs = pty.openpty()\ncall('ioctl', theirs, 0x100005412, b'x')", "EPERM"),
        ("os.open('/dev/tty', os.O_RDWR)", "ENXIO|ENOENT"),
        ("os.open('/dev/console', os.O_RDWR)", "ENOENT"),
        ("os.open('/dev/tty1', os.O_RDWR)", "ENOENT"),
    ];
    assert_refused_to_all(&attempts).await;
}

#[tokio::test]
async fn pasting_into_a_console() {
    let attempts = [
        ("fcntl.ioctl(0, 0x541c, b'\\x03')", "EPERM"),
        ("ours, theirs = pty.openpty()\nfcntl.ioctl(theirs, 0x541c, b'\\x02')", "EPERM"),
        ("ours, theirs = pty.openpty()\ncall('ioctl', theirs, 0x10000541c, b'\\x03')", "EPERM"),
    ];
    assert_refused_to_all(&attempts).await;
}

#[tokio::test]
async fn other_code_of_the_kernel_behind_a_terminal() {
    let modem = "struct.pack('i', 21)";
    let attempts = [
        (format!("ours, theirs = pty.openpty()\nfcntl.ioctl(theirs, 0x5423, {modem})"), "EPERM"),
        (format!("ours, theirs = pty.openpty()\nfcntl.ioctl(ours, 0x5423, {modem})"), "EPERM"),
        (
            format!("ours, theirs = pty.openpty()\ncall('ioctl', theirs, 0x100005423, {modem})"),
            "EPERM",
        ),
    ];
    let attempts: Vec<_> = attempts.iter().map(|(code, error)| (code.as_str(), *error)).collect();
    assert_refused_to_all(&attempts).await;
}
