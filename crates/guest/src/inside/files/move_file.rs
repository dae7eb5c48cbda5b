//! `move_file`: moves or renames a file or a folder; never replaces anything.

use bellglass_protocol::step::ToolError;
use bellglass_protocol::tool::MoveFile;
use rustix::fs::RenameFlags;
use rustix::io::Errno;

use crate::inside::failure::{already_exists, failure, path_failure};
use crate::inside::workspace::Workspace;

pub(super) fn move_file(workspace: &Workspace, call: &MoveFile) -> Result<String, ToolError> {
    let from = workspace.inside(&call.from)?;
    let to = workspace.inside(&call.to)?;
    let from = workspace.place(&from).map_err(|error| path_failure(&call.from, error))?;
    if from.stat().map_err(|error| path_failure(&call.from, error))?.is_none() {
        return Err(path_failure(&call.from, Errno::NOENT));
    }
    let to = workspace.make_place(&to).map_err(|error| path_failure(&call.to, error))?;
    rustix::fs::renameat_with(
        &from.parent,
        &from.name,
        &to.parent,
        &to.name,
        RenameFlags::NOREPLACE,
    )
    .map_err(|error| match error {
        Errno::EXIST => already_exists(&call.to),
        Errno::INVAL => failure(
            "into_itself",
            format!("`{}` cannot be moved into itself; choose another place", call.from),
        ),
        // Here it means another file system, not a way out of the workspace.
        Errno::XDEV => failure(
            "other_file_system",
            format!("`{}` lies on another file system; copy it with the shell", call.to),
        ),
        error => path_failure(&call.from, error),
    })?;
    Ok(format!("moved {} to {}", call.from, call.to))
}
