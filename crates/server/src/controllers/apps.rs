//! `GET /jobs/{id}/ports` lists what listens in a sandbox; `/ports/{port}/…` and `/jupyter/…` lead to
//! the host name under which it is shown.

use axum::Json;
use axum::extract::{RawPathParams, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bellglass_protocol::id::JobId;
use bellglass_protocol::tunnel::{AppPort, ListeningPort};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::files::refusal;
use crate::SharedServer;
use crate::apps::{AppName, ENTRANCE, Service, Visitor};
use crate::caller::Caller;
use crate::extract::JobPath;
use crate::guard::named_host;
use crate::problem::{ApiError, Problem};
use crate::relay::reach;

/// What listens in a sandbox.
#[derive(Serialize, ToSchema)]
pub(crate) struct Ports {
    ports: Vec<App>,
}

/// A program that listens, and where people find it.
#[derive(Serialize, ToSchema)]
pub(crate) struct App {
    #[serde(flatten)]
    listening: ListeningPort,
    /// Opens what the program serves, under a host name of its own.
    url: String,
}

/// What listens in a job's sandbox
#[utoipa::path(
    get, path = "/jobs/{id}/ports", operation_id = "list_ports", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")),
    responses(
        (status = 200, description = "The ports on which programs listen.", body = Ports),
        (status = 400, description = "Not a job id.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The job's sandbox does not run.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "The sandbox cannot be reached.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(
    State(server): State<SharedServer>,
    JobPath(job): JobPath,
) -> Result<Json<Ports>, ApiError> {
    let listening = match server.app.live.ports(job).await {
        Ok(listening) => listening,
        Err(error) => return Err(refusal(&server, job, "", error).await?),
    };
    let mut ports: Vec<App> = Vec::new();
    for listening in listening {
        // A program that listens on several addresses is one app all the same.
        let is_known = ports.last().is_some_and(|app| app.listening.port == listening.port);
        if AppPort::try_from(listening.port).is_ok() && !is_known {
            let url = format!("/jobs/{job}/ports/{}/", listening.port);
            ports.push(App { listening, url });
        }
    }
    Ok(Json(Ports { ports }))
}

pub(crate) async fn open_port(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
    parameters: RawPathParams,
    request: Request,
) -> Result<Response, ApiError> {
    let port = parameters.iter().find(|(name, _)| *name == "port").map_or("", |(_, value)| value);
    let invalid = || ApiError::InvalidPort(port.chars().take(20).collect());
    let number: u16 = port.parse().map_err(|_| invalid())?;
    let service = Service::Port(AppPort::try_from(number).map_err(|_| invalid())?);
    let asked = Asked::of(&request, &format!("/jobs/{job}/ports/{port}"))?;
    open(&server, &caller, AppName { job, service }, asked).await
}

pub(crate) async fn open_jupyter(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
    request: Request,
) -> Result<Response, ApiError> {
    let app = AppName { job, service: Service::Jupyter };
    open(&server, &caller, app, Asked::of(&request, &format!("/jobs/{job}/jupyter"))?).await
}

/// What somebody asked for, and under which host name.
struct Asked {
    host: Authority,
    scheme: &'static str,
    /// The address within the app.
    to: String,
}

impl Asked {
    fn of(request: &Request, under: &str) -> Result<Self, ApiError> {
        let host = named_host(request.uri(), request.headers())?;
        let is_secure =
            request.headers().get("x-forwarded-proto").is_some_and(|value| value == "https");
        let scheme = if is_secure { "https" } else { "http" };
        let asked = request.uri().path_and_query().map_or("", |path| path.as_str());
        let rest = asked.strip_prefix(under).unwrap_or_default();
        let to = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") };
        Ok(Self { host, scheme, to })
    }
}

/// Leads to the app's host, with a ticket that lets the browser in there.
async fn open(
    server: &SharedServer,
    caller: &Caller,
    app: AppName,
    asked: Asked,
) -> Result<Response, ApiError> {
    let Asked { host, scheme, to } = asked;
    let domain = server.apps.domain.beside(&host).ok_or(ApiError::NoSandboxDomain)?;
    server.app.store.outline(app.job).await?;
    let (by, place) = (caller.actor("user"), app.service.place());
    if let Err(error) = reach::note_visit(server, app.job, &by, place).await {
        return Err(refusal(server, app.job, "", error).await?);
    }
    let visitor = Visitor { opener: format!("{scheme}://{host}"), shown: caller.shown() };
    let ticket = server.apps.passes.ticket(&app, &visitor, Timestamp::now());
    let query = serde_urlencoded::to_string([("ticket", &ticket), ("to", &to)]);
    let query = query.map_err(|_| ApiError::Internal)?;
    let location = format!("{scheme}://{}.{domain}{ENTRANCE}?{query}", app.label());
    let location = HeaderValue::try_from(location).map_err(|_| ApiError::Internal)?;
    let mut response = (StatusCode::SEE_OTHER, [(header::LOCATION, location)]).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}
