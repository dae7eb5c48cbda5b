//! Takes what a step gave beside text (screenshots, figures) out of the sandbox into artifacts.
//!
//! What the guest offers is hostile: how many, how large and of what type is bounded here.

use bellglass_protocol::id::{CallId, Generation, JobId};
use bellglass_protocol::step::Attachment;
use bellglass_protocol::wire::{
    MAX_ATTACHMENT, MAX_ATTACHMENTS, MAX_MEDIA_TYPE, OfferedAttachment,
};
use bellglass_sandbox::client::{ClientError, FileStream, GuestClient};
use bellglass_store::artifacts::{ArtifactKey, Artifacts};
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;

use crate::hands::{HandsError, describe, from_client};

/// Stores what was offered, as far as there is `room` for it.
pub(crate) async fn store(
    guest: &GuestClient,
    artifacts: &Artifacts,
    (job, claim): (JobId, Generation),
    n: u32,
    offered: &[OfferedAttachment],
    mut room: u64,
) -> Result<Vec<Attachment>, HandsError> {
    let id = CallId::of_step(n);
    let mut stored = Vec::new();
    for (index, offer) in (0..).zip(offered.iter().take(MAX_ATTACHMENTS)) {
        let most = room.min(MAX_ATTACHMENT);
        if offer.bytes > most {
            continue;
        }
        let Some(content) = read(guest, &id, index, most).await? else { continue };
        let number = stored.len() as u32 + 1;
        let key = ArtifactKey::step_attachment(job, n, number).written_under(claim);
        let bytes = content.len() as u64;
        let kept = artifacts.put(&key, content).await;
        kept.map_err(|error| HandsError::Disk(describe(&error)))?;
        room -= bytes;
        let media_type = media_type(&offer.media_type);
        stored.push(Attachment { media_type, bytes, artifact: key.as_str().to_owned() });
    }
    Ok(stored)
}

/// What was offered, for somebody who wants it at once: each with its type.
pub(crate) async fn take(
    guest: &GuestClient,
    id: &CallId,
    offered: &[OfferedAttachment],
) -> Result<Vec<(String, Bytes)>, HandsError> {
    let mut taken = Vec::new();
    for (index, offer) in (0..).zip(offered.iter().take(MAX_ATTACHMENTS)) {
        if offer.bytes <= MAX_ATTACHMENT
            && let Some(content) = read(guest, id, index, MAX_ATTACHMENT).await?
        {
            taken.push((media_type(&offer.media_type), content));
        }
    }
    Ok(taken)
}

async fn read(
    guest: &GuestClient,
    id: &CallId,
    index: u32,
    most: u64,
) -> Result<Option<Bytes>, HandsError> {
    match guest.read_attachment(id, index).await {
        Ok((_, content)) => Ok(whole(content, most).await?.map(BytesMut::freeze)),
        // It has no such thing after all.
        Err(ClientError::Refused(_)) => Ok(None),
        Err(error) => Err(from_client(error)),
    }
}

/// All of it; nothing if it is larger than was said.
async fn whole(mut content: FileStream, most: u64) -> Result<Option<BytesMut>, HandsError> {
    let mut bytes = BytesMut::new();
    while let Some(piece) = content.next().await {
        let piece = piece.map_err(|error| HandsError::SandboxLost(error.to_string()))?;
        if (bytes.len() + piece.len()) as u64 > most {
            return Ok(None);
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(Some(bytes))
}

/// A media type that can stand in a record: whatever else was said is bytes.
fn media_type(said: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+');
    let mut parts = said.split('/');
    let is_type = match (parts.next(), parts.next(), parts.next()) {
        (Some(kind), Some(name), None) => {
            !kind.is_empty() && !name.is_empty() && (kind.to_owned() + name).chars().all(fits)
        }
        _ => false,
    };
    match is_type && said.len() <= MAX_MEDIA_TYPE {
        true => said.to_ascii_lowercase(),
        false => "application/octet-stream".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_media_types_are_taken_over() {
        assert_eq!(media_type("image/PNG"), "image/png");
        assert_eq!(media_type("image/svg+xml"), "image/svg+xml");
        for odd in ["", "png", "/", "a/b/c", "text/html; x=\"\n\"", &"a/".repeat(80)] {
            assert_eq!(media_type(odd), "application/octet-stream", "{odd}");
        }
    }
}
