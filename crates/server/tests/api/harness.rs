//! A server in a temporary folder, a worker's side to drive jobs with, and a client.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use bellglass_protocol::event::{EndStatus, EventBody, JobEnd, JobError, ResultSummary};
use bellglass_protocol::id::{Generation, JobId, WorkerId};
use bellglass_protocol::job::{IsolationLevel, Limits};
use bellglass_protocol::model_offer::ModelOffer;
use bellglass_protocol::request::Offer;
use bellglass_protocol::step::ToolError;
use bellglass_protocol::tool::ToolCall;
use bellglass_protocol::tunnel::{Inside, ListeningPort, LivePlace, Terminal};
use bellglass_protocol::wire::{Entry, EntryKind};
use bellglass_server::mcp::{ToolAnswer, ToolListing};
use bellglass_server::{
    App, Images, Isolation, LiveContent, LiveError, LiveJobs, LiveStream, LiveTerminal,
    ServerSettings, Taken,
};
use bellglass_store::artifacts::{ArtifactKey, Artifacts};
use bellglass_store::{JobFilter, SqliteStore, Store, StoreError};
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use serde_json::Value;
use tower::ServiceExt as _;

use crate::document;

pub(crate) const HELLO: &str = r#"{"steps":[{"tool":"shell","command":"echo hello"}]}"#;

pub(crate) struct Harness {
    pub(crate) store: Arc<SqliteStore>,
    pub(crate) artifacts: Arc<Artifacts>,
    pub(crate) live: Arc<MapOfFiles>,
    pub(crate) worker_runs: Arc<AtomicBool>,
    pub(crate) router: Router,
    pub(crate) settings: ServerSettings,
    _folder: tempfile::TempDir,
}

impl Harness {
    pub(crate) async fn new() -> Self {
        Self::with(ServerSettings::default()).await
    }

    pub(crate) async fn with(settings: ServerSettings) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(SqliteStore::open(&folder.path().join("b.sqlite")).await.unwrap());
        let artifacts = Arc::new(Artifacts::local(&folder.path().join("artifacts")).unwrap());
        let live = Arc::new(MapOfFiles::default());
        let worker_runs = Arc::new(AtomicBool::new(true));
        let app_key = settings.app_key.or_else(|| Some(folder.path().join("app-key")));
        let settings = ServerSettings { app_key, ..settings };
        let mut harness = Self {
            store,
            artifacts,
            live,
            worker_runs,
            router: Router::new(),
            settings,
            _folder: folder,
        };
        harness.router = bellglass_server::router(harness.app()).unwrap();
        harness
    }

    pub(crate) fn app(&self) -> App {
        App {
            store: self.store.clone(),
            artifacts: self.artifacts.clone(),
            live: self.live.clone(),
            offer: Offer {
                defaults: Limits::default(),
                maxima: Limits::default(),
                default_image: "base".into(),
                isolation: IsolationLevel::Namespace,
                secrets: Default::default(),
                models: ModelOffer::default(),
                budget: Default::default(),
            },
            images: Arc::new(OnlyBase),
            isolation: Arc::new(OnlyNamespaces),
            settings: self.settings.clone(),
            other_metrics: Arc::new(|| "worker_text 1\n".into()),
            worker_runs: {
                let runs = self.worker_runs.clone();
                Arc::new(move || runs.load(Ordering::Relaxed))
            },
            cluster: None,
        }
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let answer = Answer { status: parts.status, headers: parts.headers, body };
        document::check(&method, &path, &answer);
        answer
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(request(Method::GET, path).body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn get_with(&self, path: &str, name: &str, value: &str) -> Answer {
        let request = request(Method::GET, path).header(name, value);
        self.send(request.body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Body>) -> Answer {
        let request = request(Method::POST, path).header("content-type", "application/json");
        self.send(request.body(body.into()).unwrap()).await
    }

    pub(crate) async fn schedule(&self, body: &str) -> JobId {
        let answer = self.post("/schedule", body.to_owned()).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.text());
        answer.json()["job_id"].as_str().unwrap().parse().unwrap()
    }

    pub(crate) async fn job_count(&self) -> usize {
        let filter = JobFilter { limit: 200, ..JobFilter::default() };
        self.store.jobs(&filter).await.unwrap().jobs.len()
    }

    /// Takes the next job as a worker would.
    pub(crate) async fn claim(&self) -> (JobId, Generation) {
        let worker = WorkerId::new("test");
        let claimed = self.store.claim_next_job(&worker, Duration::from_secs(60)).await.unwrap();
        let claimed = claimed.expect("a job waits");
        (claimed.view.job_id, claimed.generation)
    }

    pub(crate) async fn append(&self, (job, generation): (JobId, Generation), body: EventBody) {
        self.store.append(job, generation, vec![body]).await.unwrap();
    }

    pub(crate) async fn store_result(&self, claim: (JobId, Generation), zip: Vec<u8>) {
        let bytes = zip.len() as u64;
        self.artifacts.put(&ArtifactKey::result(claim.0), zip.into()).await.unwrap();
        let sha256 = "5e".repeat(32);
        let result =
            ResultSummary { bytes, sha256, entries: 3, skipped: Vec::new(), artifact: None };
        self.append(claim, EventBody::ResultStored { result }).await;
    }

    pub(crate) async fn finish(&self, claim: (JobId, Generation), status: EndStatus) {
        let error = (status == EndStatus::Failed)
            .then(|| JobError { code: "time_limit".into(), message: "it took too long".into() });
        let end = JobEnd { status, failed_steps: vec![1], error };
        self.append(claim, EventBody::Finished { end }).await;
    }

    /// A job that has run to its end and left this ZIP.
    pub(crate) async fn ended_with(&self, zip: Vec<u8>) -> JobId {
        let job = self.schedule(HELLO).await;
        let claim = self.claim().await;
        self.store_result(claim, zip).await;
        self.finish(claim, EndStatus::Completed).await;
        job
    }
}

pub(crate) fn request(method: Method, path: &str) -> axum::http::request::Builder {
    Request::builder().method(method).uri(path).header("host", "localhost:8000")
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a text")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The status and the code of a problem document.
    pub(crate) fn problem(&self) -> (u16, String) {
        assert_eq!(self.header("content-type"), "application/problem+json", "{}", self.text());
        let problem = self.json();
        assert_eq!(problem["status"], self.status.as_u16());
        let code = problem["code"].as_str().unwrap();
        assert_eq!(problem["type"], format!("/docs#error-{code}"));
        (self.status.as_u16(), code.to_owned())
    }
}

struct OnlyBase;

#[async_trait]
impl Images for OnlyBase {
    async fn exists(&self, name: &str) -> bool {
        assert_ne!(name, "panic", "this image makes the server panic");
        name == "base"
    }

    async fn names(&self) -> Vec<String> {
        vec!["base".into()]
    }
}

struct OnlyNamespaces;

#[async_trait]
impl Isolation for OnlyNamespaces {
    async fn lacks(&self, level: IsolationLevel) -> Option<String> {
        (level > IsolationLevel::Namespace).then(|| "install something".into())
    }
}

type Files = BTreeMap<String, (bool, Bytes)>;

/// Workspaces of running jobs: a map of files for each.
#[derive(Default)]
pub(crate) struct MapOfFiles(pub(crate) Mutex<HashMap<JobId, Files>>);

fn refuse(code: &str, message: &str) -> LiveError {
    LiveError::Tool(ToolError { code: code.into(), message: message.into() })
}

#[async_trait]
impl LiveJobs for MapOfFiles {
    async fn read(&self, job: JobId, path: &str) -> Result<LiveContent, LiveError> {
        let jobs = self.0.lock().unwrap();
        let files = jobs.get(&job).ok_or(LiveError::NotRunning)?;
        if path == "broken" {
            return Err(LiveError::Broken("the wire broke".into()));
        }
        if path == "busy" {
            return Err(LiveError::Busy);
        }
        if path.is_empty() {
            let entries = files.iter().map(|(path, (executable, data))| Entry {
                path: path.clone(),
                kind: EntryKind::File,
                mode: if *executable { 0o755 } else { 0o644 },
                bytes: data.len() as u64,
                modified: 1_700_000_000,
            });
            return Ok(LiveContent::Folder(entries.collect()));
        }
        let (_, data) = files.get(path).ok_or_else(|| refuse("not_found", "it is not there"))?;
        let pieces: Vec<_> =
            data.chunks(3).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        Ok(LiveContent::File { bytes: data.len() as u64, data: stream::iter(pieces).boxed() })
    }

    async fn write(
        &self,
        job: JobId,
        _: &str,
        path: &str,
        executable: bool,
        data: BoxStream<'static, io::Result<Bytes>>,
    ) -> Result<(), LiveError> {
        if !self.0.lock().unwrap().contains_key(&job) {
            return Err(LiveError::NotRunning);
        }
        let pieces: Vec<Bytes> =
            data.try_collect().await.map_err(|error| LiveError::Broken(error.to_string()))?;
        if path.starts_with("forbidden") {
            return Err(refuse("symlink", "a symlink \u{1b}[31mleads out"));
        }
        let mut jobs = self.0.lock().unwrap();
        let files = jobs.get_mut(&job).ok_or(LiveError::NotRunning)?;
        files.insert(path.into(), (executable, pieces.concat().into()));
        Ok(())
    }

    async fn delete(&self, job: JobId, _: &str, path: &str) -> Result<(), LiveError> {
        let mut jobs = self.0.lock().unwrap();
        let files = jobs.get_mut(&job).ok_or(LiveError::NotRunning)?;
        files.remove(path).map(drop).ok_or_else(|| refuse("not_found", "it is not there"))
    }

    fn tools(&self) -> Vec<ToolListing> {
        let (name, description) = ("list_files".into(), "Lists.".into());
        vec![ToolListing { name, description, schema: serde_json::json!({ "type": "object" }) }]
    }

    async fn use_tool(&self, job: JobId, _: &str, _: ToolCall) -> Result<ToolAnswer, LiveError> {
        let jobs = self.0.lock().unwrap();
        let files = jobs.get(&job).ok_or(LiveError::NotRunning)?;
        let text = files.keys().cloned().collect::<Vec<_>>().join("\n");
        Ok(ToolAnswer { text, failed: false, pictures: Vec::new() })
    }

    /// The ports of a job are those of this machine.
    async fn connect(&self, job: JobId, to: Inside) -> Result<LiveStream, LiveError> {
        if !self.0.lock().unwrap().contains_key(&job) {
            return Err(LiveError::NotRunning);
        }
        let Inside::Port { port } = to else { return Err(refuse("no_jupyter", "there is none")) };
        match tokio::net::TcpStream::connect(("127.0.0.1", u16::from(port))).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(_) => Err(refuse("nothing_listens", "nothing listens")),
        }
    }

    async fn view_desktop(&self, _: JobId, _: &str) -> Result<LiveStream, LiveError> {
        Err(refuse("no_desktop", "there is none"))
    }

    async fn take_desktop(&self, _: JobId, _: &str) -> Result<Taken, LiveError> {
        Err(LiveError::Taken("somebody".into()))
    }

    async fn open_terminal(
        &self,
        _: JobId,
        _: &str,
        _: Terminal,
    ) -> Result<LiveTerminal, LiveError> {
        Err(LiveError::NotRunning)
    }

    async fn ports(&self, job: JobId) -> Result<Vec<ListeningPort>, LiveError> {
        if !self.0.lock().unwrap().contains_key(&job) {
            return Err(LiveError::NotRunning);
        }
        let listening = |port: u16, address: &str| ListeningPort {
            port,
            address: address.into(),
            program: Some("python3 (process 7)".into()),
        };
        Ok(vec![listening(3128, "127.0.0.1"), listening(8000, "127.0.0.1"), listening(8000, "::1")])
    }

    async fn note_visit(&self, job: JobId, _: &str, _: LivePlace) -> Result<(), LiveError> {
        self.0.lock().unwrap().get(&job).map(drop).ok_or(LiveError::NotRunning)
    }

    async fn context(&self, _: JobId, at: Option<u64>) -> Result<Value, StoreError> {
        Ok(serde_json::json!({ "at": at }))
    }

    fn fit_to_remember(&self, text: &str) -> String {
        text.trim().to_owned()
    }

    async fn meaning(&self, _: &str) -> Option<Vec<f32>> {
        None
    }
}
