//! A cage that stands ahead of its job, and how it becomes the job's.
//!
//! It keeps the name that it was made under in its processes' arguments and in its control groups'
//! names; the record in its folder, which takes the job's name, says so.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::launch::{Adopted, Adoption, LaunchFailure};

use super::record::{Record, WIRE};
use super::running::NamespaceSandbox;
use super::{Purpose, Shared, blocking, disk_room, guest_config, shared_memory};
use crate::backend::{BackendError, PreparedSandbox, RunningSandbox, SandboxName, SandboxOrder};

/// How long a cage may take to become a job's. It is a millisecond.
const ADOPTION_TIME: Duration = Duration::from_secs(20);

pub(super) struct PreparedCage {
    shared: Arc<Shared>,
    /// What it was made like.
    made: SandboxOrder,
    record: Record,
    /// The new process waits at the other end, and ends with it.
    connection: UnixStream,
}

impl PreparedCage {
    pub(super) fn make(shared: Arc<Shared>, made: SandboxOrder) -> Result<Self, BackendError> {
        let record = shared.start(&made, Purpose::Later)?;
        match connect(&shared, &made.name) {
            Ok(connection) => Ok(Self { shared, made, record, connection }),
            Err(error) => {
                shared.remove(&made.name);
                Err(BackendError::io("reach a sandbox that was made ahead")(error))
            }
        }
    }

    fn become_that_of(self, order: &SandboxOrder) -> Result<(Arc<Shared>, Record), BackendError> {
        let (shared, made) = (self.shared.clone(), self.made.name.clone());
        let adopted = self.adapt(order);
        if adopted.is_err() {
            // Whichever of the two names it has by now.
            shared.remove(&made);
            shared.remove(&order.name);
        }
        adopted.map(|record| (shared, record))
    }

    fn adapt(self, order: &SandboxOrder) -> Result<Record, BackendError> {
        let Self { shared, made, record, connection } = self;
        let failed = || BackendError::io("take over a sandbox that was made ahead");
        let adoption = Adoption {
            name: order.name.to_string(),
            disk: disk_room(&order.limits),
            shared_memory: shared_memory(&order.limits),
            guest: guest_config(order),
        };
        let line = serde_json::to_string(&adoption).expect("an adoption is plain data");
        // The limits stand before the guest starts.
        if order.limits != made.limits {
            shared.groups.change(made.name.as_str(), &order.limits).map_err(failed())?;
        }
        (&connection).write_all(format!("{line}\n").as_bytes()).map_err(failed())?;
        let folder = shared.folder.join(order.name.as_str());
        if folder.exists() {
            shared.remove(&order.name);
        }
        let adopted = answer(&connection)?;
        let record = record.adopted(&order.name, adopted, shared.set_up(order));
        // The record knows both names before the folder has the new one, so whoever finds either
        // knows which processes it means.
        let made_folder = shared.folder.join(made.name.as_str());
        record.write(&made_folder).map_err(failed())?;
        fs::rename(&made_folder, &folder).map_err(failed())?;
        Ok(record)
    }
}

#[async_trait]
impl PreparedSandbox for PreparedCage {
    async fn adopt(
        self: Box<Self>,
        order: &SandboxOrder,
    ) -> Result<Box<dyn RunningSandbox>, BackendError> {
        let order = order.clone();
        let (shared, record) = blocking(move || self.become_that_of(&order)).await?;
        NamespaceSandbox::boxed(shared, record)
    }

    async fn discard(self: Box<Self>) {
        let removing = blocking(move || {
            self.shared.remove(&self.made.name);
            Ok(())
        });
        // It cannot fail; what could not be removed was logged.
        let _ = removing.await;
    }
}

fn connect(shared: &Shared, name: &SandboxName) -> io::Result<UnixStream> {
    let folder = fs::File::open(shared.folder.join(name.as_str()))?;
    // Through the folder's descriptor, since a socket's path is limited to 108 bytes.
    let connection = UnixStream::connect(format!("/proc/self/fd/{}/{WIRE}", folder.as_raw_fd()))?;
    connection.set_read_timeout(Some(ADOPTION_TIME))?;
    Ok(connection)
}

fn answer(connection: &UnixStream) -> Result<Adopted, BackendError> {
    let mut line = String::new();
    let read = BufReader::new(connection).read_line(&mut line);
    read.map_err(BackendError::io("hear from a sandbox that was made ahead"))?;
    if let Ok(adopted) = serde_json::from_str(&line) {
        return Ok(adopted);
    }
    let failure: LaunchFailure = serde_json::from_str(&line).unwrap_or_else(|_| LaunchFailure {
        stage: "hear from a sandbox that was made ahead".into(),
        error: "it ended without a word".into(),
        pid: None,
    });
    Err(BackendError::Launch { stage: failure.stage, error: failure.error })
}
