//! Ports of this machine on which desktops are shown to those who know their password: as a page to a
//! browser, as a VNC server to a native viewer.
//!
//! One port for each job that has a desktop, on loopback only, from its acceptance to its end. Which
//! port is whose, and what passwords are made of, is kept in a private file, so that a server that
//! starts again holds what it promised.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{Path, Request, State};
use axum::http::HeaderMap;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bellglass_protocol::id::JobId;
use bellglass_store::{Store, StoreError};
use bytes::BytesMut;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::sync::broadcast::error::RecvError;

use crate::controllers::pages;
use crate::guard::{check_local, put_protective_headers};
use crate::problem::ApiError;
use crate::rfb::{Grip, Showing, Viewer, VncPassword, VncPasswords};
use crate::settings::Secret;
use crate::{SharedServer, page, private_file, sockets};

/// What the operator decides about the ports of desktops.
#[derive(Clone, Debug)]
pub struct VncSettings {
    pub ports: RangeInclusive<u16>,
    /// The password of jobs that are no user's. Each job of a user has its own, and so has every job
    /// without this.
    pub password: Option<Secret>,
    /// Where is written down which port is whose. Nobody else may read it.
    pub record: PathBuf,
}

/// Viewers of one port at once.
const MOST_VIEWERS: usize = 64;

/// A browser speaks first and a native viewer waits to be greeted. Who says nothing for so long is
/// one that waits.
const SPEAKING_FIRST: Duration = Duration::from_millis(300);

/// The ports that are given.
pub(crate) struct VncPorts {
    settings: VncSettings,
    passwords: VncPasswords,
    given: Mutex<Record>,
}

#[derive(Default, Serialize, Deserialize)]
struct Record {
    /// What passwords are made of.
    key: String,
    ports: BTreeMap<JobId, u16>,
}

/// A port that is held for a job that is about to be accepted.
pub(crate) struct Reserved {
    listener: TcpListener,
    port: u16,
}

impl VncPorts {
    pub(crate) fn open(settings: VncSettings) -> io::Result<Self> {
        let mut record: Record = match std::fs::read(&settings.record) {
            Ok(text) => serde_json::from_slice(&text).map_err(io::Error::other)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Record::default(),
            Err(error) => return Err(error),
        };
        if record.key.is_empty() {
            let mut key = [0; 32];
            getrandom::fill(&mut key).map_err(io::Error::other)?;
            record.key = hex::encode(key);
        }
        let passwords = VncPasswords::new(settings.password.as_ref(), record.key.as_bytes());
        let ports = Self { settings, passwords, given: Mutex::new(record) };
        ports.write_down()?;
        Ok(ports)
    }

    /// Holds a free port; nothing if there is none left.
    pub(crate) async fn reserve(&self) -> Option<Reserved> {
        for port in self.settings.ports.clone() {
            let is_given = self.given().ports.values().any(|given| *given == port);
            if !is_given && let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await
            {
                return Some(Reserved { listener, port });
            }
        }
        tracing::warn!("all of `vnc_ports` are taken, so a desktop has no port of its own");
        None
    }

    pub(crate) fn port(&self, job: JobId) -> Option<u16> {
        self.given().ports.get(&job).copied()
    }

    /// The password that the port of a job asks for, if the job has one.
    pub(crate) async fn password(
        &self,
        store: &dyn Store,
        job: JobId,
    ) -> Result<Option<VncPassword>, StoreError> {
        if self.port(job).is_none() {
            return Ok(None);
        }
        let owner = store.owner(job).await?;
        Ok(Some(self.passwords.of(job, owner.as_deref())))
    }

    fn give(&self, job: JobId, port: u16) {
        self.given().ports.insert(job, port);
        self.keep();
    }

    fn take_back(&self, job: JobId) {
        self.given().ports.remove(&job);
        self.keep();
    }

    fn keep(&self) {
        if let Err(error) = self.write_down() {
            tracing::warn!(%error, "the ports of desktops cannot be written down");
        }
    }

    fn write_down(&self) -> io::Result<()> {
        let given = self.given();
        let text = serde_json::to_vec(&*given).map_err(io::Error::other)?;
        private_file::write(&self.settings.record, &text)
    }

    fn given(&self) -> MutexGuard<'_, Record> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves the desktop of a job on the port that was held for it, until the job has ended.
pub(crate) fn serve(server: &SharedServer, job: JobId, reserved: Reserved) {
    let Some(vnc) = &server.vnc else { return };
    vnc.give(job, reserved.port);
    let server = server.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = accept(&server, job, reserved.listener) => {}
            () = is_over(&server, job) => {
                if let Some(vnc) = &server.vnc {
                    vnc.take_back(job);
                }
            }
            // The ports stay whose they are.
            () = server.stopping.cancelled() => {}
        }
    });
}

/// Opens the ports again that were given before the server was started.
pub(crate) async fn serve_again(server: &SharedServer) -> Result<(), StoreError> {
    let Some(vnc) = &server.vnc else { return Ok(()) };
    let given = vnc.given().ports.clone();
    for (job, port) in given {
        let goes_on = match server.app.store.outline(job).await {
            Ok(outline) => !outline.status.is_terminal(),
            Err(StoreError::NotFound(_)) => false,
            Err(error) => return Err(error),
        };
        match goes_on.then_some(TcpListener::bind((Ipv4Addr::LOCALHOST, port))) {
            Some(binding) => match binding.await {
                Ok(listener) => serve(server, job, Reserved { listener, port }),
                Err(error) => {
                    tracing::warn!(%job, port, %error, "a desktop has lost its port");
                    // Nobody is told of a port that is somebody else's by now.
                    match vnc.reserve().await {
                        Some(other) => serve(server, job, other),
                        None => vnc.take_back(job),
                    }
                }
            },
            None => vnc.take_back(job),
        }
    }
    Ok(())
}

/// Returns once the job has ended.
async fn is_over(server: &SharedServer, job: JobId) {
    let mut changes = server.app.store.changes();
    loop {
        match server.app.store.outline(job).await {
            Ok(outline) if outline.status.is_terminal() => return,
            Err(StoreError::NotFound(_)) => return,
            _ => {}
        }
        loop {
            match changes.recv().await {
                Ok(change) if change.job == job && change.status.is_terminal() => return,
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

async fn accept(server: &SharedServer, job: JobId, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(MOST_VIEWERS));
    let router = router(server.clone(), job);
    loop {
        let Ok((connection, _)) = listener.accept().await else {
            // Out of descriptors, most likely. Others will end and give theirs back.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let Ok(place) = places.clone().try_acquire_owned() else { continue };
        let (server, router) = (server.clone(), router.clone());
        tokio::spawn(async move {
            let _place = place;
            let _ = connection.set_nodelay(true);
            if speaks_http(&connection).await {
                serve_page(router, connection).await;
            } else {
                let viewer = Viewer::of_connection(connection, BytesMut::new());
                show(server, job, Grip::OnInput, viewer).await;
            }
        });
    }
}

/// Whether what comes first is the beginning of an HTTP request.
async fn speaks_http(connection: &TcpStream) -> bool {
    let mut first = [0; 1];
    let peeked = tokio::time::timeout(SPEAKING_FIRST, connection.peek(&mut first)).await;
    // Every method begins with a capital letter, as does a viewer's version; no method with an R.
    matches!(peeked, Ok(Ok(1))) && first[0].is_ascii_uppercase() && first[0] != b'R'
}

async fn serve_page(router: Router, connection: TcpStream) {
    // An error means that the browser broke off; nobody is left to tell.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(connection), TowerToHyperService::new(router))
        .with_upgrades()
        .await;
}

async fn show(server: SharedServer, job: JobId, grip: Grip, viewer: Viewer) {
    let Some(vnc) = &server.vnc else { return };
    // A port whose password is not known any more is one that is about to be closed.
    let Ok(Some(password)) = vnc.password(server.app.store.as_ref(), job).await else { return };
    let by = "vnc viewer".into();
    let showing = Showing { server, job, by, grip, password: Some(password) };
    if let Err(error) = showing.to(viewer).await {
        tracing::debug!(%job, error = &error as &dyn std::error::Error, "a viewer left");
    }
}

/// What a browser finds on a port: the page of the desktop, its files and its WebSocket.
fn router(server: SharedServer, job: JobId) -> Router {
    async fn websocket(
        State((server, job)): State<(SharedServer, JobId)>,
        upgrade: WebSocketUpgrade,
    ) -> Response {
        sockets::bounded(upgrade).protocols(["binary"]).on_upgrade(move |socket| async move {
            show(server, job, Grip::OnRequest, Viewer::of_socket(socket)).await;
        })
    }
    async fn index(headers: HeaderMap) -> Response {
        pages::desktop(&headers)
    }
    async fn asset(Path(path): Path<String>, headers: HeaderMap) -> Result<Response, ApiError> {
        page::asset(&path, &headers).ok_or(ApiError::NotFound)
    }
    // The password is asked for over the WebSocket. That no other site's page gets so far is seen to
    // as on the server's own port.
    let admit = async |request: Request, next: Next| {
        let mut response = match check_local(&request) {
            Ok(()) => next.run(request).await,
            Err(error) => error.into_response(),
        };
        put_protective_headers(response.headers_mut());
        response
    };
    Router::new()
        .route("/", get(index))
        .route("/assets/{*path}", get(asset))
        .route("/websocket", get(websocket))
        .fallback(async || ApiError::NotFound)
        .layer(from_fn(admit))
        .with_state((server, job))
}
