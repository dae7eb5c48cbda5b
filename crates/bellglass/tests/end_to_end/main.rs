//! The real executable as a process of its own, spoken to over real HTTP, with real sandboxes.
//!
//! These tests need the sandbox image (`make image`, or `bellglass image build`). They wait for
//! events and never for time to pass.

mod approvals;
mod audit;
mod bad_input;
mod browsing;
mod bucket;
mod cancelling;
mod checkpoints;
mod cleanup;
mod client_commands;
mod commands;
mod companions;
mod crash;
mod desktop;
mod examples;
mod files;
mod full_disk;
mod image_ends;
mod isolation;
mod job_log;
mod jobs;
mod kernels;
mod levels;
mod limits;
mod live;
mod looking_back;
mod mcp;
mod memories;
mod network;
mod network_changes;
mod notebooks;
mod output;
mod packages;
mod page_content;
mod page_loading;
mod people;
mod pictures;
mod plain_user;
mod pointer;
mod pool;
mod queue;
mod recordings;
mod result;
mod retention;
mod run_ends;
#[path = "../../../agent/tests/scripted/mod.rs"]
mod scripted;
mod secrecy;
mod secrets;
mod slow_readers;
mod steering;
mod stubborn;
mod support;
mod sweeping;
mod task_trouble;
mod tasks;
mod terminals;
mod time_travel;
mod tools;
mod typing;

/// Sandboxes that no job has asked for would be in the way of tests that count.
const WARM: &str = "0";
