//! `GET /audit`: what was done to the server as a whole, and by whom.

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures::stream;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::SharedServer;
use crate::extract::Parameters;
use crate::problem::{ApiError, Problem};

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditParameters {
    /// Only what came after the line of this number.
    #[param(nullable = false)]
    after: Option<u64>,
}

/// Lines that are read at once.
const PAGE: u32 = 500;

/// The audit log
///
/// What was done to tokens, links, memories and old jobs, as lines of JSON in one hash chain;
/// `bellglass verify --audit` proves it. What was done in a job stands in its own history.
#[utoipa::path(
    get, path = "/audit", operation_id = "read_audit", tag = "operations",
    params(AuditParameters),
    responses(
        (status = 200, description = "The lines, the oldest first.", content((String = "application/x-ndjson"))),
        (status = 400, description = "A parameter is wrong.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn read(
    State(server): State<SharedServer>,
    Parameters(parameters): Parameters<AuditParameters>,
) -> Result<Response, ApiError> {
    let after = parameters.after.unwrap_or(0);
    let first = server.app.store.audit_after(after, PAGE).await?;
    let pages =
        stream::try_unfold((server, after, Some(first)), |(server, after, read)| async move {
            let page = match read {
                Some(page) => page,
                None => server.app.store.audit_after(after, PAGE).await?,
            };
            if page.is_empty() {
                return Ok(None);
            }
            let after = after + page.len() as u64;
            let text: String = page.into_iter().map(|line| line + "\n").collect();
            Ok::<_, bellglass_store::StoreError>(Some((Bytes::from(text), (server, after, None))))
        });
    let content_type = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((content_type, Body::from_stream(pages)).into_response())
}
