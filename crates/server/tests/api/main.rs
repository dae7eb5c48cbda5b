//! The API as clients meet it: the real router over the real store, and a stand-in for sandboxes.
//! Every answer is also held against the OpenAPI document.

mod apps;
mod connection;
mod document;
mod events;
mod files;
mod guard;
mod harness;
mod jobs;
mod operations;
mod page;
mod results;
mod schedule;
mod tool_page;
