//! The client's side of the HTTP API.

use std::time::Duration;

use bellglass_protocol::id::JobId;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::Value;

use crate::cli;

#[derive(Debug)]
pub(crate) enum ApiError {
    Unreachable {
        server: String,
        source: reqwest::Error,
    },
    /// The server said no, with a problem document.
    Problem {
        status: u16,
        code: String,
        detail: String,
        hint: Option<String>,
    },
    /// The connection broke in the middle.
    Broken(reqwest::Error),
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable { server, .. } => write!(
                f,
                "no server answers at {server}; start one with `bellglass serve`, or name another \
                 with --server or BELLGLASS_SERVER"
            ),
            Self::Problem { status, code, detail, hint } => {
                write!(f, "the server refused ({status} {code}): {detail}")?;
                hint.iter().try_for_each(|hint| write!(f, "\n  {hint}"))
            }
            Self::Broken(_) => f.write_str("the connection to the server broke"),
        }
    }
}

impl std::error::Error for ApiError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreachable { source, .. } | Self::Broken(source) => Some(source),
            Self::Problem { .. } => None,
        }
    }
}

type ApiResult<T> = Result<T, ApiError>;

/// One server.
pub(crate) struct ApiClient {
    http: reqwest::Client,
    server: String,
    token: Option<String>,
}

impl ApiClient {
    pub(crate) fn new(server: &cli::Server) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            // The server is named outright; a proxy for the wide world is not in between.
            .no_proxy()
            .build()?;
        let address = server.server.trim_end_matches('/').to_owned();
        Ok(Self { http, server: address, token: server.token.clone() })
    }

    /// The whole address of a path of the API.
    pub(crate) fn url(&self, path: &str) -> String {
        if path.starts_with("http") { path.to_owned() } else { format!("{}{path}", self.server) }
    }

    pub(crate) async fn submit(&self, body: Vec<u8>) -> ApiResult<Value> {
        let request = self.request(Method::POST, "/schedule");
        self.json(request.header("content-type", "application/json").body(body)).await
    }

    pub(crate) async fn status(&self, job: JobId) -> ApiResult<Value> {
        self.json(self.request(Method::GET, &format!("/status/{job}"))).await
    }

    pub(crate) async fn cancel(&self, job: JobId) -> ApiResult<Value> {
        self.json(self.request(Method::POST, &format!("/jobs/{job}/cancel"))).await
    }

    pub(crate) async fn change_network(&self, job: JobId, policy: &Value) -> ApiResult<Value> {
        let request = self.request(Method::PUT, &format!("/jobs/{job}/network"));
        self.json(request.json(&serde_json::json!({ "network": policy }))).await
    }

    /// A job whole.
    pub(crate) async fn job(&self, job: JobId) -> ApiResult<Value> {
        self.json(self.request(Method::GET, &format!("/jobs/{job}"))).await
    }

    pub(crate) async fn decide(&self, job: JobId, what: &str, body: &Value) -> ApiResult<Value> {
        let request = self.request(Method::POST, &format!("/jobs/{job}/approvals/{what}"));
        self.json(request.json(body)).await
    }

    pub(crate) async fn step_diff(&self, job: JobId, step: u32) -> ApiResult<String> {
        let request = self.request(Method::GET, &format!("/jobs/{job}/steps/{step}/diff"));
        self.send(request).await?.text().await.map_err(ApiError::Broken)
    }

    pub(crate) async fn fork(&self, job: JobId, body: &Value) -> ApiResult<Value> {
        self.json(self.request(Method::POST, &format!("/jobs/{job}/fork")).json(body)).await
    }

    pub(crate) async fn restore(&self, job: JobId, step: u32) -> ApiResult<Value> {
        let request = self.request(Method::POST, &format!("/jobs/{job}/restore"));
        self.json(request.json(&serde_json::json!({ "step": step }))).await
    }

    /// A WebSocket to a terminal in a job's sandbox, as bytes.
    pub(crate) async fn open_terminal(
        &self,
        job: JobId,
        session: Option<&str>,
        window: Option<(u16, u16)>,
    ) -> anyhow::Result<reqwest::Upgraded> {
        let mut query: Vec<(&str, String)> = Vec::new();
        query.extend(session.map(|name| ("session", name.to_owned())));
        if let Some((columns, rows)) = window {
            query.extend([("columns", columns.to_string()), ("rows", rows.to_string())]);
        }
        let request = self
            .request(Method::GET, &format!("/jobs/{job}/terminal"))
            .query(&query)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header(
                "sec-websocket-key",
                tokio_tungstenite::tungstenite::handshake::client::generate_key(),
            );
        Ok(self.send(request).await?.upgrade().await?)
    }

    pub(crate) async fn memories(&self, query: &[(&str, String)]) -> ApiResult<Value> {
        self.json(self.request(Method::GET, "/memories").query(query)).await
    }

    pub(crate) async fn add_memory(&self, body: &Value) -> ApiResult<Value> {
        self.json(self.request(Method::POST, "/memories").json(body)).await
    }

    pub(crate) async fn change_memory(&self, id: i64, body: &Value) -> ApiResult<Value> {
        self.json(self.request(Method::PUT, &format!("/memories/{id}")).json(body)).await
    }

    pub(crate) async fn forget_memory(&self, id: i64) -> ApiResult<()> {
        self.send(self.request(Method::DELETE, &format!("/memories/{id}"))).await.map(|_| ())
    }

    pub(crate) async fn create_token(&self, body: &Value) -> ApiResult<Value> {
        self.json(self.request(Method::POST, "/tokens").json(body)).await
    }

    pub(crate) async fn tokens(&self) -> ApiResult<Value> {
        self.json(self.request(Method::GET, "/tokens")).await
    }

    pub(crate) async fn revoke_token(&self, id: &str) -> ApiResult<()> {
        // An id is letters and digits; whatever else was typed must not become another address.
        let id: String = id.chars().filter(char::is_ascii_alphanumeric).collect();
        self.send(self.request(Method::DELETE, &format!("/tokens/{id}"))).await.map(|_| ())
    }

    pub(crate) async fn share(&self, job: JobId, body: &Value) -> ApiResult<Value> {
        self.json(self.request(Method::POST, &format!("/jobs/{job}/share")).json(body)).await
    }

    pub(crate) async fn unshare(&self, job: JobId) -> ApiResult<()> {
        self.send(self.request(Method::DELETE, &format!("/jobs/{job}/share"))).await.map(|_| ())
    }

    pub(crate) async fn jobs(&self, query: &[(&str, String)]) -> ApiResult<Value> {
        self.json(self.request(Method::GET, "/jobs").query(query)).await
    }

    /// The ZIP of a job's workspace: its size if known, and its bytes.
    pub(crate) async fn result(
        &self,
        job: JobId,
    ) -> ApiResult<(Option<u64>, BoxStream<'static, ApiResult<Bytes>>)> {
        let response =
            self.send(self.request(Method::GET, &format!("/jobs/{job}/output.zip"))).await?;
        let bytes = response.content_length();
        Ok((bytes, response.bytes_stream().map_err(ApiError::Broken).boxed()))
    }

    /// A job's log, line by line, from event number `after` on. With `follow` it goes on to the end.
    pub(crate) async fn log(
        &self,
        job: JobId,
        after: u64,
        follow: bool,
    ) -> ApiResult<BoxStream<'static, ApiResult<String>>> {
        let path = format!("/jobs/{job}/events");
        let mut request = self.request(Method::GET, &path).query(&[("format", "jsonl")]);
        request = request.query(&[("after", after.to_string())]);
        if follow {
            request = request.query(&[("follow", "1")]);
        }
        let bytes = self.send(request).await?.bytes_stream();
        let lines = futures::stream::try_unfold(
            (bytes.boxed(), Vec::new()),
            |(mut bytes, mut pending): (BoxStream<'static, _>, Vec<u8>)| async move {
                loop {
                    if let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
                        let rest = pending.split_off(end + 1);
                        pending.pop();
                        let line = String::from_utf8_lossy(&pending).into_owned();
                        return Ok(Some((line, (bytes, rest))));
                    }
                    match bytes.next().await {
                        Some(piece) => pending.extend_from_slice(&piece.map_err(ApiError::Broken)?),
                        None => return Ok(None),
                    }
                }
            },
        );
        Ok(lines.boxed())
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, self.url(path));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn json(&self, request: RequestBuilder) -> ApiResult<Value> {
        self.send(request).await?.json().await.map_err(ApiError::Broken)
    }

    async fn send(&self, request: RequestBuilder) -> ApiResult<Response> {
        let unreachable = |source| ApiError::Unreachable { server: self.server.clone(), source };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        if status.is_success() || status == reqwest::StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        let problem: Value = response.json().await.unwrap_or_default();
        let text = |name: &str| problem[name].as_str().map(str::to_owned);
        Err(ApiError::Problem {
            status: status.as_u16(),
            code: text("code").unwrap_or_else(|| "unknown".into()),
            detail: text("detail").unwrap_or_else(|| status.to_string()),
            hint: text("hint"),
        })
    }
}
