//! A cage that was made ahead of its job, and what of it changes when the job comes.
//!
//! The guest in it is as ready as it can be: it has given up what it must, looked around and waits. One
//! thread has kept the power to build. It does what the job asks for, once, and ends; nothing but the
//! guest has run in the cage until then.

use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;

use bellglass_protocol::launch::{Adopted, Adoption, LaunchFailure, LaunchOrder};

use super::syscalls::Stage as _;
use super::{Failed, describe, devices, mounts, privileges};

/// The thread that can still build.
pub(crate) struct Builder {
    adoption: mpsc::Sender<Adoption>,
    thread: JoinHandle<Result<Adopted, Failed>>,
}

impl Builder {
    /// Starts the thread, and gives up all that the calling one must not have.
    pub(super) fn leave_behind(made: LaunchOrder) -> Result<Self, Failed> {
        let (adoption, to_come) = mpsc::channel();
        let thread = std::thread::Builder::new().name("builder".into()).spawn(move || {
            let gone = |_| io::Error::other("no job came");
            let adoption = to_come.recv().map_err(gone).stage("wait for a job")?;
            adapt(&made, &adoption)
        });
        let thread = thread.stage("start the builder")?;
        privileges::drop_all_but_needed()?;
        Ok(Self { adoption, thread })
    }

    /// Makes this cage the one that would have been built for the job. The thread is gone afterwards,
    /// and all power over the cage with it.
    pub(crate) fn build(self, adoption: &Adoption) -> Result<Adopted, LaunchFailure> {
        // A thread that is gone says why when it is joined.
        let _ = self.adoption.send(adoption.clone());
        let broken = |_| io::Error::other("the thread that adapts the cage broke");
        let adopted = self.thread.join().map_err(broken).stage("adapt the cage");
        adopted
            .flatten()
            .map_err(|Failed { stage, error }| LaunchFailure { stage, error: error.to_string() })
    }
}

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
