//! Builds the cage around a new process and turns that process into the guest.

pub(crate) fn main() {}
