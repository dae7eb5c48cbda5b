//! What a client does: submit, follow, look, download.

use std::io::Cursor;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use reqwest::{Method, Response};
use serde_json::Value;
use zip::ZipArchive;

#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    url: String,
}

impl Client {
    pub(crate) fn new(url: String) -> Self {
        Self { http: reqwest::Client::builder().no_proxy().build().unwrap(), url }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, self.url(path))
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.unwrap()
    }

    /// A document that must be there.
    pub(crate) async fn json(&self, path: &str) -> Value {
        let response = self.get(path).await;
        assert_eq!(response.status(), 200, "{path}");
        response.json().await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> Response {
        let request = self.request(Method::POST, path).header("content-type", "application/json");
        request.body(body).send().await.unwrap()
    }

    /// Schedules a job that must be accepted, and returns its id.
    pub(crate) async fn submit(&self, body: &Value) -> String {
        let response = self.post("/schedule", body.to_string()).await;
        let status = response.status();
        let answer: Value = response.json().await.unwrap();
        assert_eq!(status, 202, "{answer:#}");
        assert_eq!(answer["job_id"], answer["task_id"]);
        answer["job_id"].as_str().unwrap().to_owned()
    }

    /// Runs a job to its end and returns it whole.
    pub(crate) async fn run(&self, body: &Value) -> Value {
        let job = self.submit(body).await;
        self.wait_for_end(&job).await
    }

    pub(crate) async fn job(&self, job: &str) -> Value {
        self.json(&format!("/jobs/{job}")).await
    }

    /// The job's events, from the first on and as they come.
    pub(crate) async fn events(&self, job: &str) -> Events {
        let response = self.get(&format!("/jobs/{job}/events?format=jsonl&follow=1")).await;
        assert_eq!(response.status(), 200);
        Events { bytes: response.bytes_stream().boxed(), pending: Vec::new() }
    }

    pub(crate) async fn wait_for(&self, job: &str, kind: &str) -> Value {
        self.events(job).await.until(|event| event["type"] == kind).await
    }

    /// Waits for a step's event, such as `step.started`.
    pub(crate) async fn wait_for_step(&self, job: &str, kind: &str, n: u32) -> Value {
        self.events(job).await.until(|event| event["type"] == kind && event["n"] == n).await
    }

    pub(crate) async fn wait_for_end(&self, job: &str) -> Value {
        self.wait_for(job, "finished").await;
        self.job(job).await
    }

    /// The job's log as it stands.
    pub(crate) async fn log(&self, job: &str) -> String {
        let response = self.get(&format!("/jobs/{job}/events?format=jsonl")).await;
        assert_eq!(response.status(), 200);
        response.text().await.unwrap()
    }

    pub(crate) async fn cancel(&self, job: &str) -> Value {
        let response = self.post(&format!("/jobs/{job}/cancel"), "").await;
        assert_eq!(response.status(), 200);
        response.json().await.unwrap()
    }

    pub(crate) async fn put_file(
        &self,
        job: &str,
        path: &str,
        content: impl Into<Vec<u8>>,
    ) -> Response {
        let request = self.request(Method::PUT, &format!("/jobs/{job}/files/{path}"));
        request.body(content.into()).send().await.unwrap()
    }

    /// Lets a job go on that waits for the file `go`.
    pub(crate) async fn let_go(&self, job: &str) {
        assert_eq!(self.put_file(job, "go", "").await.status(), 204);
    }

    /// The same for a job whose server was killed and started again once.
    pub(crate) async fn let_go_under_successor(&self, job: &str) {
        self.events(job).await.until(|event| event["generation"] == 2).await;
        // The sandbox is found again a moment after the claim.
        while self.put_file(job, "go", "").await.status() != 204 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn download(&self, job: &str) -> Bytes {
        let response = self.get(&format!("/jobs/{job}/output.zip")).await;
        assert_eq!(response.status(), 200);
        response.bytes().await.unwrap()
    }

    pub(crate) async fn archive(&self, job: &str) -> ZipArchive<Cursor<Bytes>> {
        ZipArchive::new(Cursor::new(self.download(job).await)).unwrap()
    }
}

/// Events as they come.
pub(crate) struct Events {
    bytes: BoxStream<'static, reqwest::Result<Bytes>>,
    pending: Vec<u8>,
}

impl Events {
    /// The next event; `None` when the stream has ended, or broke because the server did.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            self.pending.extend_from_slice(&self.bytes.next().await?.ok()?);
        }
    }

    pub(crate) async fn until(&mut self, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let mut seen = Vec::new();
        while let Some(event) = self.next().await {
            if is_wanted(&event) {
                return event;
            }
            seen.push(event["type"].clone());
        }
        panic!("the event did not come; these did: {seen:?}")
    }
}
