//! Passes one request on to a worker and its answer back, upgrades to other protocols included.

use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use bellglass_protocol::id::JobId;
use bellglass_store::Store;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use rustix::net::sockopt;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;

use super::seal::{self, Vouched};
use crate::caller::Caller;
use crate::settings::Secret;
use crate::{SharedServer, standing};

/// A worker on the same network is reached at once or not at all.
const CONNECT_TIME: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub(super) enum ForwardError {
    #[error("failed to connect: {0}")]
    Connect(#[from] io::Error),
    #[error("failed to ask: {0}")]
    Ask(#[from] hyper::Error),
    #[error("whoever answers does not know the cluster's secret")]
    Unproven,
    #[error("the job is in other hands by now")]
    Moved,
}

/// How often it is looked whether the worker that is asked still holds the job.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// The worker that holds a job, as far as the store knew when it was chosen.
#[derive(Clone, Copy)]
pub(super) struct Holder<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) job: JobId,
    pub(super) address: &'a str,
}

impl Holder<'_> {
    /// Returns once it is another's, or nobody's. A worker that stands still takes requests and answers none.
    async fn has_changed(self) {
        loop {
            tokio::time::sleep(LOOK_AGAIN).await;
            // While the database is away, nobody can take a job over.
            if let Ok(address) = self.store.address_of_holder(self.job).await
                && address.as_deref() != Some(self.address)
            {
                return;
            }
        }
    }
}

/// Passes a request on for as long as its caller is let in here: there, nobody knows when that ends.
pub(super) async fn forward(
    server: &SharedServer,
    secret: &Secret,
    holder: Holder<'_>,
    mut request: Request,
) -> Result<Response, ForwardError> {
    let caller = request.extensions().get::<Caller>().cloned().unwrap_or(Caller::Nobody);
    // The client's side of an upgrade has to be taken before the request goes away.
    let upgrade = request.headers().contains_key(header::UPGRADE);
    let from_client: Option<OnUpgrade> = upgrade.then(|| hyper::upgrade::on(&mut request));
    take_away_what_is_the_clients(request.headers_mut());
    let vouched = Vouched { owner: caller.owner() };
    let mut response = ask(secret, holder, &vouched, request).await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(from_client) = from_client
    {
        let to_worker = hyper::upgrade::on(&mut response);
        tokio::spawn(join(server.clone(), caller, from_client, to_worker));
    }
    Ok(response.map(Body::new))
}

/// Sends a sealed request to a worker, and sees to it that a worker answers. However long that takes is waited
/// for while the worker holds the job.
pub(super) async fn ask(
    secret: &Secret,
    holder: Holder<'_>,
    vouched: &Vouched,
    request: Request,
) -> Result<axum::http::Response<Incoming>, ForwardError> {
    let connection = tokio::time::timeout(CONNECT_TIME, TcpStream::connect(holder.address));
    let connection = connection.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    attend(&connection)?;
    let (mut sender, driver) = http1::handshake(TokioIo::new(connection)).await?;
    tokio::spawn(driver.with_upgrades());

    let (mut head, body) = request.into_parts();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    if let (None, Some(authority)) = (head.headers.get(header::HOST), head.uri.authority()) {
        let host = authority.as_str().try_into().map_err(io::Error::other)?;
        head.headers.insert(header::HOST, host);
    }
    head.uri = path.parse().map_err(io::Error::other)?;
    head.version = axum::http::Version::HTTP_11;
    let (sealed, number) = seal::seal(secret, &head.method, &path, vouched, Timestamp::now());
    head.headers.insert(seal::SEAL, sealed);

    let mut response = tokio::select! {
        response = sender.send_request(Request::from_parts(head, body)) => response?,
        () = holder.has_changed() => return Err(ForwardError::Moved),
    };
    if !seal::is_proof(secret, &number, response.headers()) {
        return Err(ForwardError::Unproven);
    }
    response.headers_mut().remove(seal::PROOF);
    Ok(response)
}

/// Passes bytes between a client and a worker that now speak a protocol of their own. Either side may end
/// it, and it does not matter how.
async fn join(server: SharedServer, caller: Caller, client: OnUpgrade, worker: OnUpgrade) {
    let Ok((client, worker)) = tokio::try_join!(client, worker) else { return };
    let (mut client, mut worker) = (TokioIo::new(client), TokioIo::new(worker));
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut worker) => {}
        () = standing::ended(server.clone(), caller) => {}
        () = server.stopping.cancelled() => {}
    }
}

/// Makes a connection between processes ready: nothing on it waits for more, and it ends within a minute when
/// the machine at its other end is gone without a word.
pub(crate) fn attend(connection: &TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    sockopt::set_socket_keepalive(connection, true)?;
    sockopt::set_tcp_keepidle(connection, Duration::from_secs(20))?;
    sockopt::set_tcp_keepintvl(connection, Duration::from_secs(10))?;
    sockopt::set_tcp_keepcnt(connection, 4)?;
    Ok(())
}

/// What a client shows to prove who it is stays here, and no client seals for us.
fn take_away_what_is_the_clients(headers: &mut HeaderMap) {
    for name in [header::AUTHORIZATION, header::COOKIE] {
        headers.remove(name);
    }
    headers.remove(seal::SEAL);
}
