//! A sandbox in use: what a backend started, the guest inside it, and the report about both.

use std::time::Duration;

use bellglass_protocol::report::SandboxReport;

use crate::backend::{Backend, BackendError, Relief, RunningSandbox, SandboxName, SandboxOrder};
use crate::client::{ClientError, GuestClient};

/// How long a guest may take to greet.
const GREETING_TIME: Duration = Duration::from_secs(20);
/// The same where its cage has yet to be built: on a slow file system, or with little processor time.
const STARTING_TIME: Duration = Duration::from_secs(80);

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error(transparent)]
    Backend(#[from] BackendError),
    #[error("the guest could not be reached: {0}")]
    Guest(#[from] ClientError),
    #[error("the guest did not greet within {} s", .0.as_secs())]
    NoGreeting(Duration),
    #[error("the sandbox is not what it is claimed to be: {}", failures(.0))]
    NotSealed(Box<SandboxReport>),
}

/// A sandbox with its guest answering. Must be ended with [`Sandbox::destroy`].
pub struct Sandbox {
    running: Box<dyn RunningSandbox>,
    guest: GuestClient,
    report: SandboxReport,
}

impl Sandbox {
    /// Starts a sandbox and greets its guest. On an error nothing of it is left.
    pub async fn start(
        backend: &dyn Backend,
        order: &SandboxOrder,
        image: &str,
    ) -> Result<Self, SandboxError> {
        let running = backend.start(order).await?;
        Self::greet(backend, running, image, STARTING_TIME).await
    }

    /// Takes up a sandbox that an earlier process of ours left running.
    pub async fn find(
        backend: &dyn Backend,
        name: &SandboxName,
        image: &str,
    ) -> Result<Option<Self>, SandboxError> {
        match backend.find(name).await? {
            Some(running) => Self::greet(backend, running, image, GREETING_TIME).await.map(Some),
            None => Ok(None),
        }
    }

    async fn greet(
        backend: &dyn Backend,
        running: Box<dyn RunningSandbox>,
        image: &str,
        time: Duration,
    ) -> Result<Self, SandboxError> {
        let greeting = async {
            let wire = running.connect().await?;
            let (guest, probe) = GuestClient::connect(wire).await?;
            Ok((guest.with_side_door(running.side_door()), probe))
        };
        let greeted = tokio::time::timeout(time, greeting).await;
        let sealed =
            greeted.unwrap_or(Err(SandboxError::NoGreeting(time))).and_then(|(guest, probe)| {
                let set_up = running.set_up();
                let report = SandboxReport {
                    backend: backend.name().into(),
                    isolation: backend.level(),
                    image: image.into(),
                    start: set_up.start,
                    enforced: set_up.enforced,
                    missing: set_up.missing,
                    checks: running.attest(&probe),
                    inside: probe,
                };
                match report.checks.iter().all(|check| check.holds) {
                    true => Ok((guest, report)),
                    // Nobody may work in a sandbox that is less than it says.
                    false => Err(SandboxError::NotSealed(Box::new(report))),
                }
            });
        match sealed {
            Ok((guest, report)) => {
                running.greeted();
                Ok(Self { running, guest, report })
            }
            Err(error) => {
                let cause = match error {
                    SandboxError::NotSealed(_) => None,
                    _ => running.failure().await,
                };
                if let Err(not_ended) = running.stop().await {
                    tracing::error!(%not_ended, "a sandbox that cannot be used does not end");
                }
                Err(cause.map_or(error, SandboxError::Backend))
            }
        }
    }

    pub fn guest(&self) -> &GuestClient {
        &self.guest
    }

    pub fn report(&self) -> &SandboxReport {
        &self.report
    }

    /// Returns when the guest is gone, whoever ended it.
    pub async fn gone(&self) {
        self.running.gone().await;
    }

    pub async fn out_of_memory_kills(&self) -> u64 {
        self.running.out_of_memory_kills().await
    }

    /// Lets the sandbox have a whole processor, if it had less, until what this returns is dropped.
    pub fn relieve(&self) -> Relief {
        self.running.relieve()
    }

    /// Ends every process of the sandbox and removes what it used.
    pub async fn destroy(&self) -> Result<(), BackendError> {
        self.running.stop().await
    }
}

/// Every claim that does not hold, in words.
fn failures(report: &SandboxReport) -> String {
    let failed = report.checks.iter().filter(|check| !check.holds).map(|check| {
        format!("{} should be `{}` and is `{}`", check.subject, check.claimed, check.found)
    });
    failed.collect::<Vec<_>>().join("; ")
}
