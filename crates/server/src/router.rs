//! Every address of the server, one line each.

use std::io;
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

use crate::apps::{AppDomain, AppKey, Apps, Passes};
use crate::archive;
use crate::attempts::Attempts;
use crate::controllers::{
    apps as app_pages, audit, cancel, changes, checkpoints, context, desktop, events, files, forks,
    jobs, mcp, memories, memory, network, offer, operations, pages, result, schedule, sessions,
    share, status, steering, steps, terminal, tokens,
};
use crate::guard::{Guard, put_protective_headers};
use crate::metrics::Metrics;
use crate::problem::ApiError;
use crate::quota::Meter;
use crate::session::EndedSessions;
use crate::vnc::VncPorts;
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
        .routes(routes!(checkpoints::restore))
        .routes(routes!(forks::fork))
        .routes(routes!(mcp::speak))
        .routes(routes!(events::list))
        .routes(routes!(result::download))
        .routes(routes!(memory::show))
        .routes(routes!(context::show))
        .routes(routes!(memories::list, memories::add))
        .routes(routes!(memories::change, memories::forget))
        .routes(routes!(steps::output))
        .routes(routes!(steps::attachment))
        .routes(routes!(checkpoints::diff))
        .routes(routes!(checkpoints::files))
        .routes(routes!(app_pages::list))
        .routes(routes!(files::list))
        .routes(routes!(files::read, files::write, files::delete))
        .routes(routes!(share::share, share::unshare))
        .routes(routes!(sessions::show, sessions::begin, sessions::end))
        .routes(routes!(tokens::list, tokens::create))
        .routes(routes!(tokens::revoke))
        .routes(routes!(audit::read))
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
        .route("/notices.txt", get(pages::notices))
        .route("/docs/docs.js", get(pages::script))
        .route("/docs/pages.css", get(pages::style))
        .route("/jobs/{id}/files/", get(files::list))
        .route("/jobs/{id}/ports/{port}", get(app_pages::open_port))
        .route("/jobs/{id}/ports/{port}/", get(app_pages::open_port))
        .route("/jobs/{id}/ports/{port}/{*path}", get(app_pages::open_port))
        .route("/jobs/{id}/terminal", get(terminal::open))
        .route("/jobs/{id}/desktop", get(desktop::with_slash))
        .route("/jobs/{id}/desktop/", get(desktop::page))
        .route("/jobs/{id}/desktop/websocket", get(desktop::websocket))
        .route("/jobs/{id}/jupyter", get(app_pages::open_jupyter))
        .route("/jobs/{id}/jupyter/", get(app_pages::open_jupyter))
        .route("/jobs/{id}/jupyter/{*path}", get(app_pages::open_jupyter))
}

/// The whole server as a service.
pub fn router(app: App) -> io::Result<Router> {
    Ok(build(app, None, CancellationToken::new())?.0)
}

pub(crate) fn build(
    app: App,
    vnc: Option<VncPorts>,
    stopping: CancellationToken,
) -> io::Result<(Router, SharedServer)> {
    let (api, document) = api().split_for_parts();
    let guard = Guard::new(&app.settings);
    let key = AppKey::open(&app.settings, app.cluster.as_ref())?;
    let session_key = key.clone().for_sessions();
    let apps = Apps {
        domain: AppDomain::new(app.settings.sandbox_domain.as_deref()),
        passes: Passes::new(key),
    };
    let metrics = Metrics::new(document.paths.paths.keys().map(String::as_str));
    let archive_readers = Arc::new(Semaphore::new(archive::MOST_READERS));
    let server = Arc::new(Server {
        meter: Meter::new(app.settings.quotas.clone()),
        attempts: Attempts::default(),
        session_key,
        ended_sessions: EndedSessions::default(),
        revoked: watch::Sender::new(()),
        app,
        guard,
        apps,
        vnc,
        metrics,
        archive_readers,
        stopping,
    });
    let routes = api.merge(pages());
    let routes = match server.app.cluster {
        Some(_) => routes.layer(from_fn_with_state(server.clone(), relay::pass_on)),
        None => routes,
    };
    // The last layer is the outermost. Nothing here may buffer, compress or time out an answer:
    // event streams pass through.
    let router = routes
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(server.clone(), door::pass))
        .layer(CatchPanicLayer::custom(panicked))
        .with_state(server.clone());
    Ok((router, server))
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
