//! The loop: a mind decides what to do next, the rim does it, until the mind is done.
//!
//! Knows no database, no HTTP server and no sandbox: what it works on is the trait [`World`].
//! Everything but [`drive`] and the wires to model servers is pure.

pub mod context;
mod drive;
pub mod history;
mod mind;
pub mod model;
mod playbook;
mod task;
pub mod tokens;
pub mod tools;

pub use drive::{World, drive};
pub use mind::{Effect, Lookup, Mind};
pub use playbook::Playbook;
pub use task::TaskMind;
