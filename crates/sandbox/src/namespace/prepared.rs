//! A cage that stands ahead of its job, and how it becomes the job's.
//!
//! It keeps the name that it was made under in its processes' arguments and in its control groups'
//! names; the record in its folder, which takes the job's name, says so.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::launch::{Adopted, Adoption, LaunchFailure, Storage};
use rustix::event::{PollFd, PollFlags, poll};

use super::held::{Hold, Holds};
use super::record::Record;
use super::running::{self, Grip, NamespaceSandbox};
use super::{Shared, blocking, resources};
use crate::backend::{BackendError, PreparedSandbox, RunningSandbox, SandboxName, SandboxOrder};

/// How long a cage may take to become a job's. It is a millisecond.
const ADOPTION_TIME: Duration = Duration::from_secs(20);

/// What it says then is a few hundred bytes. It comes from inside.
const LONGEST_LINE: u64 = 64 << 10;

pub(super) struct PreparedCage {
    shared: Arc<Shared>,
    /// What it was made like.
    made: SandboxOrder,
    record: Record,
    /// The new process waits at the other end, and ends with it.
    connection: UnixStream,
    /// Keeps sweeps away from it while it waits.
    hold: Hold,
}

impl PreparedCage {
    pub(super) fn make(shared: Arc<Shared>, made: SandboxOrder) -> Result<Self, BackendError> {
        let hold = shared.held.hold(&made.name);
        let record = shared.start_ahead(&made)?;
        match connect(&shared, &made.name) {
            Ok(connection) => Ok(Self { shared, made, record, connection, hold }),
            Err(error) => {
                shared.remove_or_warn(&made.name);
                Err(BackendError::io("reach a sandbox that was made ahead")(error))
            }
        }
    }

    fn become_that_of(
        self,
        order: &SandboxOrder,
    ) -> Result<(Arc<Shared>, Record, Grip, Holds), BackendError> {
        let Self { shared, made, record, connection, hold } = self;
        let own_hold = shared.held.hold(&order.name);
        let adopted = shared.adapt(&made, record, &connection, order);
        if adopted.is_err() {
            // Whichever of the two names it has by now.
            shared.remove_or_warn(&made.name);
            shared.remove_or_warn(&order.name);
        }
        // Its processes keep the name that it was made under, and a sweep that listed the sandboxes
        // before may still come for that.
        let holds = Holds { _name: own_hold, _made_as: Some(hold) };
        adopted.map(|record| {
            let grip = Grip::take(&shared, &record);
            (shared, record, grip, holds)
        })
    }
}

impl Shared {
    fn adapt(
        &self,
        made: &SandboxOrder,
        record: Record,
        connection: &UnixStream,
        order: &SandboxOrder,
    ) -> Result<Record, BackendError> {
        let failed = || BackendError::io("take over a sandbox that was made ahead");
        let folder = self.folder.join(order.name.as_str());
        let launch_order = self.launch_order(order, &folder, record.ids);
        let adoption = Adoption {
            name: order.name.to_string(),
            disk: launch_order.disk,
            shared_memory: launch_order.shared_memory,
            guest: launch_order.guest.clone(),
        };
        let line = serde_json::to_string(&adoption).expect("an adoption is plain data");
        // The limits stand before the guest starts.
        if order.limits != made.limits {
            let limits = self.host_limits(&order.limits);
            self.groups.change(made.name.as_str(), &limits).map_err(failed())?;
        }
        { connection }.write_all(format!("{line}\n").as_bytes()).map_err(failed())?;
        if folder.exists() {
            self.remove(&order.name).map_err(failed())?;
        }
        let (set_up, claims) = self.claim(order, &launch_order, made.name.as_str());
        let record = record.adopted(&order.name, answer(connection)?, set_up, claims);
        // The record knows both names before the folder has the new one, so whoever finds either
        // knows which processes it means.
        let made_folder = self.folder.join(made.name.as_str());
        record.write(&made_folder).map_err(failed())?;
        fs::rename(&made_folder, &folder).map_err(failed())?;
        Ok(record)
    }
}

#[async_trait]
impl PreparedSandbox for PreparedCage {
    fn fits(&self, order: &SandboxOrder) -> bool {
        let Shared { disks, folder, .. } = &*self.shared;
        let storage = |order: &SandboxOrder| resources::storage(&order.limits, *disks, folder);
        let ((made, size), (wanted, wanted_size)) = (storage(&self.made), storage(order));
        // Memory can be given more or less room; a disk has its size for good.
        let has_room = made == wanted && (made == Storage::Memory || size == wanted_size);
        has_room && self.made.nested_sandboxing == order.nested_sandboxing
    }

    fn is_alive(&self) -> bool {
        // Whoever waits there says nothing until it is asked, so anything to read is its end.
        let now = Duration::ZERO.try_into().ok();
        let mut watched = [PollFd::new(&self.connection, PollFlags::IN)];
        !poll(&mut watched, now.as_ref()).is_ok_and(|count| count > 0)
    }

    async fn adopt(
        self: Box<Self>,
        order: &SandboxOrder,
    ) -> Result<Box<dyn RunningSandbox>, BackendError> {
        let order = order.clone();
        let adopted = blocking(move || self.become_that_of(&order)).await;
        adopted.and_then(|(shared, record, grip, holds)| {
            NamespaceSandbox::boxed(shared, record, grip, None, holds)
        })
    }

    async fn discard(self: Box<Self>) {
        let removing = blocking(move || {
            self.shared.remove_or_warn(&self.made.name);
            Ok(())
        });
        // It cannot fail; what could not be removed was logged.
        let _ = removing.await;
    }
}

fn connect(shared: &Shared, name: &SandboxName) -> io::Result<UnixStream> {
    let connection = running::connect(shared, name.as_str())?;
    connection.set_nonblocking(false)?;
    connection.set_read_timeout(Some(ADOPTION_TIME))?;
    Ok(connection)
}

fn answer(connection: &UnixStream) -> Result<Adopted, BackendError> {
    let mut line = String::new();
    let read = BufReader::new(connection.take(LONGEST_LINE)).read_line(&mut line);
    read.map_err(BackendError::io("hear from a sandbox that was made ahead"))?;
    if let Ok(adopted) = serde_json::from_str(&line) {
        return Ok(adopted);
    }
    let failure: LaunchFailure = serde_json::from_str(&line).unwrap_or_else(|_| LaunchFailure {
        stage: "hear from a sandbox that was made ahead".into(),
        error: "it ended without a word".into(),
    });
    Err(BackendError::Launch { stage: failure.stage, error: failure.error })
}
