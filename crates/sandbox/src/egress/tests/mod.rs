//! The proxy by itself: hostile requests, names that change their minds, opened connections.

mod interception;
mod requests;
mod support;
