//! The guest proper: takes the wire and runs tools.
