//! The API as clients meet it: the real router over the real store, and a stand-in for sandboxes.
//! Every answer is also held against the OpenAPI document.

mod access;
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
mod quotas;
mod results;
mod schedule;
mod shares;
mod tool_page;
mod vnc;
