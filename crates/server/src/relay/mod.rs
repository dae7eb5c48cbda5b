//! Any server answers for any job: what needs a job's sandbox is passed on to the worker that holds it.
//!
//! A worker's internal listener answers the same requests as the server, for those parts of a job that
//! live in its sandbox, and only to requests that are sealed with the cluster's secret (`seal.rs`). Whole
//! requests are passed on, upgrades included (`forward.rs`), so whatever a job's address offers is
//! offered by every server.

mod forward;
mod seal;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use bellglass_protocol::id::JobId;
use jiff::Timestamp;

use crate::SharedServer;
use crate::problem::ApiError;
use crate::settings::Secret;
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
    let Some(job) = job_with_sandbox(request.uri().path()) else { return next.run(request).await };
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
    match forward::forward(&server, &cluster.secret, &address, request).await {
        Ok(response) => response,
        Err(error) => {
            tracing::warn!(%job, %address, %error, "the worker that holds a job does not answer");
            ApiError::SandboxUnreachable.into_response()
        }
    }
}

/// The middleware of the internal listener: answers what another process of the cluster passes on, and
/// nothing else.
pub(crate) async fn answer_sealed(
    State(seals): State<Seals>,
    mut request: Request,
    next: Next,
) -> Response {
    let address = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let opened = seals.open(request.method(), address, request.headers(), Timestamp::now());
    let Some(Sealed { vouched, proof: (name, proof) }) = opened else {
        return ApiError::Unauthorized.into_response();
    };
    let mut response = match job_with_sandbox(request.uri().path()) {
        Some(_) => {
            request.extensions_mut().insert(vouched);
            next.run(request).await
        }
        None => ApiError::NotFound.into_response(),
    };
    response.headers_mut().insert(name, proof);
    response
}

/// The job whose sandbox an address leads into.
pub(crate) fn job_with_sandbox(path: &str) -> Option<JobId> {
    let (job, rest) = path.strip_prefix("/jobs/")?.split_once('/')?;
    let part = rest.split('/').next().unwrap_or_default();
    let inside = ["files", "mcp", "terminal", "desktop", "jupyter", "ports", "live"];
    if !inside.contains(&part) {
        return None;
    }
    job.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_leads_into_a_sandbox_is_passed_on() {
        let job = JobId::generate();
        for inside in ["files", "files/a/b", "mcp", "terminal", "ports/80/x", "desktop/"] {
            assert_eq!(job_with_sandbox(&format!("/jobs/{job}/{inside}")), Some(job), "{inside}");
        }
        for elsewhere in ["events", "output.zip", "cancel", "steps/1/output", ""] {
            assert_eq!(job_with_sandbox(&format!("/jobs/{job}/{elsewhere}")), None, "{elsewhere}");
        }
        assert_eq!(job_with_sandbox("/jobs/../files"), None);
        assert_eq!(job_with_sandbox(&format!("/jobs/{job}")), None);
    }
}
