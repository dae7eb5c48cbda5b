//! `/healthz`, `/readyz`, `/metrics` and `/openapi.json`: for operators and their tools.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::SharedServer;

#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    /// Always `ok`: a process that answers is alive.
    status: &'static str,
    version: &'static str,
}

/// Whether the process is alive
#[utoipa::path(
    get, path = "/healthz", operation_id = "get_health", tag = "operations",
    responses((status = 200, description = "It is.", body = Health)),
    security(()),
)]
pub(crate) async fn healthz() -> Json<Health> {
    Json(Health { status: "ok", version: env!("CARGO_PKG_VERSION") })
}

#[derive(Serialize, ToSchema)]
pub(crate) struct Readiness {
    ready: bool,
    checks: Vec<ReadinessCheck>,
}

/// One thing that the server needs.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReadinessCheck {
    name: &'static str,
    ok: bool,
}

/// Whether the server can do its work
#[utoipa::path(
    get, path = "/readyz", operation_id = "get_readiness", tag = "operations",
    responses(
        (status = 200, description = "It can.", body = Readiness),
        (status = 503, description = "Something that it needs is missing.", body = Readiness),
    ),
    security(()),
)]
pub(crate) async fn readyz(State(server): State<SharedServer>) -> Response {
    let store = server.app.store.ping().await;
    if let Err(error) = &store {
        tracing::warn!(error = error as &dyn std::error::Error, "the store does not answer");
    }
    let checks = vec![
        ReadinessCheck { name: "store", ok: store.is_ok() },
        ReadinessCheck { name: "worker", ok: (server.app.worker_runs)() },
        ReadinessCheck { name: "not_stopping", ok: !server.stopping.is_cancelled() },
    ];
    let ready = checks.iter().all(|check| check.ok);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Readiness { ready, checks })).into_response()
}

/// Counters and histograms for Prometheus
#[utoipa::path(
    get, path = "/metrics", operation_id = "get_metrics", tag = "operations",
    responses((status = 200, description = "The text that Prometheus reads.", body = String, content_type = "text/plain; version=0.0.4; charset=utf-8")),
)]
pub(crate) async fn metrics(State(server): State<SharedServer>) -> Response {
    let counts = server.app.store.count_by_status().await;
    if let Err(error) = &counts {
        tracing::warn!(error = error as &dyn std::error::Error, "the store does not answer");
    }
    let mut text = server.metrics.render(counts.ok());
    text.push_str(&(server.app.other_metrics)());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// This document
#[utoipa::path(
    get, path = "/openapi.json", operation_id = "get_openapi", tag = "operations",
    responses((status = 200, description = "The OpenAPI document.", body = Object)),
)]
pub(crate) async fn openapi_json() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], crate::openapi::openapi_text()).into_response()
}
