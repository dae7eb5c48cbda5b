//! Many servers and many workers on one PostgreSQL: any server answers for any job, and whatever is
//! killed, stopped or cut off, no job is lost, runs twice, hangs, or leaves anything behind.
//!
//! These tests need the sandbox image and PostgreSQL (`make test` gets both).

mod chaos;
mod counting;
mod deployment;
mod newer;
mod relaying;
#[path = "../end_to_end/support/mod.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests, which use all of it")]
mod support;
mod takeover;
mod upgrade;
mod verdict;
mod visiting;

/// Sandboxes that no job has asked for would be in the way of tests that count.
const WARM: &str = "0";
