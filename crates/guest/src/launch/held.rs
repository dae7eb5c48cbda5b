//! A cage that was made ahead of its job: it waits for the job, and takes on what the job asks for.
//!
//! Until then nothing but this runs in it, so everything that the launcher could do while it built
//! can still be done. Whoever made it holds the first connection; when that ends, so does this.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use bellglass_protocol::launch::{Adopted, Adoption, GuestConfig, LaunchFailure, LaunchOrder};
use rustix::event::{PollFd, PollFlags, poll};

use super::syscalls::Stage as _;
use super::{Failed, describe, devices, mounts, privileges};

/// Whoever made this cage connects at once, unless it has died.
const CONNECTION_TIME: Duration = Duration::from_secs(60);

/// An adoption is a few hundred bytes; it comes from our own side of the glass.
const LONGEST_LINE: u64 = 64 << 10;

/// Returns once there is a job, with its wishes met and everything given up that it must not have.
pub(super) fn wait_for_adoption(made: &LaunchOrder, listener: &UnixListener) -> GuestConfig {
    let Some((adoption, mut connection)) = adoption(listener) else { std::process::exit(0) };
    let answer = adapt(made, &adoption).and_then(|adopted| {
        privileges::drop_all_but_needed()?;
        Ok(adopted)
    });
    let (text, is_ready) = match answer {
        Ok(adopted) => (serde_json::to_string(&adopted), true),
        Err(Failed { stage, error, .. }) => {
            let failure = LaunchFailure { stage, error: error.to_string(), pid: None };
            (serde_json::to_string(&failure), false)
        }
    };
    let text = text.expect("the answer is plain data");
    if connection.write_all(format!("{text}\n").as_bytes()).is_err() || !is_ready {
        std::process::exit(1);
    }
    adoption.guest
}

fn adoption(listener: &UnixListener) -> Option<(Adoption, UnixStream)> {
    let timeout = CONNECTION_TIME.try_into().ok();
    let connected = poll(&mut [PollFd::new(listener, PollFlags::IN)], timeout.as_ref());
    if !connected.is_ok_and(|count| count > 0) {
        return None;
    }
    let (connection, _) = listener.accept().ok()?;
    let mut line = String::new();
    BufReader::new((&connection).take(LONGEST_LINE)).read_line(&mut line).ok()?;
    Some((serde_json::from_str(&line).ok()?, connection))
}

/// Makes this cage the one that would have been built for the job.
fn adapt(made: &LaunchOrder, adoption: &Adoption) -> Result<Adopted, Failed> {
    rustix::system::sethostname(adoption.name.as_bytes()).stage("set the host name")?;
    mounts::write_hosts(&adoption.name, Path::new("/"))?;
    if adoption.disk != made.disk {
        mounts::change_room(&made.guest.workspace, adoption.disk)?;
    }
    if adoption.shared_memory != made.shared_memory {
        devices::change_shared_room(adoption.shared_memory)?;
    }
    let order = LaunchOrder {
        name: adoption.name.clone(),
        disk: adoption.disk,
        shared_memory: adoption.shared_memory,
        guest: adoption.guest.clone(),
        ..made.clone()
    };
    let (enforced, missing) = describe(&order);
    Ok(Adopted { enforced, missing })
}
