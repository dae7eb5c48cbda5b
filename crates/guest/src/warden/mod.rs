//! The first process of a cage in which gVisor runs.
//!
//! It starts gVisor's kernel with the guest as first process on it, then does two things for as long
//! as that kernel lives: it passes the wire's bytes between the socket outside and the guest's socket
//! inside, and takes the dead away. It understands nothing of what passes. When it ends, the host's
//! kernel ends all else in the cage.

mod bundle;
mod relay;
mod start;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::{fs, io};

use bellglass_protocol::launch::GuestConfig;

pub(crate) use relay::keep;
pub(crate) use start::start_gvisor;

use crate::launch::privileges;

/// The argument by which the executable knows that it is the guest on gVisor's kernel.
pub(crate) const INSIDE: &str = "--inside";

/// The folder, on gVisor's kernel, in which the guest takes the wire. It is the one folder that both
/// kernels see; only the guest's own user may enter it.
const DOOR: &str = "/run/bellglass";
/// The same folder as the cage has it.
const DOOR_OUTSIDE: &str = "/gvisor/door";
const WIRE: &str = "wire";
const GUEST: &str = "guest";
/// What the guest says on its standard output once it takes the wire.
const READY: &[u8] = b"ready\n";

/// The guest's side: runs on gVisor's kernel, gets its configuration on standard input.
pub(crate) fn inside() -> ! {
    let (listener, config) = match take_place() {
        Ok(taken) => taken,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    };
    crate::inside::run(listener, config)
}

fn take_place() -> io::Result<(UnixListener, GuestConfig)> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let config = serde_json::from_str(&text)?;
    let listener = UnixListener::bind(format!("{DOOR}/{WIRE}"))?;
    privileges::drop_all_but_needed()
        .map_err(|failed| io::Error::other(format!("cannot {failed}")))?;
    let null = fs::File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    let mut stdout = io::stdout();
    stdout.write_all(READY)?;
    stdout.flush()?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok((listener, config))
}
