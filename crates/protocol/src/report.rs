//! What a sandbox is made of: what the backend set up, and what the guest finds from inside.

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

/// What the guest reads about itself and its tool processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Probe {
    /// User id that tools run under, inside.
    pub tool_uid: u32,
    /// The id map of the sandbox, as the kernel shows it.
    pub uid_map: String,
    /// Effective capabilities of a tool process, as a hexadecimal mask.
    pub capabilities: String,
    /// Bounding set of a tool process, as a hexadecimal mask.
    pub bounding_set: String,
    pub no_new_privs: bool,
    /// 2 when a filter is loaded.
    pub seccomp_mode: u32,
    /// Network interfaces that exist inside.
    pub interfaces: Vec<String>,
    /// Kernel release that tools see.
    pub kernel: String,
    pub hostname: String,
    /// Number of mounts that are visible inside.
    pub mounts: u32,
}
