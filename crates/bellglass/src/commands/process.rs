//! What the long-lived processes have in common: how they are told to stop or to read anew, and that
//! their parts end together.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use bellglass_store::StoreError;
use bellglass_worker::Worker;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::exit::Exit;
use crate::host_network::HostNetwork;

/// Starts a worker. The token tells when it is at its end: until then its sandboxes can be reached.
pub(super) fn start(
    worker: Worker,
    shutdown: &CancellationToken,
) -> (JoinHandle<Result<(), StoreError>>, CancellationToken) {
    let (shutdown, worked) = (shutdown.clone(), CancellationToken::new());
    let end = worked.clone().drop_guard();
    let running = tokio::spawn(async move {
        // Dropped also when the worker panics.
        let _end = end;
        worker.run(shutdown).await
    });
    (running, worked)
}

/// Runs server and worker until both are at their end. When one of them ends, so does the other: a
/// server that accepts jobs on which nobody works would be worse than none.
pub(super) async fn run_together(
    serving: impl Future<Output = io::Result<()>>,
    mut worker: JoinHandle<Result<(), StoreError>>,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    tokio::pin!(serving);
    let (served, worked, uncalled) = tokio::select! {
        served = &mut serving => {
            shutdown.cancel();
            (served, worker.await, false)
        }
        worked = &mut worker => {
            let uncalled = !shutdown.is_cancelled();
            if uncalled {
                tracing::error!("the worker ended by itself; stopping the server");
            }
            shutdown.cancel();
            (serving.await, worked, uncalled)
        }
    };
    worked.context("the worker panicked")?.context("the worker failed")?;
    anyhow::ensure!(!uncalled, "the worker ended by itself");
    served.context("the server failed")
}

/// Reads the configuration again at SIGHUP and puts its part about the network in force.
pub(super) async fn reload_on_signal(named: Option<PathBuf>, network: Arc<HostNetwork>) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    while hangup.recv().await.is_some() {
        match Config::load(named.as_deref()).and_then(|config| config.network_config()) {
            Ok(config) => {
                network.replace(config);
                tracing::info!("the network part of the configuration was read again");
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(error, "the configuration stays as it was");
            }
        }
    }
}

/// Stops gently at the first Ctrl-C or SIGTERM, at once at the second. Both are caught from this call on:
/// whoever hears that the server is there may end it at once.
pub(super) fn cancel_on_signal(shutdown: CancellationToken) -> impl Future<Output = ()> + Send {
    use tokio::signal::unix::{SignalKind, signal};
    let caught = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    async move {
        let (Ok(mut interrupt), Ok(mut terminate)) = caught else {
            tracing::warn!("signals cannot be caught; a stop will not be gentle");
            return;
        };
        let mut next = async || {
            tokio::select! {
                _ = interrupt.recv() => (),
                _ = terminate.recv() => (),
            }
        };
        next().await;
        tracing::info!("stopping; once more to stop at once");
        shutdown.cancel();
        next().await;
        std::process::exit(i32::from(Exit::Failure as u8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves until it is told to stop, as the real one does.
    async fn together(
        work: impl Future<Output = Result<(), StoreError>> + Send + 'static,
    ) -> anyhow::Result<()> {
        let shutdown = CancellationToken::new();
        let stopped = shutdown.clone().cancelled_owned();
        let serving = async {
            stopped.await;
            Ok(())
        };
        run_together(serving, tokio::spawn(work), &shutdown).await
    }

    #[tokio::test]
    async fn a_worker_that_ends_takes_the_server_with_it() {
        let failed = together(async { Err(StoreError::Closed) }).await.unwrap_err();
        assert_eq!(failed.to_string(), "the worker failed");
        let panicked = together(async { panic!("a bug") }).await.unwrap_err();
        assert_eq!(panicked.to_string(), "the worker panicked");
        let ended = together(async { Ok(()) }).await.unwrap_err();
        assert_eq!(ended.to_string(), "the worker ended by itself");
    }

    #[tokio::test]
    async fn a_server_that_ends_takes_the_worker_with_it() {
        let shutdown = CancellationToken::new();
        let stopped = shutdown.clone().cancelled_owned();
        let worker = tokio::spawn(async {
            stopped.await;
            Ok(())
        });
        let serving = async { Err(io::Error::other("no socket")) };
        let failed = run_together(serving, worker, &shutdown).await.unwrap_err();
        assert_eq!(failed.to_string(), "the server failed");
    }
}
