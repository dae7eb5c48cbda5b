//! `GET /jobs/{id}/desktop/` and its WebSocket: a job's desktop, to look at and to work with.

use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::pages;
use crate::SharedServer;
use crate::caller::Caller;
use crate::extract::JobPath;
use crate::problem::ApiError;
use crate::rfb::{Grip, Showing, Viewer};
use crate::{sockets, standing};

/// The page that shows the desktop and nothing else.
pub(crate) async fn page(
    State(server): State<SharedServer>,
    JobPath(job): JobPath,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    server.app.store.outline(job).await?;
    Ok(pages::desktop(&headers))
}

/// The page asks for what lies beside it, so its address ends with a slash.
pub(crate) async fn with_slash(JobPath(job): JobPath) -> Response {
    let location = [(header::LOCATION, format!("/jobs/{job}/desktop/"))];
    (StatusCode::PERMANENT_REDIRECT, location).into_response()
}

pub(crate) async fn websocket(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
    upgrade: WebSocketUpgrade,
) -> Result<Response, ApiError> {
    server.app.store.outline(job).await?;
    let ended = standing::ended(server.clone(), caller.clone());
    let by = caller.actor("user");
    let showing = Showing { server, job, by, grip: Grip::OnRequest, password: None };
    Ok(sockets::bounded(upgrade).protocols(["binary"]).on_upgrade(move |socket| async move {
        tokio::select! {
            shown = showing.to(Viewer::of_socket(socket)) => if let Err(error) = shown {
                tracing::debug!(%job, error = &error as &dyn std::error::Error, "a viewer left");
            },
            () = ended => {}
        }
    }))
}
