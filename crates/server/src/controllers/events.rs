//! `GET /jobs/{id}/events`: a job's history, as server-sent events or as JSON lines.
//!
//! Each event goes out as the exact line that is in the log, so that the hash chain can be checked
//! from what was received. Only what a link leaves out is missing from the lines of its guests.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use bellglass_protocol::chain::SealedEvent;
use bellglass_protocol::id::JobId;
use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::SharedServer;
use crate::caller::Caller;
use crate::event_log::{AtEnd, LogReader, is_over};
use crate::extract::{JobPath, Parameters, switch};
use crate::problem::{ApiError, Problem};
use crate::withheld::Withheld;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventParameters {
    /// How the history is written; `sse` unless said otherwise.
    #[param(inline, nullable = false)]
    format: Option<Format>,
    /// Only events after this number.
    #[param(nullable = false)]
    after: Option<u64>,
    /// Whether to wait for what is still to come, until the job has finished. With `sse` that is
    /// so unless this is false; with `jsonl` only if this is true.
    #[serde(default, deserialize_with = "switch")]
    #[param(nullable = false)]
    follow: Option<bool>,
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// Server-sent events: `id` is the number, `data` the line.
    Sse,
    /// One line for each event: this is `agent.log`.
    Jsonl,
}

/// One event of a stream of server-sent events, as its lines say it.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only described: such events are written as text")]
pub(crate) struct SentEvent {
    /// Where to go on from, as the header `Last-Event-ID`.
    #[schema(nullable = false)]
    id: Option<String>,
    #[schema(nullable = false)]
    event: Option<String>,
    /// JSON on one line.
    data: String,
}

/// The history of a job
///
/// As server-sent events it can be resumed with the header `Last-Event-ID`. The stream ends after
/// the event `finished`; whoever then resumes gets 204, which tells a browser not to come again.
/// Whoever comes by a link sees the first event without what the link leaves out.
#[utoipa::path(
    get, path = "/jobs/{id}/events", operation_id = "list_events", tag = "events",
    params(
        ("id" = JobId, Path, description = "The job"),
        EventParameters,
        ("Last-Event-ID" = Option<String>, Header, nullable = false, description = "Number of the last event that was seen"),
    ),
    responses(
        (status = 200, description = "The events.", content(
            (SentEvent = "text/event-stream"),
            (String = "application/x-ndjson"),
        )),
        (status = 204, description = "Nothing came after the event that was seen last, and nothing will."),
        (status = 400, description = "An id or a parameter is wrong.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn list(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
    Parameters(parameters): Parameters<EventParameters>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let store = &server.app.store;
    let resumed = last_event_id(&headers)?;
    // The header is newer: a browser that reconnects sends it beside the address it began with.
    let after = resumed.or(parameters.after).unwrap_or(0);
    // Says at once if there is no such job; later it would be too late for a status.
    store.events_after(job, after, 1).await?;
    let format = parameters.format.unwrap_or(Format::Sse);
    let follow = parameters.follow.unwrap_or(matches!(format, Format::Sse));
    let at_end = if follow { AtEnd::Follow } else { AtEnd::Stop };
    let reader = || LogReader::new(store.clone(), job, after, at_end, server.stopping.clone());
    let withheld = Withheld::from(&caller);
    match format {
        Format::Jsonl => Ok(json_lines(reader(), withheld)),
        Format::Sse if resumed.is_some() && is_over(store.as_ref(), job, after).await? => {
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        Format::Sse => Ok(server_sent(reader(), withheld)),
    }
}

/// Often enough that no proxy on the way takes the silence for the end.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

fn server_sent(reader: LogReader, withheld: Option<Withheld>) -> Response {
    let events = sse_events(reader, withheld);
    let mut response =
        Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // Asks a buffering proxy to pass each event on at once.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// An error ends the stream early; the client resumes where it was.
fn sse_events(
    reader: LogReader,
    withheld: Option<Withheld>,
) -> impl Stream<Item = Result<Event, Infallible>> + Send {
    reader.pages().flat_map(move |page| {
        let events = page.unwrap_or_default().into_iter();
        stream::iter(events.map(move |sealed| {
            let id = sealed.event.seq.to_string();
            Ok(Event::default().id(id).data(line(sealed, withheld)))
        }))
    })
}

fn json_lines(reader: LogReader, withheld: Option<Withheld>) -> Response {
    let lines = reader.pages().map(move |page| {
        page.map(|events| {
            let length = events.iter().map(|sealed| sealed.line.len() + 1).sum();
            let mut text = Vec::with_capacity(length);
            for sealed in events {
                text.extend_from_slice(line(sealed, withheld).as_bytes());
                text.push(b'\n');
            }
            Bytes::from(text)
        })
    });
    let content_type = [(header::CONTENT_TYPE, "application/x-ndjson")];
    (content_type, Body::from_stream(lines)).into_response()
}

fn line(sealed: SealedEvent, withheld: Option<Withheld>) -> String {
    match withheld {
        Some(withheld) => withheld.line(sealed),
        None => sealed.line,
    }
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, ApiError> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number.map(Some).ok_or_else(|| {
        ApiError::InvalidQuery("the header Last-Event-ID is not the number of an event".into())
    })
}
