//! One test for each known way out of a sandbox: really tried from inside, seen to fail for the
//! right reason, and seen outside to have changed nothing. `docs/SECURITY.md` lists them all.
//!
//! These tests need the sandbox image (`make image`, or `bellglass image build`).

mod abi;
mod attempt;
mod clocks;
mod descriptors;
mod devices;
mod guest;
mod information;
mod kernel;
mod mounts;
mod neighbours;
mod network;
mod privileges;
mod proxy;
mod races;
mod rebinding;
mod sockets;
#[path = "../end_to_end/support/mod.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests, which use all of it")]
mod support;
mod terminals;

/// As in production, jobs get sandboxes that were made ahead.
const WARM: &str = "1";
