//! `GET /changes`: which jobs have news, for whoever shows a list of them.
//!
//! Carries no history and can lose none: what it says is only "look at these again".

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderValue;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use bellglass_protocol::id::JobId;
use bellglass_protocol::view::JobStatus;
use bellglass_store::Change;
use futures::{Stream, stream};
use serde::Serialize;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use super::events::SentEvent;
use crate::SharedServer;
use crate::caller::Caller;

/// Jobs that have news. None at all means that any of them may have some.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct Changes {
    jobs: Vec<ChangedJob>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ChangedJob {
    job_id: JobId,
    status: JobStatus,
}

/// Which jobs have news
///
/// Server-sent events, each a list of jobs, no more than a few in a second however much happens. An
/// empty list means that any job may have news; one such comes first.
#[utoipa::path(
    get, path = "/changes", operation_id = "follow_changes", tag = "events",
    responses((status = 200, description = "The changes.", body = SentEvent, content_type = "text/event-stream")),
)]
pub(crate) async fn follow(State(server): State<SharedServer>, caller: Caller) -> Response {
    let listener = Listener {
        changes: server.app.store.changes(),
        stopping: server.stopping.clone(),
        greeted: false,
        caller,
        server,
    };
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(15));
    let mut response = Sse::new(listener.events()).keep_alive(keep_alive).into_response();
    // Asks a buffering proxy to pass each event on at once.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Listener {
    changes: Receiver<Change>,
    stopping: CancellationToken,
    greeted: bool,
    caller: Caller,
    server: SharedServer,
}

/// How long news are gathered before they are told.
const GATHERED_FOR: Duration = Duration::from_millis(200);

impl Listener {
    fn events(self) -> impl Stream<Item = Result<Event, Infallible>> + Send {
        stream::unfold(self, |mut listener| async move {
            let changes = listener.next().await?;
            let text = serde_json::to_string(&changes).unwrap_or_default();
            Some((Ok(Event::default().data(text)), listener))
        })
    }

    /// The next news that the caller may hear of. That there is nothing must not sound like "anything".
    async fn next(&mut self) -> Option<Changes> {
        loop {
            let Changes { jobs: all } = self.next_of_all().await?;
            if all.is_empty() || self.caller.sees_everything() {
                return Some(Changes { jobs: all });
            }
            let mut jobs = Vec::new();
            for job in all {
                if self.caller.must_see(&self.server, job.job_id).await.is_ok() {
                    jobs.push(job);
                }
            }
            if !jobs.is_empty() {
                return Some(Changes { jobs });
            }
        }
    }

    async fn next_of_all(&mut self) -> Option<Changes> {
        if !std::mem::replace(&mut self.greeted, true) {
            return Some(Changes::default());
        }
        let first = tokio::select! {
            () = self.stopping.cancelled() => return None,
            first = self.changes.recv() => first,
        };
        let mut news = BTreeMap::new();
        match first {
            Ok(change) => news.insert(change.job, change.status),
            Err(RecvError::Lagged(_)) => return Some(Changes::default()),
            Err(RecvError::Closed) => return None,
        };
        tokio::select! {
            () = self.stopping.cancelled() => return None,
            () = tokio::time::sleep(GATHERED_FOR) => {}
        }
        loop {
            match self.changes.try_recv() {
                Ok(change) => news.insert(change.job, change.status),
                Err(TryRecvError::Lagged(_)) => return Some(Changes::default()),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            };
        }
        let jobs = news.into_iter().map(|(job_id, status)| ChangedJob { job_id, status });
        Some(Changes { jobs: jobs.collect() })
    }
}
