//! `GET /offer`: what this installation gives to jobs, so that a client need not guess.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use bellglass_protocol::job::{IsolationLevel, Limits};
use bellglass_protocol::model_offer::ModelOffer;
use bellglass_protocol::quantity::ByteSize;
use bellglass_protocol::request::RequestError;
use bellglass_protocol::tool::ToolCall;
use serde::Serialize;
use utoipa::ToSchema;

use crate::SharedServer;
use crate::guard::named_host;

/// What a job may ask for here.
#[derive(Serialize, ToSchema)]
pub(crate) struct InstallationOffer {
    version: &'static str,
    tasks: TaskOffer,
    /// The images that are built, by name.
    images: Vec<String>,
    /// The image of jobs that name none.
    default_image: String,
    /// What a job may use up if it does not say.
    limits: Limits,
    /// The most that a job may ask for.
    max_limits: Limits,
    /// The least isolation of jobs that demand none.
    isolation: IsolationLevel,
    /// Secrets that jobs may use, by name.
    secrets: Vec<String>,
    /// The tools that steps may call.
    tools: Vec<&'static str>,
    /// The largest file that may be put into a running workspace.
    upload_limit: ByteSize,
    /// Whether what sandboxes serve can be shown to whoever asks under this host name.
    apps: bool,
}

/// Whether jobs may be given as a task in words.
#[derive(Serialize, ToSchema)]
pub(crate) struct TaskOffer {
    available: bool,
    /// Why not, and what to do about it.
    #[schema(required)]
    why_not: Option<String>,
    /// Models that are known here by name; the first is the one of tasks that name none.
    models: Vec<String>,
    /// What may stand before the `/` of any other model's name.
    providers: Vec<String>,
}

/// What this installation gives to jobs
#[utoipa::path(
    get, path = "/offer", operation_id = "get_offer", tag = "jobs",
    responses((status = 200, description = "What a job may ask for.", body = InstallationOffer)),
)]
pub(crate) async fn show(
    State(server): State<SharedServer>,
    uri: Uri,
    headers: HeaderMap,
) -> Json<InstallationOffer> {
    let app = &server.app;
    let host = named_host(&uri, &headers).ok();
    let offer = &app.offer;
    Json(InstallationOffer {
        version: env!("CARGO_PKG_VERSION"),
        tasks: tasks(&offer.models),
        images: app.images.names().await,
        default_image: offer.default_image.clone(),
        limits: offer.defaults,
        max_limits: offer.maxima,
        isolation: offer.isolation,
        secrets: offer.secrets.iter().cloned().collect(),
        tools: ToolCall::NAMES.to_vec(),
        upload_limit: app.settings.upload_limit,
        apps: host.is_some_and(|host| server.apps.domain.beside(&host).is_some()),
    })
}

fn tasks(offer: &ModelOffer) -> TaskOffer {
    let why_not = offer.default.is_none().then(|| RequestError::NoModel.to_string());
    TaskOffer {
        available: why_not.is_none(),
        why_not,
        models: offer.default.iter().cloned().collect(),
        providers: offer.providers.clone(),
    }
}
