//! Walks below a folder of the workspace as `list_files` and `search_files` do: in order, leaving
//! out what .gitignore names, never through a symlink.

use std::path::{Path, PathBuf};

use bellglass_protocol::step::ToolError;
use ignore::{Walk, WalkBuilder};
use rustix::fs::OFlags;

use crate::inside::failure::path_failure;
use crate::inside::workspace::Workspace;

/// Where a walk begins: the real place of the path, which a symlink inside may have led to.
pub(super) struct Start {
    pub(super) path: PathBuf,
}

pub(super) fn start(workspace: &Workspace, path: Option<&str>) -> Result<Start, ToolError> {
    let relative = workspace.inside_or_root(path)?;
    let failed = |error| path_failure(path.unwrap_or_default(), error);
    let opened = workspace.open_beneath(&relative, OFlags::PATH).map_err(failed)?;
    let real = workspace.relative_of(&opened).map_err(failed)?;
    Ok(Start { path: workspace.path().join(real) })
}

impl Start {
    pub(super) fn walk(&self, depth: Option<usize>) -> Walk {
        WalkBuilder::new(&self.path)
            .max_depth(depth)
            // Hidden files are part of the work; git's own are not.
            .hidden(false)
            .filter_entry(|entry| entry.file_name() != ".git")
            // The rules hold whether or not `git init` was run, and only those that lie here.
            .require_git(false)
            .git_global(false)
            .follow_links(false)
            .sort_by_file_name(Ord::cmp)
            .build()
    }
}

/// A path of the walk as the tools name it.
pub(super) fn named<'a>(workspace: &Workspace, path: &'a Path) -> &'a Path {
    path.strip_prefix(workspace.path()).unwrap_or(path)
}
