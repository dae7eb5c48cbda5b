//! Every address of the server, one line each.

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::archive;
use crate::controllers::{
    cancel, changes, context, events, files, jobs, mcp, memories, memory, network, offer,
    operations, pages, result, schedule, sessions, share, status, steering, steps, tokens,
};
use crate::guard::{Guard, put_protective_headers};
use crate::metrics::Metrics;
use crate::problem::ApiError;
use crate::quota::Meter;
use crate::{App, Server, SharedServer, door, openapi, relay};

/// What the OpenAPI document describes.
pub(crate) fn api() -> OpenApiRouter<SharedServer> {
    OpenApiRouter::with_openapi(openapi::frame())
        .routes(routes!(schedule::schedule))
        .routes(routes!(schedule::submit))
        .routes(routes!(status::by_path))
        .routes(routes!(status::by_query))
        .routes(routes!(offer::show))
        .routes(routes!(changes::follow))
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::show))
        .routes(routes!(cancel::cancel))
        .routes(routes!(network::change))
        .routes(routes!(steering::pause))
        .routes(routes!(steering::resume))
        .routes(routes!(steering::message))
        .routes(routes!(steering::decide))
        .routes(routes!(mcp::speak))
        .routes(routes!(events::list))
        .routes(routes!(result::download))
        .routes(routes!(memory::show))
        .routes(routes!(context::show))
        .routes(routes!(memories::list, memories::add))
        .routes(routes!(memories::change, memories::forget))
        .routes(routes!(steps::output))
        .routes(routes!(steps::attachment))
        .routes(routes!(files::list))
        .routes(routes!(files::read, files::write, files::delete))
        .routes(routes!(share::share, share::unshare))
        .routes(routes!(sessions::show, sessions::begin, sessions::end))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::revoke))
        .routes(routes!(operations::healthz))
        .routes(routes!(operations::readyz))
        .routes(routes!(operations::metrics))
        .routes(routes!(operations::openapi_json))
        .routes(routes!(pages::docs))
}

/// What only people and their browsers ask for.
fn pages() -> Router<SharedServer> {
    Router::new()
        .route("/", get(pages::page))
        .route("/memory", get(pages::page))
        .route("/watch/{id}", get(pages::page))
        .route("/share/{link}", get(share::open))
        .route("/assets/{*path}", get(pages::asset))
        .route("/docs/docs.js", get(pages::script))
        .route("/docs/pages.css", get(pages::style))
        .route("/jobs/{id}/files/", get(files::list))
}

/// The whole server as a service.
pub fn router(app: App) -> Router {
    build(app, CancellationToken::new())
}

pub(crate) fn build(app: App, stopping: CancellationToken) -> Router {
    let (api, document) = api().split_for_parts();
    let guard = Guard::new(&app.settings);
    let metrics = Metrics::new(document.paths.paths.keys().map(String::as_str));
    let archive_readers = Arc::new(Semaphore::new(archive::MOST_READERS));
    let meter = Meter::new(app.settings.quotas.clone());
    let revoked = watch::Sender::new(());
    let server =
        Arc::new(Server { app, guard, meter, revoked, metrics, archive_readers, stopping });
    let api = match server.app.cluster {
        Some(_) => api.layer(from_fn_with_state(server.clone(), relay::pass_on)),
        None => api,
    };
    // The last layer is the outermost. Nothing here may buffer, compress or time out an answer:
    // event streams pass through.
    api.merge(pages())
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(server.clone(), door::pass))
        .layer(CatchPanicLayer::custom(panicked))
        .with_state(server)
}

async fn not_found() -> ApiError {
    ApiError::NotFound
}

async fn method_not_allowed() -> ApiError {
    ApiError::MethodNotAllowed
}

/// The panic itself was logged by the panic hook.
fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    let mut response = ApiError::Internal.into_response();
    put_protective_headers(response.headers_mut());
    response
}
