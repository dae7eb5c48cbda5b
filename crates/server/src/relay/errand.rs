//! What a server wants of a sandbox that runs with a worker, where no request of a client is to be passed
//! on: to connect to something inside, to have the desktop in hand, to note a visit.
//!
//! The worker's side of it. An errand stands in the address of a sealed request, so it is sealed too.

use std::time::Duration;

use axum::Json;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bellglass_protocol::tunnel::{Inside, LivePlace};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy, split};

use crate::SharedServer;
use crate::extract::JobPath;
use crate::live::{LiveError, LiveStream, Taken};
use crate::problem::ApiError;
use crate::sockets::SILENCE;

/// Where errands are run, beside what is passed on.
pub(super) const PLACE: &str = "live";

/// What a connection becomes that an errand opens.
pub(super) const PROTOCOL: HeaderValue = HeaderValue::from_static("bellglass-live");

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "errand")]
pub(super) enum Errand {
    Connect {
        to: Inside,
    },
    ViewDesktop {
        by: String,
    },
    /// The desktop is in hand while the connection lasts and something is said over it now and then.
    TakeDesktop {
        by: String,
    },
    NoteVisit {
        by: String,
        place: LivePlace,
    },
}

/// An errand as it stands in an address.
#[derive(Serialize, Deserialize)]
pub(super) struct Sent {
    pub(super) errand: String,
}

/// What an errand opened.
enum Opened {
    Stream(LiveStream),
    Desktop(Taken),
}

/// How much is read at once.
const PIECE: usize = 16 << 10;

/// How long whoever asked is still listened to when all is said.
const LAST_WORDS: Duration = Duration::from_secs(5);

pub(super) async fn run(
    State(server): State<SharedServer>,
    JobPath(job): JobPath,
    Query(Sent { errand }): Query<Sent>,
    mut request: Request,
) -> Result<Response, ApiError> {
    // Another version of the program may have errands that this one does not know.
    let errand = serde_json::from_str(&errand).map_err(|_| ApiError::NotFound)?;
    let live = &server.app.live;
    let opened = match errand {
        Errand::Connect { to } => live.connect(job, to).await.map(Opened::Stream),
        Errand::ViewDesktop { by } => live.view_desktop(job, &by).await.map(Opened::Stream),
        Errand::TakeDesktop { by } => live.take_desktop(job, &by).await.map(Opened::Desktop),
        Errand::NoteVisit { by, place } => {
            return Ok(match live.note_visit(job, &by, place).await {
                Ok(()) => StatusCode::NO_CONTENT.into_response(),
                Err(error) => refused(&error),
            });
        }
    };
    let opened = match opened {
        Ok(opened) => opened,
        Err(error) => return Ok(refused(&error)),
    };
    tokio::spawn(serve(server, hyper::upgrade::on(&mut request), opened));
    let upgrade =
        [(header::CONNECTION, HeaderValue::from_static("Upgrade")), (header::UPGRADE, PROTOCOL)];
    Ok((StatusCode::SWITCHING_PROTOCOLS, upgrade).into_response())
}

/// The error itself is sent, for whoever asked to make of it what they would make of their own.
fn refused(error: &LiveError) -> Response {
    (StatusCode::CONFLICT, Json(error)).into_response()
}

async fn serve(server: SharedServer, asker: OnUpgrade, opened: Opened) {
    let Ok(asker) = asker.await else { return };
    let asker = TokioIo::new(asker);
    let served = async {
        match opened {
            Opened::Stream(inside) => pass(asker, inside).await,
            Opened::Desktop(taken) => hold(asker, taken).await,
        }
    };
    tokio::select! {
        () = served => {}
        () = server.stopping.cancelled() => {}
    }
}

/// Passes bytes both ways. When whoever asked is gone, so is what they opened, whatever is inside does; when
/// what is inside has said all, they still hear it.
async fn pass(asker: impl AsyncRead + AsyncWrite, inside: LiveStream) {
    let (mut from_asker, mut to_asker) = split(asker);
    let (mut from_inside, mut to_inside) = split(inside);
    let inward = async move {
        let (mut piece, mut is_heard) = (vec![0; PIECE], true);
        while let Ok(count @ 1..) = from_asker.read(&mut piece).await {
            // What nobody takes any more is read all the same: a connection that is closed on something
            // unread loses what was said the other way.
            if is_heard {
                is_heard = to_inside.write_all(&piece[..count]).await.is_ok()
                    && to_inside.flush().await.is_ok();
            }
        }
    };
    let outward = async move {
        let _ = copy(&mut from_inside, &mut to_asker).await;
        let _ = to_asker.shutdown().await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    tokio::select! {
        () = inward => {}
        () = outward => {}
    }
}

/// Holds the desktop for whoever asked, until they are gone or silent for too long.
async fn hold(mut asker: impl AsyncRead + Unpin, taken: Taken) {
    let mut sign = [0; 16];
    while let Ok(Ok(1..)) = tokio::time::timeout(SILENCE, asker.read(&mut sign)).await {}
    drop(taken);
}
