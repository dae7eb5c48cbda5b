//! Which pictures of a task a model is shown: how many, and of what size.

use bellglass_protocol::job::Screen;
use bellglass_protocol::step::StepOutcome;
use bellglass_protocol::tool::{Action, ToolCall};

use crate::model::pictures::{MOST_BYTES, Picture, fitting};

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

/// The call as it is made: a screenshot is taken in a size that the model is shown as it is. So the
/// points that the model names are points of the picture that the desktop knows.
pub(super) fn fitted(call: &ToolCall, screen: Screen) -> ToolCall {
    let mut call = call.clone();
    if let ToolCall::Computer(computer) = &mut call
        && computer.action == Action::Screenshot
    {
        let (width, height) = match computer.region {
            Some(region) => {
                (region.width.min(screen.width.into()), region.height.min(screen.height.into()))
            }
            None => (screen.width.into(), screen.height.into()),
        };
        let (most, _) = fitting(width, height);
        if most < width {
            computer.max_width = Some(computer.max_width.map_or(most, |asked| asked.min(most)));
        }
    }
    call
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellglass_protocol::tool::{Computer, Region};

    #[test]
    fn screenshots_are_taken_in_a_size_that_models_are_shown() {
        let large = Screen { width: 2560, height: 1600 };
        let region = |width, height| Some(Region { x: 0, y: 0, width, height });
        for (screen, region, asked, made) in [
            (Screen::default(), None, None, None),
            (Screen::default(), None, Some(640), Some(640)),
            (large, None, None, Some(1356)),
            (large, None, Some(640), Some(640)),
            (large, None, Some(5000), Some(1356)),
            (large, region(500, 400), None, None),
            (large, region(9000, 9000), None, Some(1356)),
        ] {
            let call = Computer { region, max_width: asked, ..Computer::default() };
            let ToolCall::Computer(call) = fitted(&ToolCall::Computer(call), screen) else {
                unreachable!()
            };
            assert_eq!(call.max_width, made, "{screen:?} {region:?} {asked:?}");
        }
    }

    #[test]
    fn a_request_never_gets_too_heavy() {
        let pictures = |count, bytes| vec![Picture { artifact: "x".into(), bytes }; count];
        assert!(!are_too_many(&pictures(MOST_IN_ALL, 100_000)));
        assert!(are_too_many(&pictures(MOST_IN_ALL + 1, 1)));
        assert!(are_too_many(&pictures(KEPT + 1, u64::from(u32::MAX))));
        assert!(!are_too_many(&pictures(KEPT, u64::MAX / 8)));
    }
}
