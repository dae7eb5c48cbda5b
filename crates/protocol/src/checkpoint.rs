//! Checkpoints of a workspace: what a guest says has changed, and the tree that changes add up to.
//!
//! Pure: bytes come in, trees and indexes come out. What a guest sends is checked here, so that it
//! can be fuzzed without those who use it.

mod change;
mod path;
mod tree;

pub use change::{Change, ChangeReply, What};
pub use path::{LinkTarget, PathFault, WorkspacePath};
pub use tree::{Content, Index, Node, Spot, Tree, TreeFault};

use serde::{Deserialize, Serialize};

/// Names one checkpoint within its job. No two workers ever give the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct CheckpointNumber(pub u64);

/// Files, folders and symlinks that a workspace with checkpoints has at the most.
pub const MOST_ENTRIES: usize = 100_000;

/// All their paths and the targets of symlinks together.
pub const MOST_NAME_BYTES: usize = 16 << 20;

/// The deepest folder: each level costs a descriptor on the way to it.
pub const DEEPEST: usize = 200;

/// What one step did to the workspace, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Changes {
    /// Files, folders and symlinks that were not there before.
    pub added: u64,
    /// Those that are others now.
    pub changed: u64,
    /// Those that are gone; what was below a folder counts too.
    pub deleted: u64,
}
