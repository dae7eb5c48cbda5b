//! What a sandbox is made of: what the backend set up, what the guest finds from inside, and whether
//! the two agree.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::job::IsolationLevel;

/// The job's first finding: what is enforced, and what could not be had.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SandboxReport {
    pub backend: String,
    pub isolation: IsolationLevel,
    pub image: String,
    #[serde(default)]
    pub start: Start,
    /// What the backend set up, one short sentence each.
    pub enforced: Vec<String>,
    /// What this host could not give, one short sentence each.
    pub missing: Vec<String>,
    /// What the backend claims and how it was found to be. A sandbox of which one does not hold is
    /// not started.
    #[serde(default)]
    pub checks: Vec<Check>,
    /// What the guest saw. It comes from inside, so it is a witness and not a proof.
    pub inside: Probe,
}

/// How a sandbox came to its job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Start {
    /// It was made for the job.
    #[default]
    Cold,
    /// It was made ahead, belonged to nobody, and became the job's.
    Warm,
}

/// One claim about a sandbox, looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Check {
    /// What was looked at, such as `capabilities`.
    pub subject: String,
    pub claimed: String,
    pub found: String,
    pub holds: bool,
}

impl Check {
    /// A claim that a value is exactly this.
    pub fn equal(subject: &str, claimed: impl Into<String>, found: impl Into<String>) -> Self {
        let (claimed, found) = (claimed.into(), found.into());
        Self { subject: subject.into(), holds: claimed == found, claimed, found }
    }
}

/// What a process that is confined as every tool is finds when it looks around and tries the doors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Probe {
    /// User id that tools run under, inside.
    pub tool_uid: u32,
    /// The ids that a tool process really has: user, group, and its other groups.
    pub tool_ids: String,
    /// The id map of the sandbox, as the kernel shows it.
    pub uid_map: String,
    pub gid_map: String,
    /// Effective capabilities of a tool process, as a hexadecimal mask.
    pub capabilities: String,
    /// Permitted, inheritable and ambient capabilities together, as a hexadecimal mask.
    pub other_capabilities: String,
    /// Bounding set of a tool process, as a hexadecimal mask.
    pub bounding_set: String,
    pub no_new_privs: bool,
    /// 2 when a filter is loaded.
    pub seccomp_mode: u32,
    /// Version of Landlock in this kernel; 0 where there is none.
    pub landlock_abi: u32,
    /// Whether Landlock was the one to refuse what it forbids.
    pub landlock_refuses: bool,
    /// Whether a tool can make a user namespace of its own.
    pub nested_sandboxing: bool,
    /// The namespaces of a tool process, by kind, as the kernel numbers them.
    pub namespaces: BTreeMap<String, u64>,
    /// Network interfaces that exist inside.
    pub interfaces: Vec<String>,
    /// Routes that lead anywhere but to the sandbox itself.
    pub routes: Vec<String>,
    /// Addresses outside of the sandbox to which a connection was tried, with what came of it.
    pub connections: BTreeMap<String, String>,
    /// Kernel release that tools see.
    pub kernel: String,
    pub hostname: String,
    /// Number of mounts that are visible inside.
    pub mounts: u32,
    /// Each mount: where, of which kind, with which flags.
    pub mount_list: Vec<MountPoint>,
    /// Of the folders and kernel settings that were tried, those that a tool can write to.
    pub writable: Vec<String>,
    /// Limits of a tool process, by the kernel's names.
    pub limits: BTreeMap<String, String>,
}

/// One mount as it is seen inside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MountPoint {
    pub path: String,
    /// The kind of file system, such as `tmpfs`.
    pub kind: String,
    /// As the kernel lists them, such as `ro,nosuid,nodev`.
    pub flags: String,
}
