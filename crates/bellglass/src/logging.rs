//! The program's own log, on standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

/// Starts logging. `BELLGLASS_LOG` chooses what is shown, such as `debug` or `bellglass_worker=trace`.
pub(crate) fn start() {
    let filter =
        EnvFilter::try_from_env("BELLGLASS_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        // Whoever read the log may be gone. To say so where nobody listens would end the task that wrote.
        .log_internal_errors(false)
        .compact()
        .init();
}
