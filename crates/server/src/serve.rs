//! Answers on a listening socket until told to stop, and then stops in good order.

use std::future::{Future, IntoFuture as _};
use std::io;
use std::time::Duration;

use axum::serve::ListenerExt as _;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::App;
use crate::router::build;
use crate::vnc::{self, VncPorts};

/// How long requests may go on after the server was told to stop.
const GRACE: Duration = Duration::from_secs(10);

/// Serves until `shutdown` is done; then event streams end, requests under way are answered, and
/// after [`GRACE`] whatever is left is cut.
///
/// Refuses to listen on an address that other machines reach unless there is a token.
pub async fn serve(listener: TcpListener, app: App, shutdown: impl Future) -> io::Result<()> {
    let address = listener.local_addr()?;
    let open = app.settings.token.as_ref().is_none_or(|token| token.is_empty());
    if open && !(app.settings.loopback_only && address.ip().is_loopback()) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{address} can be reached by other machines, and no token is set"),
        ));
    }
    let stopping = CancellationToken::new();
    let listener = listener.tap_io(|connection| {
        // Events are small and must not wait for each other.
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY cannot be set");
        }
    });
    let vnc = app.settings.vnc.clone().map(VncPorts::open).transpose()?;
    let (router, server) = build(app, vnc, stopping.clone());
    vnc::serve_again(&server).await.map_err(io::Error::other)?;
    let serving = axum::serve(listener, router)
        .with_graceful_shutdown(stopping.clone().cancelled_owned())
        .into_future();
    tokio::pin!(serving);
    tokio::select! {
        ended = &mut serving => return ended,
        _ = shutdown => stopping.cancel(),
    }
    match tokio::time::timeout(GRACE, serving).await {
        Ok(ended) => ended,
        Err(_) => {
            tracing::warn!("some connections did not end in time and were cut");
            Ok(())
        }
    }
}
