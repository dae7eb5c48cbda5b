//! The machine's clock, which there is only one of.

use std::time::{Duration, SystemTime};

use crate::attempt::assert_refused_to_all;

#[tokio::test]
async fn setting_the_clock() {
    let before = SystemTime::now();
    let attempts = [
        ("time.clock_settime(time.CLOCK_REALTIME, 1e9)", "EPERM"),
        ("call('settimeofday', struct.pack('<QQ', 10**9, 0), None)", "EPERM"),
        ("call('adjtimex', struct.pack('<I', 1) + bytes(252))", "EPERM"),
        ("call('clock_adjtime', 0, struct.pack('<I', 1) + bytes(252))", "EPERM"),
        ("os.open('/dev/rtc', os.O_RDWR)", "ENOENT"),
        ("os.open('/dev/rtc0', os.O_RDWR)", "ENOENT"),
        ("os.open('/dev/ptp0', os.O_RDWR)", "ENOENT"),
    ];
    assert_refused_to_all(&attempts).await;
    assert!(before.elapsed().is_ok_and(|time| time < Duration::from_secs(3600)));
}

#[tokio::test]
async fn time_namespaces() {
    let attempts = [
        ("call('unshare', 0x80)", "EPERM"),
        ("write('/proc/self/timens_offsets', b'monotonic 1000 0')", "EPERM|EACCES|ENOENT"),
        ("call('setns', os.open('/proc/self/ns/time', os.O_RDONLY), 0x80)", "EPERM|ENOENT"),
        ("call('setns', os.open('/proc/self/ns/time_for_children', os.O_RDONLY), 0)", "EPERM"),
    ];
    assert_refused_to_all(&attempts).await;
}
