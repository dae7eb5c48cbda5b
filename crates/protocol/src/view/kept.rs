//! Which checkpoints a job has, folded from its events: what its workspace was after each step.

use crate::checkpoint::CheckpointNumber;
use crate::event::{EventBody, RestoreCause};
use crate::job::JobSpec;

/// The checkpoints of a job that count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// In their order, each with the step that it came after; `None` where there could be none.
    timeline: Vec<(u32, Option<CheckpointNumber>)>,
    /// Bytes that they hold.
    pub bytes: u64,
    /// Why the workspace of the present sandbox is still to be made from a checkpoint.
    pub pending: Option<RestoreCause>,
    is_fork: bool,
}

/// There is no checkpoint of the workspace as it was then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the workspace as it was then was not kept")]
pub struct NotKept;

impl Kept {
    pub(super) fn begin(spec: &JobSpec) -> Self {
        let is_fork = spec.fork.is_some();
        Self { is_fork, pending: is_fork.then_some(RestoreCause::Fork), ..Self::default() }
    }

    /// The checkpoint that holds the workspace as it was after a step; `None` if nothing was done to
    /// the workspace until then.
    pub fn after(&self, step: u32) -> Result<Option<CheckpointNumber>, NotKept> {
        match self.timeline.iter().rev().find(|(after, _)| *after <= step) {
            None => Ok(None),
            Some((_, Some(checkpoint))) => Ok(Some(*checkpoint)),
            Some((_, None)) => Err(NotKept),
        }
    }

    /// The newest checkpoint.
    pub fn newest(&self) -> Option<CheckpointNumber> {
        self.timeline.iter().rev().find_map(|(_, checkpoint)| *checkpoint)
    }

    /// The first step after the newest checkpoint whose files were not kept.
    pub fn unkept_since(&self) -> Option<u32> {
        let unkept = self.timeline.iter().rev().take_while(|(_, checkpoint)| checkpoint.is_none());
        unkept.last().map(|(step, _)| *step)
    }

    /// Takes in an event that is about checkpoints; `last_step` is the newest step before it.
    pub(super) fn take_in(&mut self, body: &EventBody, last_step: u32) {
        match body {
            EventBody::SandboxLost { kept: None, .. } => {
                let pending = self.is_fork.then_some(RestoreCause::Fork);
                *self = Self { is_fork: self.is_fork, pending, ..Self::default() };
            }
            EventBody::SandboxLost { kept: Some(kept), .. } => {
                self.timeline.retain(|(step, _)| step <= kept);
                self.pending = Some(RestoreCause::SandboxLost);
            }
            EventBody::CheckpointStored { step, checkpoint, bytes, .. } => {
                self.timeline.push((*step, Some(*checkpoint)));
                self.bytes += bytes;
            }
            EventBody::CheckpointSkipped { step, .. } => self.timeline.push((*step, None)),
            EventBody::WorkspaceRestored { why, checkpoint, .. } => {
                if *why != RestoreCause::Request {
                    self.pending = None;
                }
                // The workspace is from now on what a checkpoint says, whatever was not kept.
                let known = checkpoint.or(self.newest());
                let is_news = checkpoint.is_some() || self.unkept_since().is_some();
                if known.is_some() && is_news {
                    self.timeline.push((last_step, known));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(step: u32) -> EventBody {
        let checkpoint = CheckpointNumber(u64::from(step) * 10);
        let (changes, left_out) = (Default::default(), Vec::new());
        EventBody::CheckpointStored { step, checkpoint, changes, bytes: 5, took_us: 9, left_out }
    }

    fn skipped(step: u32) -> EventBody {
        EventBody::CheckpointSkipped { step, reason: "x".into() }
    }

    fn lost(kept: Option<u32>) -> EventBody {
        EventBody::SandboxLost { reason: "x".into(), kept }
    }

    fn folded(bodies: &[EventBody]) -> Kept {
        let mut kept = Kept::default();
        bodies.iter().for_each(|body| kept.take_in(body, 9));
        kept
    }

    #[test]
    fn every_step_has_the_newest_checkpoint_before_it_or_none() {
        let kept = folded(&[stored(2), skipped(4), skipped(5), stored(7)]);
        let number = |step| kept.after(step).map(|found| found.map(|number| number.0));
        assert_eq!(
            [1, 2, 3, 4, 6, 7, 8].map(number),
            [
                Ok(None),
                Ok(Some(20)),
                Ok(Some(20)),
                Err(NotKept),
                Err(NotKept),
                Ok(Some(70)),
                Ok(Some(70))
            ]
        );
        assert_eq!(kept.unkept_since(), None);
        assert_eq!(folded(&[stored(2), skipped(4), skipped(5)]).unkept_since(), Some(4));
        assert_eq!(kept.bytes, 10);
    }

    #[test]
    fn a_lost_sandbox_takes_what_is_void() {
        assert_eq!(folded(&[stored(2), lost(None)]), Kept::default());
        let kept = folded(&[stored(2), skipped(4), lost(Some(3))]);
        assert_eq!(kept.pending, Some(RestoreCause::SandboxLost));
        assert_eq!((kept.newest(), kept.unkept_since()), (Some(CheckpointNumber(20)), None));
    }

    #[test]
    fn what_was_not_kept_is_forgotten_in_a_new_sandbox() {
        let restored = EventBody::WorkspaceRestored {
            from: None,
            step: 3,
            why: RestoreCause::SandboxLost,
            checkpoint: None,
            entries: 1,
        };
        let kept = folded(&[stored(2), skipped(4), lost(Some(6)), restored]);
        assert_eq!((kept.pending, kept.unkept_since()), (None, None));
        assert_eq!((kept.after(5), kept.after(9)), (Err(NotKept), Ok(Some(CheckpointNumber(20)))));
    }

    #[test]
    fn a_restored_workspace_is_what_the_newest_step_left() {
        let restored = EventBody::WorkspaceRestored {
            from: None,
            step: 2,
            why: RestoreCause::Request,
            checkpoint: Some(CheckpointNumber(99)),
            entries: 1,
        };
        let kept = folded(&[stored(2), stored(8), restored]);
        assert_eq!(kept.newest(), Some(CheckpointNumber(99)));
        assert_eq!(kept.after(8), Ok(Some(CheckpointNumber(80))));
        assert_eq!(kept.after(9), Ok(Some(CheckpointNumber(99))));
    }
}
