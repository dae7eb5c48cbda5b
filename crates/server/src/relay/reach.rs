//! Reaches into a sandbox, wherever it runs: here, or with the worker that holds its job.
//!
//! For what this server does itself, such as showing an app or a desktop under a port. Where it is a
//! client's request that leads into a sandbox, all of it is passed on instead.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, header};
use bellglass_protocol::id::JobId;
use bellglass_protocol::tunnel::{Inside, LivePlace};
use bellglass_store::Store;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::oneshot;

use super::errand::{Errand, PLACE, PROTOCOL, Sent};
use super::forward::{ForwardError, Holder, ask};
use super::seal::Vouched;
use crate::Server;
use crate::live::{LiveError, LiveStream, Taken};
use crate::settings::Secret;
use crate::sockets::HEARTBEAT;

/// Connects to something inside a sandbox.
pub(crate) async fn connect(
    server: &Server,
    job: JobId,
    to: Inside,
) -> Result<LiveStream, LiveError> {
    match elsewhere(server, job).await? {
        Some(there) => there.open(Errand::Connect { to }).await,
        None => server.app.live.connect(job, to).await,
    }
}

/// Connects to a desktop, and has it recorded who did.
pub(crate) async fn view_desktop(
    server: &Server,
    job: JobId,
    by: &str,
) -> Result<LiveStream, LiveError> {
    match elsewhere(server, job).await? {
        Some(there) => there.open(Errand::ViewDesktop { by: by.into() }).await,
        None => server.app.live.view_desktop(job, by).await,
    }
}

/// Gives a desktop to a person until what this returns is dropped.
pub(crate) async fn take_desktop(
    server: &Server,
    job: JobId,
    by: &str,
) -> Result<Taken, LiveError> {
    match elsewhere(server, job).await? {
        Some(there) => Ok(kept_in_hand(there.open(Errand::TakeDesktop { by: by.into() }).await?)),
        None => server.app.live.take_desktop(job, by).await,
    }
}

/// Has it recorded that a person opened something inside.
pub(crate) async fn note_visit(
    server: &Server,
    job: JobId,
    by: &str,
    place: LivePlace,
) -> Result<(), LiveError> {
    match elsewhere(server, job).await? {
        Some(there) => there.send(&Errand::NoteVisit { by: by.into(), place }).await.map(drop),
        None => server.app.live.note_visit(job, by, place).await,
    }
}

/// The worker that holds a job.
struct There<'a> {
    store: &'a dyn Store,
    secret: &'a Secret,
    address: String,
    job: JobId,
}

/// Who is to be asked about a job's sandbox, unless that runs here or nowhere.
async fn elsewhere(server: &Server, job: JobId) -> Result<Option<There<'_>>, LiveError> {
    let Some(cluster) = &server.app.cluster else { return Ok(None) };
    if (cluster.is_here)(job) {
        return Ok(None);
    }
    let address = server.app.store.address_of_holder(job).await;
    let address = address.map_err(|error| LiveError::Broken(error.to_string()))?;
    let store = &*server.app.store;
    Ok(address.map(|address| There { store, secret: &cluster.secret, address, job }))
}

/// The longest refusal that is read.
const LARGEST_REFUSAL: usize = 64 << 10;

impl There<'_> {
    async fn open(&self, errand: Errand) -> Result<LiveStream, LiveError> {
        let mut response = self.send(&errand).await?;
        let upgraded = hyper::upgrade::on(&mut response).await;
        let upgraded = upgraded.map_err(|error| LiveError::Broken(error.to_string()))?;
        Ok(Box::new(TokioIo::new(upgraded)))
    }

    async fn send(&self, errand: &Errand) -> Result<axum::http::Response<Incoming>, LiveError> {
        let broken = |error: &dyn std::error::Error| LiveError::Broken(error.to_string());
        let errand = serde_json::to_string(errand).map_err(|error| broken(&error))?;
        let query = serde_urlencoded::to_string(Sent { errand }).map_err(|error| broken(&error))?;
        let request = Request::builder()
            .method(Method::GET)
            .uri(format!("/jobs/{}/{PLACE}?{query}", self.job))
            .header(header::HOST, &self.address)
            .header(header::CONNECTION, HeaderValue::from_static("Upgrade"))
            .header(header::UPGRADE, PROTOCOL)
            .body(Body::empty())
            .map_err(|error| broken(&error))?;
        // Whoever is let in was let in here, and an errand says on whose behalf it is run.
        let vouched = Vouched { owner: None };
        let holder = Holder { store: self.store, job: self.job, address: &self.address };
        let asked = ask(self.secret, holder, &vouched, request).await;
        let response = asked.map_err(|error: ForwardError| {
            let (job, address) = (self.job, &self.address);
            tracing::warn!(%job, %address, %error, "the worker that holds a job does not answer");
            broken(&error)
        })?;
        match response.status() {
            StatusCode::SWITCHING_PROTOCOLS | StatusCode::NO_CONTENT => Ok(response),
            StatusCode::CONFLICT => Err(refusal(response).await),
            status => Err(LiveError::Broken(format!("its worker answered {status}"))),
        }
    }
}

/// What the worker says that the sandbox said.
async fn refusal(response: axum::http::Response<Incoming>) -> LiveError {
    let read = Limited::new(response.into_body(), LARGEST_REFUSAL).collect().await;
    let read = read.ok().and_then(|body| serde_json::from_slice(&body.to_bytes()).ok());
    read.unwrap_or_else(|| LiveError::Broken("its worker answered something unreadable".into()))
}

/// Says now and then that the desktop is still wanted: a worker whose server has died on it must not take
/// silence for that.
fn kept_in_hand(mut connection: LiveStream) -> Taken {
    let (in_hand, mut let_go) = oneshot::channel::<()>();
    tokio::spawn(async move {
        let mut heartbeat = tokio::time::interval(HEARTBEAT);
        loop {
            tokio::select! {
                // Nothing is ever sent over it: it ends when it is dropped.
                _ = &mut let_go => return,
                _ = heartbeat.tick() => {}
            }
            if connection.write_all(&[0]).await.is_err() || connection.flush().await.is_err() {
                return;
            }
        }
    });
    Taken(Box::new(in_hand))
}
