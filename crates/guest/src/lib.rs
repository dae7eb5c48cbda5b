//! Our small static program, first process inside the sandbox: it runs the tools.
//!
//! It knows the protocol and the kernel; no database, no TLS, no HTTP.

mod core_dumps;
pub mod inside;
mod launch;
mod warden;

/// Entry of the executable.
pub fn main() {
    keep_memory_in_one_place();
    match std::env::args().nth(1).as_deref() {
        Some(warden::INSIDE) => warden::inside(),
        _ => launch::main(),
    }
}

/// glibc gives each thread memory of its own to allocate from, which costs more to make than all that most threads of the
/// guest do.
fn keep_memory_in_one_place() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes numbers only.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
