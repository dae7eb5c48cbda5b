//! Our small static program, first process inside the sandbox: it runs the tools.
//!
//! It knows the protocol and the kernel; no database, no TLS, no HTTP.

mod core_dumps;
pub mod inside;
mod launch;
mod warden;

/// Entry of the executable.
pub fn main() {
    match std::env::args().nth(1).as_deref() {
        Some(warden::INSIDE) => warden::inside(),
        _ => launch::main(),
    }
}
