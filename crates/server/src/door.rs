//! What every request passes on its way in and every answer on its way out.
//!
//! One layer for all of it: each further one would cost every request a copy of all below it.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use crate::SharedServer;
use crate::guard::{self, named_host, put_protective_headers};
use crate::metrics::Observed;
use crate::{apps, leftovers, standing};

/// The middleware.
pub(crate) async fn pass(
    State(server): State<SharedServer>,
    request: Request,
    next: Next,
) -> Response {
    // Content of sandboxes has host names of its own, under which nothing else is served.
    if let Ok(host) = named_host(request.uri(), request.headers())
        && let Some(app) = server.apps.domain.app(&host)
    {
        return apps::answer(&server, app, &host, request).await;
    }
    let observed = Observed::begin(&request);
    let (request, rest) = leftovers::lend(request);
    let (mut parts, body) = request.into_parts();
    let mut response = match guard::admit(&server, &parts).await {
        Ok(caller) => {
            parts.extensions.insert(caller.clone());
            let response = next.run(Request::from_parts(parts, body)).await;
            standing::bounded(&server, &caller, response)
        }
        Err(error) => {
            drop(body);
            error.into_response()
        }
    };
    put_protective_headers(response.headers_mut());
    if response.status().is_client_error()
        && let Some(rest) = rest
    {
        rest.discard().await;
    }
    server.metrics.observe(&observed, response.status());
    response
}
