//! The file tools. Each is a plain function over the workspace that returns the text of its answer.

pub(super) mod checkpoint;
mod copy;
pub(super) mod delete;
mod diff;
mod edit;
mod find;
mod image;
mod indentation;
mod list;
mod move_file;
mod near;
pub(super) mod pack;
mod read;
pub(super) mod replace;
pub(super) mod restore;
mod rules;
mod search;
pub(super) mod send;
mod survey;
mod text;
mod walk;
mod write;

use bellglass_protocol::step::ToolError;
use bellglass_protocol::tool::ToolCall;

use super::answer::Answer;
use super::failure::failure;
use super::tools::Stop;
use super::workspace::Workspace;

/// The longest text that a tool answers with.
const LONGEST_TEXT: usize = 256 << 10;

/// Runs a file tool. May take long; must not run on the thread that serves the wire.
pub(super) fn run(
    workspace: &Workspace,
    call: &ToolCall,
    stop: &Stop,
) -> Result<Answer, ToolError> {
    let text = match call {
        ToolCall::WriteFile(call) => write::write(workspace, call),
        ToolCall::ReadFile(call) => match image::read(workspace, &call.path)? {
            Some(image) => return Ok(image),
            None => read::read(workspace, call, stop),
        },
        ToolCall::EditFile(call) => edit::edit(workspace, call, stop),
        ToolCall::MultiEdit(call) => edit::edit_all(workspace, &call.path, &call.edits, stop),
        ToolCall::CopyFile(call) => copy::copy(workspace, call, stop),
        ToolCall::FindFiles(call) => find::find(workspace, call, stop),
        ToolCall::DiffFiles(call) => diff::diff(workspace, call),
        ToolCall::MoveFile(call) => move_file::move_file(workspace, call),
        ToolCall::DeleteFile(call) => {
            delete::delete(workspace, &call.path, call.recursive)?;
            Ok(format!("deleted {}", call.path))
        }
        ToolCall::ListFiles(call) => list::list(workspace, call, stop),
        ToolCall::SearchFiles(call) => search::search(workspace, call, stop),
        _ => Err(failure("not_a_file_tool", format!("`{}` is no file tool", call.name()))),
    };
    text.map(Answer::text)
}
