//! `copy_file`: copies a file through a buffer; never replaces anything.

use std::io::{Read as _, Write as _};

use bellglass_protocol::step::ToolError;
use bellglass_protocol::tool::CopyFile;

use super::replace::Replacement;
use super::text::size;
use crate::inside::failure::{failure, path_io_failure};
use crate::inside::tools::Stop;
use crate::inside::workspace::Workspace;

const BUFFER: usize = 256 << 10;

pub(super) fn copy(
    workspace: &Workspace,
    call: &CopyFile,
    stop: &Stop,
) -> Result<String, ToolError> {
    let (mut from, stat) = workspace.open_file(&call.from)?;
    let mut to = Replacement::begin(workspace, &call.to)?;
    if !to.is_new() {
        return Err(failure(
            "already_exists",
            format!("`{}` exists; delete it first or choose another name", call.to),
        ));
    }
    let mut buffer = vec![0; BUFFER];
    let mut copied = 0;
    loop {
        if stop.is_requested() {
            return Ok(String::new());
        }
        let count = from.read(&mut buffer).map_err(|error| path_io_failure(&call.from, &error))?;
        if count == 0 {
            break;
        }
        to.write_all(&buffer[..count]).map_err(|error| path_io_failure(&call.to, &error))?;
        copied += count as u64;
    }
    const MAY_BE_RUN: u32 = 0o100;
    to.commit(stat.st_mode & MAY_BE_RUN != 0)?;
    Ok(format!("copied {} to {} ({})", call.from, call.to, size(copied)))
}
