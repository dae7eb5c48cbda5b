//! Answers on a listening socket until told to stop, and then stops in good order.

use std::future::{Future, IntoFuture as _};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::serve::ListenerExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::App;
use crate::relay::{self, Seals};
use crate::router::build;
use crate::vnc::{self, VncPorts};

/// How long requests may go on after the server was told to stop.
const GRACE: Duration = Duration::from_secs(10);

/// Where a process answers.
#[derive(Default)]
pub struct Listeners {
    /// For clients.
    pub public: Option<TcpListener>,
    /// For the other processes of the cluster.
    pub internal: Option<TcpListener>,
}

/// Serves clients until `shutdown` is done; then event streams end, requests under way are answered,
/// and after [`GRACE`] whatever is left is cut.
///
/// Refuses to listen on an address that other machines reach unless there is a token.
pub async fn serve(listener: TcpListener, app: App, shutdown: impl Future) -> io::Result<()> {
    serve_on(Listeners { public: Some(listener), internal: None }, app, shutdown).await
}

/// The same for clients, for the other processes of a cluster, or for both.
pub async fn serve_on(listeners: Listeners, app: App, shutdown: impl Future) -> io::Result<()> {
    if let Some(listener) = &listeners.public {
        check_address(listener, &app)?;
    }
    let seals = app.cluster.as_ref().map(|cluster| Seals::new(cluster.secret.clone()));
    let stopping = CancellationToken::new();
    let vnc = app.settings.vnc.clone().map(VncPorts::open).transpose()?;
    let (router, server) = build(app, vnc, stopping.clone())?;
    vnc::serve_again(&server).await.map_err(io::Error::other)?;
    let internal = match (listeners.internal, seals) {
        (Some(listener), Some(seals)) => {
            Some((listener, relay::internal(router.clone(), server.clone(), seals)))
        }
        (Some(_), None) => return Err(io::Error::other("there is no cluster to listen for")),
        (None, _) => None,
    };
    let answering = async {
        tokio::try_join!(
            answer(listeners.public.map(|listener| (listener, router)), relay::attend, &stopping),
            answer(internal, relay::attend, &stopping),
        )
    };
    tokio::pin!(answering);
    tokio::select! {
        ended = &mut answering => return ended.map(drop),
        _ = shutdown => stopping.cancel(),
    }
    match tokio::time::timeout(GRACE, answering).await {
        Ok(ended) => ended.map(drop),
        Err(_) => {
            tracing::warn!("some connections did not end in time and were cut");
            Ok(())
        }
    }
}

/// Answers on one listener until the server stops. Without a listener there is nothing to do.
async fn answer(
    at: Option<(TcpListener, Router)>,
    make_ready: fn(&TcpStream) -> io::Result<()>,
    stopping: &CancellationToken,
) -> io::Result<()> {
    let Some((listener, router)) = at else {
        stopping.cancelled().await;
        return Ok(());
    };
    let listener = listener.tap_io(move |connection| {
        if let Err(error) = make_ready(connection) {
            tracing::debug!(%error, "a connection keeps its usual settings");
        }
    });
    // From where wrong tokens come is counted.
    axum::serve(listener, router.into_make_service_with_connect_info::<SocketAddr>())
        .with_graceful_shutdown(stopping.clone().cancelled_owned())
        .into_future()
        .await
}

fn check_address(listener: &TcpListener, app: &App) -> io::Result<()> {
    let address = listener.local_addr()?;
    let open = app.settings.token.as_ref().is_none_or(|token| token.is_empty());
    if open && !(app.settings.loopback_only && address.ip().is_loopback()) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{address} can be reached by other machines, and no token is set"),
        ));
    }
    Ok(())
}
