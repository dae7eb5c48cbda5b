//! A mind without wishes: its sandbox is there for others to use.

use bellglass_protocol::event::Event;
use jiff::Timestamp;

use crate::context::Context;
use crate::mind::{Effect, Mind};

/// Waits until the job is stopped.
pub struct Attendant;

impl Mind for Attendant {
    fn take_in(&mut self, _: &Event) {}

    fn next(&self, _: Timestamp) -> Effect {
        Effect::Idle
    }

    fn snapshot(&self) -> Option<&Context> {
        None
    }
}
