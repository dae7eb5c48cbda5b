//! Our small static program, first process inside the sandbox: it runs the tools.
//!
//! It knows the protocol and the kernel; no database, no TLS, no HTTP.

pub mod inside;
mod launch;

/// Entry of the executable.
pub fn main() {
    launch::main();
}
