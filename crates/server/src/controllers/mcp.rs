//! `POST /jobs/{id}/mcp`: the tools of a job's sandbox for any MCP client, over streamable HTTP.

use async_trait::async_trait;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bellglass_protocol::id::JobId;
use bellglass_protocol::tool::ToolCall;
use serde_json::{Value, json};

use crate::SharedServer;
use crate::caller::Caller;
use crate::extract::{JobPath, read_body};
use crate::mcp::{self, Sandboxed, ToolAnswer, ToolListing};
use crate::problem::{ApiError, Problem};

/// Speak MCP with a job's sandbox
///
/// One message of JSON-RPC in each request, as the transport "streamable HTTP" has it; a request is
/// answered with JSON, everything else with 202. Calls are recorded as `tool.used`. A job with
/// `session` is a sandbox for nothing else.
#[utoipa::path(
    post, path = "/jobs/{id}/mcp", operation_id = "speak_mcp", tag = "jobs",
    params(("id" = JobId, Path, description = "The job")),
    request_body(content = Object, content_type = "application/json"),
    responses(
        (status = 200, description = "The answer to a request.", body = Object),
        (status = 202, description = "The message wants no answer."),
        (status = 400, description = "Not a job id, not JSON, or an unknown version of the protocol.", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is no such job.", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "The job has ended.", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large.", body = Problem, content_type = "application/problem+json"),
    )
)]
pub(crate) async fn speak(
    State(server): State<SharedServer>,
    caller: Caller,
    JobPath(job): JobPath,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = read_body(&headers, body, server.app.settings.body_limit).await?;
    if server.app.store.outline(job).await?.status.is_terminal() {
        return Err(ApiError::JobOver);
    }
    let refuse = |code, words: &str| {
        (StatusCode::BAD_REQUEST, Json(mcp::error(Value::Null, code, words))).into_response()
    };
    let version = headers.get("mcp-protocol-version").and_then(|value| value.to_str().ok());
    if version.is_some_and(|version| !mcp::VERSIONS.contains(&version)) {
        return Ok(refuse(-32600, "this version of the protocol is not spoken here"));
    }
    let Ok(message) = serde_json::from_slice::<Value>(&body) else {
        return Ok(refuse(-32700, "the body is not JSON"));
    };
    let sandbox = JobSandbox { server: &server, job, by: caller.actor("mcp") };
    Ok(match mcp::answer(&message, &sandbox).await {
        Some(answer) => Json(answer).into_response(),
        None => StatusCode::ACCEPTED.into_response(),
    })
}

struct JobSandbox<'a> {
    server: &'a SharedServer,
    job: JobId,
    by: String,
}

#[async_trait]
impl Sandboxed for JobSandbox<'_> {
    fn tools(&self) -> Vec<ToolListing> {
        self.server.app.live.tools()
    }

    async fn call(&self, name: &str, arguments: Value) -> Result<ToolAnswer, String> {
        let call = tool_call(name, arguments)?;
        let used = self.server.app.live.use_tool(self.job, &self.by, call).await;
        used.map_err(|error| error.to_string())
    }
}

/// A call as the tools' one definition has it. Whoever speaks MCP is a model, or works for one.
pub fn tool_call(name: &str, mut arguments: Value) -> Result<ToolCall, String> {
    let Some(fields) = arguments.as_object_mut() else {
        return Err("the arguments must be one JSON object".into());
    };
    // Models write null for what they leave out.
    fields.retain(|_, value| !value.is_null());
    fields.insert("tool".into(), json!(name));
    serde_json::from_value(arguments)
        .map(ToolCall::for_models)
        .map_err(|error| format!("the arguments of `{name}` do not fit: {error}"))
}
