//! Plain data that both sides of the glass agree on: ids, jobs, tools, events, wire frames.
//!
//! Nothing here opens a file, a socket or a database, and nothing depends on another crate of ours.
//! What comes out of a sandbox is decoded here and nowhere else, so every bound on it is here too.

pub mod approval;
pub mod audit;
pub mod cage;
pub mod chain;
pub mod checkpoint;
pub mod event;
pub mod id;
pub mod job;
pub mod launch;
pub mod limits_request;
pub mod mcp;
pub mod memory;
pub mod model;
pub mod model_offer;
pub mod mux;
pub mod network;
pub mod picture;
pub mod quantity;
pub mod report;
pub mod request;
mod request_shape;
mod secrets;
pub mod step;
mod stored;
pub mod task_request;
pub mod tool;
pub mod tunnel;
pub mod unknown;
pub mod view;
pub mod wire;
