//! What this host can and cannot give, found by trying, each with what to do about it.

mod checks;

pub use checks::check_host;

use serde::Serialize;

/// One finding about the host.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What was looked at, such as `user namespaces`.
    pub subject: &'static str,
    pub verdict: Verdict,
    /// What was found.
    pub detail: String,
    /// What to do about it, where something can be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// All there.
    Good,
    /// Works, but less well or with less isolation.
    Limited,
    /// Not there, and something optional does not work.
    Absent,
    /// Not there, and sandboxes do not work.
    Missing,
}

impl Finding {
    pub fn good(subject: &'static str, detail: impl Into<String>) -> Self {
        Self { subject, verdict: Verdict::Good, detail: detail.into(), fix: None }
    }

    pub fn other(
        subject: &'static str,
        verdict: Verdict,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { subject, verdict, detail: detail.into(), fix: Some(fix.into()) }
    }
}

/// The version of Landlock in this kernel; 0 where there is none.
pub(crate) fn landlock_version() -> u32 {
    // SAFETY: with a null pointer, size 0 and the version flag the call only returns a number.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, 1u32)
    };
    u32::try_from(version).unwrap_or(0)
}

/// Whether a program of this name can be started.
pub fn finds_program(name: &str) -> bool {
    use std::process::{Command, Stdio};
    let quiet = || Stdio::null();
    let mut command = Command::new(name);
    command.arg("--version").stdin(quiet()).stdout(quiet()).stderr(quiet()).status().is_ok()
}
