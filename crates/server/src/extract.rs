//! Reading the parts of a request, each failure a problem document of its own.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Query, RawPathParams};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bellglass_protocol::id::JobId;
use bellglass_protocol::quantity::ByteSize;
use bellglass_protocol::request::RequestError;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::{self, DeserializeOwned, Deserializer};

use crate::Server;
use crate::controllers::schedule::{must_be_json, shortened};
use crate::problem::ApiError;

/// The `{id}` of the address.
pub(crate) struct JobPath(pub JobId);

impl<S: Send + Sync> FromRequestParts<S> for JobPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let text = match path_parameter(parts, state, "id").await {
            Ok(text) => text,
            // Some other part of the address is no text; that must not be said of a good id.
            Err(_) => parts.uri.path().split('/').nth(2).unwrap_or_default().to_owned(),
        };
        parse_job_id(&text).map(Self)
    }
}

pub(crate) fn parse_job_id(text: &str) -> Result<JobId, ApiError> {
    text.parse().map_err(|error: bellglass_protocol::id::InvalidJobId| {
        ApiError::InvalidJobId(error.to_string())
    })
}

/// The `{n}` of the address.
pub(crate) struct StepPath(pub u32);

impl<S: Send + Sync> FromRequestParts<S> for StepPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        number_parameter(parts, state, "n").await.map(Self)
    }
}

/// The `{k}` of the address: the number of a step's attachment.
pub(crate) struct AttachmentPath(pub u32);

impl<S: Send + Sync> FromRequestParts<S> for AttachmentPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        number_parameter(parts, state, "k").await.map(Self)
    }
}

async fn number_parameter<S: Send + Sync>(
    parts: &mut Parts,
    state: &S,
    name: &'static str,
) -> Result<u32, ApiError> {
    let text = path_parameter(parts, state, name).await.unwrap_or_default();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(n) if digits && n > 0 => Ok(n),
        _ => Err(ApiError::InvalidStep(text.chars().take(64).collect())),
    }
}

/// The `{*path}` of the address; empty where the address has none.
pub(crate) struct FilePath(pub String);

impl<S: Send + Sync> FromRequestParts<S> for FilePath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = path_parameter(parts, state, "path").await?;
        Ok(Self(path))
    }
}

async fn path_parameter<S: Send + Sync>(
    parts: &mut Parts,
    state: &S,
    name: &str,
) -> Result<String, ApiError> {
    let parameters = RawPathParams::from_request_parts(parts, state)
        .await
        .map_err(|_| ApiError::InvalidPath("is not valid UTF-8".into()))?;
    let found = parameters.iter().find(|(key, _)| *key == name);
    Ok(found.map(|(_, value)| value.to_owned()).unwrap_or_default())
}

/// The parameters after the `?`. Unknown ones are ignored, wrong ones are refused.
pub(crate) struct Parameters<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Parameters<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(parameters)) => Ok(Self(parameters)),
            Err(error) => {
                let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                Err(ApiError::InvalidQuery(format!("the query cannot be read: {reason}")))
            }
        }
    }
}

/// Reads a switch as people write it in an address: `1`, `true`, `0`, `false`.
pub(crate) fn switch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    struct Switch;
    impl de::Visitor<'_> for Switch {
        type Value = bool;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("`true`, `false`, `1` or `0`")
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<bool, E> {
            match text {
                "1" | "true" => Ok(true),
                "0" | "false" => Ok(false),
                other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
            }
        }
    }
    deserializer.deserialize_str(Switch).map(Some)
}

/// Reads a body whole, if it is not larger than `limit`.
pub(crate) async fn read_body(
    headers: &HeaderMap,
    body: Body,
    limit: ByteSize,
) -> Result<Bytes, ApiError> {
    refuse_declared_length(headers, limit)?;
    let most = usize::try_from(limit.0).unwrap_or(usize::MAX);
    match Limited::new(body, most).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::BodyTooLarge(limit)),
        Err(_) => Err(ApiError::BodyUnreadable),
    }
}

/// Reads a body that is one JSON object; `field` is what a mistake in it is most likely about.
pub(crate) async fn read_object<T: DeserializeOwned>(
    server: &Server,
    headers: &HeaderMap,
    body: Body,
    field: &str,
) -> Result<T, ApiError> {
    must_be_json(headers)?;
    object_of(&read_body(headers, body, server.app.settings.body_limit).await?, field)
}

/// Reads one JSON object. Fields in a list, which serde would take too, are nobody's intention.
pub(crate) fn object_of<T: DeserializeOwned>(body: &[u8], field: &str) -> Result<T, ApiError> {
    let value: serde_json::Value = serde_json::from_slice(body)
        .map_err(|error| RequestError::InvalidJson(error.to_string()))?;
    let wrong = |message: String| RequestError::InvalidField { pointer: field.into(), message };
    if !value.is_object() {
        return Err(wrong("the body must be one JSON object".into()).into());
    }
    Ok(serde_json::from_value(value).map_err(|error| shortened(wrong(error.to_string())))?)
}

/// Refuses a body by its declared length, before any of it is used.
pub(crate) fn refuse_declared_length(headers: &HeaderMap, limit: ByteSize) -> Result<(), ApiError> {
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let declared = declared.and_then(|text| text.parse::<u64>().ok());
    if declared.is_none_or(|length| length <= limit.0) {
        return Ok(());
    }
    Err(ApiError::BodyTooLarge(limit))
}

/// The body as a stream that fails past `limit`, and a flag that then is set.
pub(crate) fn limited_stream(
    body: Body,
    limit: ByteSize,
) -> (BoxStream<'static, io::Result<Bytes>>, Arc<AtomicBool>) {
    let too_large = Arc::new(AtomicBool::new(false));
    let flag = too_large.clone();
    let mut left = limit.0;
    let data = body.into_data_stream().map(move |piece| {
        let piece = piece.map_err(io::Error::other)?;
        match left.checked_sub(piece.len() as u64) {
            Some(rest) => left = rest,
            None => {
                flag.store(true, Ordering::Relaxed);
                return Err(io::Error::other("the file is larger than is allowed"));
            }
        }
        Ok(piece)
    });
    (data.boxed(), too_large)
}
