//! `write_file`: creates a file or replaces its content.

use std::borrow::Cow;
use std::io::Write;

use bellglass_protocol::step::{ToolError, decode_base64};
use bellglass_protocol::tool::{Encoding, WriteFile};

use super::replace::Replacement;
use super::text::size;
use crate::inside::failure::{failure, path_io_failure};
use crate::inside::workspace::Workspace;

pub(super) fn write(workspace: &Workspace, call: &WriteFile) -> Result<String, ToolError> {
    let content: Cow<'_, [u8]> = match call.encoding {
        Encoding::Text => call.content.as_bytes().into(),
        Encoding::Base64 => decode_base64(&call.content)
            .map_err(|error| {
                failure("invalid_base64", format!("`content` is not base64: {error}"))
            })?
            .into(),
    };
    let mut file = Replacement::begin(workspace, &call.path)?;
    let done = if file.is_new() { "created" } else { "replaced" };
    file.write_all(&content).map_err(|error| path_io_failure(&call.path, &error))?;
    file.commit(call.executable)?;
    Ok(format!("{done} {} ({})", call.path, size(content.len() as u64)))
}
