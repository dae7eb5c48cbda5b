//! The loop: a mind decides what to do next, the rim does it, until the mind is done.
//!
//! Knows no database, no HTTP server and no sandbox: what it works on is the trait [`World`].
//! Everything but [`drive`] and the wires to model servers is pure.

mod attendant;
pub mod context;
mod drive;
pub mod history;
pub mod mcp;
pub mod memory;
mod mind;
pub mod model;
mod numbers;
mod playbook;
pub mod static_model;
mod task;
pub mod tokens;
pub mod tools;

pub use attendant::Attendant;
pub use drive::{JobTime, OtherResult, World, drive};
pub use mind::{Effect, Lookup, Mind};
pub use playbook::Playbook;
pub use task::TaskMind;
