//! Which pictures of a task a model is shown, and how many.

use bellglass_protocol::step::StepOutcome;

use crate::model::pictures::{MOST_BYTES, Picture};

/// Pictures of one result. The others stay with the step.
pub(super) const MOST_AT_ONCE: usize = 4;

/// Pictures in a conversation, and their bytes: providers refuse requests of more than so many
/// megabytes.
const MOST_IN_ALL: usize = 24;
const MOST_BYTES_IN_ALL: u64 = 16_000_000;

/// Pictures that stay when there are too many. Even the largest ones are then few enough.
pub(super) const KEPT: usize = 4;

/// What every model that sees can be shown. What else a step gave is not a picture to it.
const SHOWN: [&str; 4] = ["image/png", "image/jpeg", "image/webp", "image/gif"];

/// The pictures of a step that a model is shown.
pub(super) fn of_step(outcome: &StepOutcome) -> Vec<Picture> {
    let pictures = outcome.attachments.iter();
    let pictures = pictures.filter(|given| SHOWN.contains(&given.media_type.as_str()));
    let picture = pictures
        .map(|given| Picture { artifact: given.artifact.as_str().into(), bytes: given.bytes });
    picture.take(MOST_AT_ONCE).collect()
}

pub(super) fn are_too_many(pictures: &[Picture]) -> bool {
    // Larger ones are made smaller on their way.
    let bytes = pictures.iter().map(|picture| picture.bytes.min(MOST_BYTES as u64)).sum::<u64>();
    pictures.len() > MOST_IN_ALL || bytes > MOST_BYTES_IN_ALL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_never_gets_too_heavy() {
        let pictures = |count, bytes| vec![Picture { artifact: "x".into(), bytes }; count];
        assert!(!are_too_many(&pictures(MOST_IN_ALL, 100_000)));
        assert!(are_too_many(&pictures(MOST_IN_ALL + 1, 1)));
        assert!(are_too_many(&pictures(KEPT + 1, u64::from(u32::MAX))));
        assert!(!are_too_many(&pictures(KEPT, u64::MAX / 8)));
    }
}
