//! Why a tool could not do what it was asked, in words that say what to do next.

use bellglass_protocol::step::ToolError;
use rustix::io::Errno;

/// No message is longer than this: it travels in one frame and goes to a model.
const LONGEST_MESSAGE: usize = 4096;

pub(super) fn failure(code: &str, message: impl Into<String>) -> ToolError {
    let mut message = message.into();
    if message.len() > LONGEST_MESSAGE {
        message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
        message.push('…');
    }
    ToolError { code: code.into(), message }
}

/// Explains what the kernel said about a path of the workspace.
pub(super) fn path_failure(path: &str, error: Errno) -> ToolError {
    let shown = if path.is_empty() { "the workspace" } else { path };
    match error {
        Errno::XDEV => failure(
            "outside_workspace",
            format!(
                "`{shown}` leads out of the workspace through a symlink (one that starts with `/` \
                 or climbs too far); use the path of a file inside the workspace, or the shell"
            ),
        ),
        Errno::NOENT => failure(
            "not_found",
            format!("`{shown}` does not exist; list_files shows what is in the workspace"),
        ),
        Errno::NOTDIR => {
            failure("not_a_folder", format!("a part of `{shown}` is a file and not a folder"))
        }
        Errno::ISDIR => {
            failure("is_a_folder", format!("`{shown}` is a folder; list_files shows what is in it"))
        }
        Errno::LOOP => failure(
            "symlink_loop",
            format!("`{shown}` goes through symlinks in a circle; use the real path"),
        ),
        Errno::ACCESS | Errno::PERM => failure(
            "permission_denied",
            format!("`{shown}` may not be accessed; change its permissions with the shell first"),
        ),
        Errno::NOSPC | Errno::DQUOT => failure(
            "disk_full",
            format!("no room is left for `{shown}`; delete files that are no longer needed"),
        ),
        Errno::NAMETOOLONG => {
            failure("invalid_path", format!("`{shown}` is too long; use shorter names"))
        }
        Errno::NXIO => not_a_file(shown),
        other => failure("io_error", format!("`{shown}`: {other}")),
    }
}

pub(super) fn not_a_file(path: &str) -> ToolError {
    failure("not_a_file", format!("`{path}` is a pipe, a socket or a device and not a plain file"))
}

pub(super) fn already_exists(path: &str) -> ToolError {
    failure("already_exists", format!("`{path}` exists; delete it first or choose another name"))
}

/// The same for errors that came through the standard library.
pub(super) fn path_io_failure(path: &str, error: &std::io::Error) -> ToolError {
    match error.raw_os_error() {
        Some(code) => path_failure(path, Errno::from_raw_os_error(code)),
        None => failure("io_error", format!("`{path}`: {error}")),
    }
}
