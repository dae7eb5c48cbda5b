//! The machine of a task, event by event.
