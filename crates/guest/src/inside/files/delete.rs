//! `delete_file`: deletes a file, or a folder with all that is in it. A symlink is deleted itself.

use std::os::fd::AsRawFd;
use std::path::Path;

use bellglass_protocol::step::{ToolError, workspace_relative};
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;

use crate::inside::failure::{failure, path_failure, path_io_failure};
use crate::inside::workspace::{Workspace, file_type};

pub(in crate::inside) fn delete(
    workspace: &Workspace,
    path: &str,
    recursive: bool,
) -> Result<(), ToolError> {
    if workspace_relative(path).is_empty() {
        return Err(failure(
            "is_the_workspace",
            "the workspace itself cannot be deleted; name a file or a folder in it",
        ));
    }
    let failed = |error| path_failure(path, error);
    let place = workspace.place(&workspace.inside(path)?).map_err(failed)?;
    let stat = place.stat().map_err(failed)?.ok_or_else(|| failed(Errno::NOENT))?;
    if file_type(&stat) != FileType::Directory {
        return rustix::fs::unlinkat(&place.parent, &place.name, AtFlags::empty()).map_err(failed);
    }
    if recursive {
        // The parent is named by its descriptor, and the standard library follows no symlink below.
        let parent = format!("/proc/self/fd/{}", place.parent.as_raw_fd());
        return std::fs::remove_dir_all(Path::new(&parent).join(&place.name))
            .map_err(|error| path_io_failure(path, &error));
    }
    rustix::fs::unlinkat(&place.parent, &place.name, AtFlags::REMOVEDIR).map_err(
        |error| match error {
            Errno::NOTEMPTY | Errno::EXIST => failure(
                "folder_not_empty",
                format!("`{path}` is a folder with files in it; set recursive to delete them all"),
            ),
            error => failed(error),
        },
    )
}
