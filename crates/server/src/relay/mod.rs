//! Any server answers for any job: what needs a job's sandbox is passed on to the worker that holds it.
//!
//! A worker's internal listener answers the same requests as the server, for those parts of a job that
//! live in its sandbox, and only to requests that are sealed with the cluster's secret (`seal.rs`). Whole
//! requests are passed on, upgrades included (`forward.rs`). What a server has to answer itself, because it
//! is the one that lets people in there, reaches into the sandbox by errands (`reach.rs`, `errand.rs`).

mod errand;
mod forward;
pub(crate) mod reach;
mod seal;

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bellglass_protocol::id::JobId;
use jiff::Timestamp;

use crate::SharedServer;
use crate::problem::ApiError;
use crate::settings::Secret;
use forward::Holder;
pub(crate) use forward::attend;
use seal::Sealed;
pub(crate) use seal::{Seals, Vouched};

/// The servers and workers that share one store.
#[derive(Clone)]
pub struct Cluster {
    /// What all of them know and nobody else does.
    pub secret: Secret,
    /// Whether a job's sandbox runs in this process.
    pub is_here: Arc<dyn Fn(JobId) -> bool + Send + Sync>,
}

/// The middleware: answers here, or has the answer fetched from where the sandbox is.
pub(crate) async fn pass_on(
    State(server): State<SharedServer>,
    request: Request,
    next: Next,
) -> Response {
    let Some(cluster) = &server.app.cluster else { return next.run(request).await };
    let Some(job) = led_into(request.uri().path()) else { return next.run(request).await };
    // What was passed on once is answered here, whatever the answer is.
    if (cluster.is_here)(job) || request.extensions().get::<Vouched>().is_some() {
        return next.run(request).await;
    }
    // A job that nobody holds, and one whose worker cannot be asked, is answered for from the store.
    let address = match server.app.store.address_of_holder(job).await {
        Ok(Some(address)) => address,
        Ok(None) => return next.run(request).await,
        Err(error) => return ApiError::from(error).into_response(),
    };
    let holder = Holder { store: &*server.app.store, job, address: &address };
    match forward::forward(&server, &cluster.secret, holder, request).await {
        Ok(response) => response,
        Err(error) => {
            tracing::warn!(%job, %address, %error, "the worker that holds a job does not answer");
            ApiError::SandboxUnreachable.into_response()
        }
    }
}

/// What the internal listener answers: what is passed on as the server itself would, and errands.
pub(crate) fn internal(router: Router, server: SharedServer, seals: Seals) -> Router {
    Router::new()
        .route(&format!("/jobs/{{id}}/{}", errand::PLACE), get(errand::run))
        .with_state(server)
        .fallback_service(router)
        .layer(from_fn_with_state(seals, answer_sealed))
}

/// The middleware of the internal listener: answers what another process of the cluster asks for, and
/// nothing else.
async fn answer_sealed(State(seals): State<Seals>, mut request: Request, next: Next) -> Response {
    let address = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let opened = seals.open(request.method(), address, request.headers(), Timestamp::now());
    let Some(Sealed { vouched, proof: (name, proof) }) = opened else {
        return ApiError::Unauthorized.into_response();
    };
    let path = request.uri().path();
    let mut response = match led_into(path).is_some() || is_errand(path) {
        true => {
            request.extensions_mut().insert(vouched);
            next.run(request).await
        }
        false => ApiError::NotFound.into_response(),
    };
    response.headers_mut().insert(name, proof);
    response
}

/// The job into whose sandbox an address leads.
fn led_into(path: &str) -> Option<JobId> {
    let (job, rest) = parts(path)?;
    let leads = matches!(rest, "files" | "mcp" | "terminal" | "desktop/websocket" | "ports")
        || rest.starts_with("files/");
    leads.then_some(job)
}

fn is_errand(path: &str) -> bool {
    parts(path).is_some_and(|(_, rest)| rest == errand::PLACE)
}

fn parts(path: &str) -> Option<(JobId, &str)> {
    let (job, rest) = path.strip_prefix("/jobs/")?.split_once('/')?;
    Some((job.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_leads_into_a_sandbox_is_passed_on() {
        let job = JobId::generate();
        for inside in
            ["files", "files/", "files/a/b", "mcp", "terminal", "ports", "desktop/websocket"]
        {
            assert_eq!(led_into(&format!("/jobs/{job}/{inside}")), Some(job), "{inside}");
        }
        // Who is let in to an app, and which page shows a desktop, is known where people come in.
        for elsewhere in [
            "events",
            "output.zip",
            "cancel",
            "steps/1/output",
            "",
            "ports/80/x",
            "jupyter/",
            "desktop/",
            "live",
        ] {
            assert_eq!(led_into(&format!("/jobs/{job}/{elsewhere}")), None, "{elsewhere}");
        }
        assert_eq!(led_into("/jobs/../files"), None);
        assert_eq!(led_into(&format!("/jobs/{job}")), None);
        assert!(
            is_errand(&format!("/jobs/{job}/live")) && !is_errand(&format!("/jobs/{job}/live/x"))
        );
    }
}
