//! One file for each resource of the API.

pub(crate) mod apps;
pub(crate) mod cancel;
pub(crate) mod changes;
pub(crate) mod checkpoints;
pub(crate) mod context;
pub(crate) mod desktop;
pub(crate) mod events;
pub(crate) mod files;
pub(crate) mod forks;
pub(crate) mod jobs;
pub(crate) mod mcp;
pub(crate) mod memories;
pub(crate) mod memory;
pub(crate) mod network;
pub(crate) mod offer;
pub(crate) mod operations;
pub(crate) mod pages;
pub(crate) mod result;
pub(crate) mod schedule;
pub(crate) mod sessions;
pub(crate) mod share;
pub(crate) mod status;
pub(crate) mod steering;
pub(crate) mod steps;
pub(crate) mod terminal;
pub(crate) mod tokens;
