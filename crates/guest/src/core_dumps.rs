//! Nothing inside leaves a core dump: neither as a file, nor by having the host's program for them
//! started, which runs as root of the host and reads what a hostile process hands to it.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit at which there is none. Zero would not do: where `kernel.core_pattern` names a program,
/// the kernel starts it whatever the limit is, but for this one, by which it knows a crash of that very
/// program. A file needs more than one byte.
pub(crate) const LIMIT: u64 = 1;

/// For this process and all it starts. Where a lower limit is in force that this process may not
/// raise, it stays, and [`gap`] tells what that means.
pub(crate) fn forbid() {
    let limit = Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) };
    let _ = setrlimit(Resource::Core, limit);
}

/// What still happens on a crash, in words for the report.
pub(crate) fn gap() -> Option<&'static str> {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    gap_with(&pattern, getrlimit(Resource::Core).current)
}

fn gap_with(pattern: &str, limit: Option<u64>) -> Option<&'static str> {
    match pattern.as_bytes().first() {
        Some(b'|') if limit != Some(LIMIT) => Some(
            "a crash inside starts the host's program for core dumps (kernel.core_pattern), because the \
             server's own limit on them is 0 and cannot be raised: start it with LimitCORE=1 or more",
        ),
        Some(b'@') => Some(
            "core dumps of this host go to a socket (kernel.core_pattern), and a crash inside too: no \
             limit keeps the kernel from that",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_limit_does_not_stop_is_told() {
        let program = "|/usr/lib/systemd/systemd-coredump %P";
        for (pattern, limit, is_told) in [
            ("core\n", Some(0), false),
            ("/var/crash/%p\n", None, false),
            (program, Some(LIMIT), false),
            (program, Some(0), true),
            (program, None, true),
            ("@/run/coredump.socket", Some(LIMIT), true),
        ] {
            assert_eq!(gap_with(pattern, limit).is_some(), is_told, "{pattern} {limit:?}");
        }
    }
}
