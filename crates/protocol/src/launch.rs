//! What the backend tells the launcher: how to build one cage and the guest that lives in it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::quantity::ByteSize;

/// The whole order for one sandbox of the namespace backend.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaunchOrder {
    /// The sandbox's name; becomes its host name.
    pub name: String,
    /// Folder that holds the image's root file system.
    pub rootfs: String,
    /// Path of the Unix socket on which the guest takes the wire.
    pub wire: String,
    pub ids: IdMapping,
    /// Files that take a process into the sandbox's control groups when `0` is written to them.
    pub cgroup_joins: Vec<String>,
    /// Room for everything that is written inside.
    pub disk: ByteSize,
    /// Where that room is taken from.
    #[serde(default)]
    pub storage: Storage,
    /// Room in /dev/shm, which is memory too and comes on top of `disk`.
    pub shared_memory: ByteSize,
    #[serde(default)]
    pub kernel: Kernel,
    pub guest: GuestConfig,
    /// Whether the cage is made ahead of its job. The guest then waits for an [`Adoption`] on the
    /// wire's first connection, and ends if that connection does.
    #[serde(default)]
    pub held: bool,
}

/// What turns a sandbox that was made ahead into that of one job: one line of JSON, answered by a
/// line with [`Adopted`] or [`LaunchFailure`]. The guest then starts as in any other sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Adoption {
    pub name: String,
    pub disk: ByteSize,
    pub shared_memory: ByteSize,
    pub guest: GuestConfig,
}

/// The sandbox is the job's from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    pub enforced: Vec<String>,
    pub missing: Vec<String>,
}

/// Whose kernel answers the system calls of what runs inside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// The host's: the guest runs in the cage itself.
    #[default]
    Host,
    /// gVisor's, which runs in the cage as a program and has the guest as its first process.
    Gvisor {
        /// Path of gVisor's executable on the host.
        runsc: String,
    },
}

/// What holds everything that is written inside.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// Memory: the fastest, and it vanishes by itself.
    #[default]
    Memory,
    /// A file system of its own in a file without a name, below this folder of the host. Only root
    /// can mount one.
    File { folder: String },
}

/// How user and group ids inside relate to ids outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdMapping {
    /// Started by root: ids 0 to 65535 become `base` and up, written by the launcher itself.
    Range { base: u32 },
    /// Started by a plain user who has subordinate ids: `newuidmap` maps them to 1 and up, and the
    /// user itself to 0, as in the image that the user built.
    Subordinate { uid_base: u32, gid_base: u32, count: u32 },
    /// Started by a plain user without subordinate ids: one id inside is that user.
    Single,
}

/// What the guest must know once it is inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestConfig {
    /// The folder that the tools work in.
    pub workspace: String,
    /// The user that tools run as. When it is the guest's own, ids are not changed.
    pub tool_uid: u32,
    pub tool_gid: u32,
    /// Home folder of that user.
    pub home: String,
    /// Open files of one tool process.
    pub open_files: u32,
    /// Processes and threads of the tool user. Where the guest is another user its own do not count,
    /// so that a fork bomb leaves it room to end the bomb.
    pub processes: Option<u32>,
    /// Whether tools may make user namespaces of their own, as a browser's own sandbox does.
    #[serde(default)]
    pub nested_sandboxing: bool,
    /// Memory of all processes and files together, where no control group keeps it: then the guest
    /// adds up and ends the largest process.
    #[serde(default)]
    pub memory: Option<ByteSize>,
    /// Processors that tools may run on, where no control group shares them out.
    #[serde(default)]
    pub processors: Option<u32>,
    /// A guest that no worker was connected to for so long ends itself, and with it the sandbox.
    #[serde(default)]
    pub orphaned_after_seconds: Option<u64>,
}

/// The first version of Landlock that knows of moves between folders; the one before forbids them
/// all, so it is not used.
pub const LEAST_LANDLOCK: u32 = 2;

impl GuestConfig {
    /// Folders that tools may write to; an image need not have all of them.
    pub fn writable_folders(&self) -> [&str; 7] {
        let (workspace, home) = (self.workspace.as_str(), self.home.as_str());
        // Programs that the tools' user installs for all go to /usr/local, which belongs to it.
        [workspace, home, "/tmp", "/var/tmp", "/run/lock", "/usr/local", "/dev/shm"]
    }
}

/// One line of what is heard while a sandbox is made: first the launcher's, then that of the process which
/// it made. Which of the two comes first is not certain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchWord {
    /// By the launcher: there is a process of this id, which waits for the word to go.
    Made { pid: i32 },
    /// By the launcher: that process builds its cage.
    Launched(Launched),
    /// By that process: the cage stands.
    Ready,
    /// By either of them.
    Failed(LaunchFailure),
}

/// Follows the line with the order, once what the order speaks of is there.
pub const GO: &[u8] = b"go\n";

/// What the launcher says of the guest that is on its way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launched {
    /// The guest's process id outside.
    pub pid: i32,
    /// The namespaces of that process, by kind, as they look from outside.
    #[serde(default)]
    pub namespaces: BTreeMap<String, u64>,
    /// What will be enforced once the cage stands.
    pub enforced: Vec<String>,
    pub missing: Vec<String>,
}

/// Why there is no cage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFailure {
    /// What was being done, such as `mount the overlay`.
    pub stage: String,
    pub error: String,
}

impl LaunchWord {
    /// The line that says it, with its end.
    pub fn line(&self) -> String {
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line
    }
}
