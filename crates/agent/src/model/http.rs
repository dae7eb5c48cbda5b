//! One request to a model server and its stream of events: time-outs, bounds, and what errors mean.
//!
//! Knows nothing of what the events say.

use std::time::Duration;

use eventsource_stream::{Event, EventStreamError, Eventsource as _};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use reqwest::header::{CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use serde_json::Value;

use super::{ModelError, Secret};

/// Where a model server is and how it is spoken to.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    client: reqwest::Client,
    /// Without a slash at its end.
    base_url: String,
    key: Option<Secret>,
    key_header: KeyHeader,
    /// How long the server may be silent.
    idle: Duration,
}

/// Under which header the key is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyHeader {
    /// `Authorization: Bearer …`
    Bearer,
    /// Anthropic's `x-api-key`, with the version of its API.
    Anthropic,
}

/// More than any model writes in one answer.
const MOST_ANSWER_BYTES: usize = 64 << 20;

/// The most of an error's text that is kept.
const MOST_ERROR_TEXT: usize = 2000;

impl Endpoint {
    pub(crate) fn new(
        client: reqwest::Client,
        base_url: &str,
        key: Option<Secret>,
        key_header: KeyHeader,
        idle: Duration,
    ) -> Self {
        let base_url = base_url.trim_end_matches('/').to_owned();
        Self { client, base_url, key, key_header, idle }
    }

    /// Posts a request and returns the events of its answer as they come.
    pub(crate) async fn stream(&self, path: &str, body: &Value) -> Result<Events, ModelError> {
        let request = self.client.post(format!("{}{path}", self.base_url)).json(body);
        let sent = tokio::time::timeout(self.idle, self.authorized(request).send()).await;
        let response = match sent {
            Err(_) => return Err(ModelError::Idle(self.idle)),
            Ok(Err(error)) => return Err(self.not_reached(error)),
            Ok(Ok(response)) => response,
        };
        let is_stream = |headers: &HeaderMap| {
            let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            kind.is_some_and(|kind| kind.starts_with("text/event-stream"))
        };
        if !response.status().is_success() || !is_stream(response.headers()) {
            return Err(self.refusal(response).await);
        }
        let events = response.bytes_stream().eventsource().boxed();
        Ok(Events { events, idle: self.idle, bytes: 0, key: self.key.clone() })
    }

    /// A small document of the server's.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, ModelError> {
        self.document(self.client.get(format!("{}{path}", self.base_url))).await
    }

    /// A small document that answers another one.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, ModelError> {
        self.document(self.client.post(format!("{}{path}", self.base_url)).json(body)).await
    }

    async fn document(&self, request: reqwest::RequestBuilder) -> Result<Value, ModelError> {
        let sent = tokio::time::timeout(self.idle, self.authorized(request).send()).await;
        let response = match sent {
            Err(_) => return Err(ModelError::Idle(self.idle)),
            Ok(Err(error)) => return Err(self.not_reached(error)),
            Ok(Ok(response)) => response,
        };
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        let text = self.bounded_text(response).await;
        serde_json::from_str(&text).map_err(|error| ModelError::Nonsense(error.to_string()))
    }

    fn authorized(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        let request = match self.key_header {
            KeyHeader::Bearer => request,
            KeyHeader::Anthropic => request.header("anthropic-version", "2023-06-01"),
        };
        match (&self.key, self.key_header) {
            (None, _) => request,
            (Some(key), KeyHeader::Bearer) => request.bearer_auth(key.reveal()),
            (Some(key), KeyHeader::Anthropic) => request.header("x-api-key", key.reveal()),
        }
    }

    fn not_reached(&self, error: reqwest::Error) -> ModelError {
        ModelError::NotReached(redacted(self.key.as_ref(), &with_causes(&error.without_url())))
    }

    /// What an answer means that is no stream of events.
    async fn refusal(&self, response: reqwest::Response) -> ModelError {
        let status = response.status().as_u16();
        let retry_after = retry_after(response.headers());
        let text = self.bounded_text(response).await;
        let parsed: Value = serde_json::from_str(&text).unwrap_or_default();
        let (kind, message) = error_words(&parsed).unwrap_or_else(|| (String::new(), text));
        let message = redacted(self.key.as_ref(), &message);
        classify(status, &kind, message, retry_after)
    }

    async fn bounded_text(&self, response: reqwest::Response) -> String {
        let mut pieces = response.bytes_stream();
        let mut bytes = Vec::new();
        while let Ok(Some(Ok(piece))) = tokio::time::timeout(self.idle, pieces.next()).await {
            bytes.extend_from_slice(&piece);
            if bytes.len() > 1 << 20 {
                break;
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The events of one answer.
pub(crate) struct Events {
    events: BoxStream<'static, Result<Event, EventStreamError<reqwest::Error>>>,
    idle: Duration,
    bytes: usize,
    key: Option<Secret>,
}

impl Events {
    /// The next event; `None` when the server closed the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, ModelError> {
        let event = match tokio::time::timeout(self.idle, self.events.next()).await {
            Err(_) => return Err(ModelError::Idle(self.idle)),
            Ok(None) => return Ok(None),
            Ok(Some(Err(error))) => return Err(ModelError::Cut(with_causes(&error))),
            Ok(Some(Ok(event))) => event,
        };
        self.bytes += event.data.len();
        if self.bytes > MOST_ANSWER_BYTES {
            return Err(ModelError::Nonsense("it is longer than 64 MiB".into()));
        }
        Ok(Some(event))
    }

    /// What an error means that came inside a stream which began well.
    pub(crate) fn error(&self, data: &Value) -> ModelError {
        let (kind, message) =
            error_words(data).unwrap_or_else(|| (String::new(), data.to_string()));
        let message = redacted(self.key.as_ref(), &message);
        let code = data["error"]["code"].as_u64().and_then(|code| u16::try_from(code).ok());
        classify(code.unwrap_or(200), &kind, message, None)
    }
}

/// An event's data as JSON.
pub(crate) fn json(event: &Event) -> Result<Value, ModelError> {
    serde_json::from_str(&event.data).map_err(|error| ModelError::Nonsense(error.to_string()))
}

/// Kind and message of an error in any of the providers' shapes.
fn error_words(body: &Value) -> Option<(String, String)> {
    let error = match &body["error"] {
        Value::Null if body["message"].is_string() => body,
        Value::Null => return None,
        Value::String(text) => return Some((String::new(), clip(text))),
        error => error,
    };
    let words = [&error["type"], &error["code"], &error["status"]];
    let kind = words.iter().filter_map(|word| word.as_str()).collect::<Vec<_>>().join(" ");
    let message = error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned);
    Some((kind, clip(&message)))
}

fn classify(status: u16, kind: &str, message: String, retry_after: Option<Duration>) -> ModelError {
    let lower = message.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| kind.contains(word));
    let too_long = [
        "prompt is too long",
        "maximum context length",
        "context length",
        "context window",
        "context size",
        "input is too long",
        "too many tokens",
    ];
    if says(&["context_length_exceeded", "exceed_context_size"])
        || (matches!(status, 200 | 400 | 413 | 422)
            && too_long.iter().any(|words| lower.contains(words)))
    {
        return ModelError::ContextTooLong(message);
    }
    match status {
        // Paying is not a matter of waiting.
        429 if says(&["insufficient_quota"]) => ModelError::Refused { status, message },
        429 | 503 | 529 => ModelError::Busy { status, message, retry_after },
        401 | 403 => ModelError::KeyRefused { status, message },
        408 | 409 | 425 => ModelError::Busy { status, message, retry_after },
        500.. => ModelError::ServerFailed { status, message },
        // An error inside an answer that began well.
        _ if says(&["overloaded", "rate_limit"]) => {
            ModelError::Busy { status, message, retry_after }
        }
        _ if says(&["invalid_request"]) => ModelError::Refused { status, message },
        200..300 => ModelError::ServerFailed { status, message },
        _ => ModelError::Refused { status, message },
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let milliseconds: Option<f64> = text("retry-after-ms");
    let seconds = text(RETRY_AFTER.as_str()).or(milliseconds.map(|ms| ms / 1000.0))?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn redacted(key: Option<&Secret>, text: &str) -> String {
    key.map_or_else(|| text.to_owned(), |key| key.redact(text))
}

fn clip(text: &str) -> String {
    text[..text.floor_char_boundary(MOST_ERROR_TEXT)].to_owned()
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    clip(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_of_all_providers_are_understood() {
        let cases = [
            (429, json!({"error": {"type": "rate_limit_error", "message": "slow"}}), "model_busy"),
            (
                429,
                json!({"error": {"code": "insufficient_quota", "message": "pay"}}),
                "model_refused",
            ),
            (529, json!({"error": {"type": "overloaded_error", "message": "x"}}), "model_busy"),
            (200, json!({"error": {"type": "overloaded_error", "message": "x"}}), "model_busy"),
            (
                200,
                json!({"error": {"type": "server_error", "message": "x"}}),
                "model_server_failed",
            ),
            (500, json!({}), "model_server_failed"),
            (401, json!({"error": {"message": "bad key"}}), "model_key_refused"),
            (404, json!({"error": {"message": "no such model"}}), "model_refused"),
            (400, json!({"error": {"message": "prompt is too long: 9 > 8"}}), "context_too_long"),
            (
                400,
                json!({"error": {"code": "context_length_exceeded", "message": "x"}}),
                "context_too_long",
            ),
            (400, json!({"error": "just words"}), "model_refused"),
        ];
        for (status, body, code) in cases {
            let (kind, message) = error_words(&body).unwrap_or_default();
            let error = classify(status, &kind, message, None);
            assert_eq!(error.code(), code, "{status} {body}");
        }
    }

    #[test]
    fn a_server_may_say_how_long_to_wait() {
        for (name, value, expected) in [
            ("retry-after", "2", Some(2000)),
            ("retry-after-ms", "150", Some(150)),
            ("retry-after", "x", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            assert_eq!(retry_after(&headers), expected.map(Duration::from_millis));
        }
    }
}
