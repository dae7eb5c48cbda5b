//! Pictures, which `read_file` gives as what they are.

use std::io::Read as _;

use bellglass_protocol::step::ToolError;
use bellglass_protocol::wire::MAX_ATTACHMENT;

use super::text::size;
use crate::inside::answer::{Answer, Given};
use crate::inside::failure::{failure, path_io_failure};
use crate::inside::workspace::Workspace;

/// How many bytes tell what a file is.
const HEAD: usize = 12;

/// The picture in a file; nothing if it is none.
pub(super) fn read(workspace: &Workspace, path: &str) -> Result<Option<Answer>, ToolError> {
    let (mut file, stat) = workspace.open_file(path)?;
    let failed = |error: std::io::Error| path_io_failure(path, &error);
    let mut content = Vec::new();
    file.by_ref().take(HEAD as u64).read_to_end(&mut content).map_err(failed)?;
    let Some(media_type) = media_type(&content) else { return Ok(None) };
    file.take(MAX_ATTACHMENT).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > MAX_ATTACHMENT {
        let bytes = size(stat.st_size as u64);
        let words = format!("`{path}` is a picture of {bytes}; make one of less than 8 MiB of it");
        return Err(failure("file_too_large", words));
    }
    let words = format!("{path}: {media_type}, {}", size(content.len() as u64));
    let attachments = vec![Given { media_type: media_type.into(), content: content.into() }];
    Ok(Some(Answer { attachments, ..Answer::text(words) }))
}

fn media_type(head: &[u8]) -> Option<&'static str> {
    if head.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Some("image/png");
    }
    if head.starts_with(b"\xff\xd8\xff") {
        return Some("image/jpeg");
    }
    if head.starts_with(b"GIF87a") || head.starts_with(b"GIF89a") {
        return Some("image/gif");
    }
    (head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WEBP")).then_some("image/webp")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_known_by_their_first_bytes() {
        assert_eq!(media_type(b"\x89PNG\r\n\x1a\n...."), Some("image/png"));
        assert_eq!(media_type(b"\xff\xd8\xff\xe0"), Some("image/jpeg"));
        assert_eq!(media_type(b"GIF89a"), Some("image/gif"));
        assert_eq!(media_type(b"RIFF\0\0\0\0WEBP"), Some("image/webp"));
        assert_eq!(media_type(b"RIFF\0\0\0\0WAVE"), None);
        assert_eq!(media_type(b""), None);
    }
}
