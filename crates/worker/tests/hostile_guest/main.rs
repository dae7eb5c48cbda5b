//! Jobs whose guest is malicious: each fails alone and says why, and the worker goes on with the next.

#[path = "../../../sandbox/tests/hostile_guest/fake.rs"]
mod fake;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bellglass_agent::model::catalogue::{Catalogue, CatalogueSettings};
use bellglass_protocol::checkpoint::{Change, CheckpointNumber, What, WorkspacePath};
use bellglass_protocol::event::EventBody;
use bellglass_protocol::id::WorkerId;
use bellglass_protocol::job::{IsolationLevel, JobSpec, Limits, Work};
use bellglass_protocol::model_offer::ModelOffer;
use bellglass_protocol::request::{JobRequest, Offer};
use bellglass_protocol::step::{
    OutputStream,
    StepStatus::{Interrupted, Succeeded},
    ToolError,
};
use bellglass_protocol::view::{JobStatus, JobView};
use bellglass_protocol::wire::{DATA_CHUNK, Entry, EntryKind, Frame, Reply, Request};
use bellglass_sandbox::Backends;
use bellglass_sandbox::egress::{EgressSettings, Secret};
use bellglass_store::artifacts::Artifacts;
use bellglass_store::{SqliteStore, Store};
use bellglass_worker::{ImageSource, LiveSandboxes, NetworkSource, Worker, WorkerSettings};
use bytes::Bytes;
use futures::SinkExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use fake::{Exchange, FakeBackend, Guest, behave, greeting, guest, own_memory, say, success};

struct Nowhere;

#[async_trait]
impl ImageSource for Nowhere {
    async fn rootfs(&self, _: &str) -> Option<PathBuf> {
        Some("/nowhere".into())
    }
}

#[async_trait]
impl NetworkSource for Nowhere {
    async fn settings(&self) -> Arc<EgressSettings> {
        Arc::default()
    }

    fn changes(&self) -> watch::Receiver<()> {
        watch::channel(()).1
    }

    fn secret(&self, _: &str) -> Option<Arc<Secret>> {
        None
    }
}

fn spec(limits: serde_json::Value) -> JobSpec {
    let job = serde_json::json!({
        "steps": [{ "tool": "shell", "command": "true" }],
        "limits": limits,
    });
    let offer = Offer {
        defaults: Limits::default(),
        maxima: Limits::default(),
        default_image: "base".into(),
        isolation: IsolationLevel::Namespace,
        models: ModelOffer::default(),
        budget: Default::default(),
        secrets: Default::default(),
    };
    JobRequest::from_json(job.to_string().as_bytes()).unwrap().into_spec(&offer).unwrap()
}

async fn job_with(hostile: Guest, limits: serde_json::Value) -> JobView {
    job_and_skipped(vec![hostile], spec(limits)).await.0
}

/// Runs one job with such guests and then one with a guest that behaves. Returns the first, once
/// the second has come to its good end, and why it has no checkpoint.
async fn job_and_skipped(mut guests: Vec<Guest>, spec: JobSpec) -> (JobView, String) {
    guests.push(greeting(behave));
    job_on(FakeBackend::new(guests), spec).await
}

/// The same with sandboxes of such a backend.
async fn job_on(backend: FakeBackend, spec: JobSpec) -> (JobView, String) {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open(&folder.path().join("jobs.db")).await.unwrap());
    let artifacts = Arc::new(Artifacts::local(&folder.path().join("artifacts")).unwrap());
    let settings = WorkerSettings {
        name: WorkerId::new("worker"),
        slots: 1,
        lease: Duration::from_secs(60),
        spools: folder.path().join("spools"),
        orphaned_after: Duration::from_secs(60),
        grace: Duration::ZERO,
        keep_jobs: None,
        sweep_every: Duration::from_secs(60),
        mcp: Default::default(),
        models: Arc::new(Catalogue::new(CatalogueSettings::default()).unwrap()),
    };
    let backends = Arc::new(Backends::new(Arc::new(backend), "there is none"));
    let (images, network) = (Arc::new(Nowhere), Arc::new(Nowhere));
    let live = LiveSandboxes::default();
    let worker = Worker::new(settings, store.clone(), artifacts, backends, images, network, live);
    let first = store.schedule(spec).await.unwrap();
    let second = store.schedule(self::spec(serde_json::json!({}))).await.unwrap();
    let shutdown = CancellationToken::new();
    let mut changes = store.changes();
    let working = tokio::spawn(worker.run(shutdown.clone()));
    // The second is claimed when the first is over, since there is one slot.
    while !store.job(second).await.unwrap().status.is_terminal() {
        changes.recv().await.unwrap();
    }
    assert_eq!(store.job(second).await.unwrap().status, JobStatus::Completed);
    shutdown.cancel();
    working.await.unwrap().unwrap();
    let events = store.events_after(first, 0, 1000).await.unwrap();
    let skipped = events.into_iter().find_map(|sealed| match sealed.event.body {
        EventBody::CheckpointSkipped { reason, .. } => Some(reason),
        _ => None,
    });
    (store.job(first).await.unwrap(), skipped.unwrap_or_default())
}

fn assert_failed(job: &JobView, code: &str, message: &str) {
    let error = job.error.as_ref().unwrap_or_else(|| panic!("no error in {job:#?}"));
    assert_eq!((job.status, error.code.as_str()), (JobStatus::Failed, code), "{error:?}");
    assert!(error.message.contains(message), "{error:?}");
    assert!(error.message.len() < 4096, "{error:?}");
}

/// A guest whose answer to a call is these bytes.
fn answering_calls_with(bytes: &'static [u8]) -> Guest {
    greeting(move |request, exchange: Exchange| async move {
        match request {
            Request::Call { .. } => {
                let mut stream = exchange.into_inner();
                let _ = stream.write_all(bytes).await;
                let _ = stream.shutdown().await;
            }
            request => behave(request, exchange).await,
        }
    })
}

#[tokio::test]
async fn a_job_whose_guest_speaks_garbage() {
    let garbage = guest(|mut wire| async move {
        let _ = wire.write_all(&[0xfe; 4096]).await;
    });
    let job = job_with(garbage, serde_json::json!({})).await;
    assert_failed(&job, "sandbox_failed", "the guest could not be reached");
}

#[tokio::test]
async fn a_job_whose_guest_breaks_the_protocol() {
    for (bytes, message) in [
        (&[9, 0, 0, 0, 0][..], "unknown kind 9"),
        (&[0, 0xff, 0xff, 0xff, 0xff][..], "larger"),
        (b"\0\0\0\0\x02{}", "cannot be read"),
        (b"\0\0\0\0\x0e{\"reply\":\"ok\"}", "came where"),
        (b"", "early"),
    ] {
        let job = job_with(answering_calls_with(bytes), serde_json::json!({})).await;
        // What it did is over; the job goes on in another sandbox.
        assert_eq!(job.status, JobStatus::Completed, "{:?}", job.error);
        let error = job.steps[0].error.as_ref().unwrap();
        assert_eq!((job.steps[0].status, error.code.as_str()), (Interrupted, "sandbox_lost"));
        assert!(error.message.contains(message), "{error:?}");
        assert!(error.message.len() < 4096, "{error:?}");
    }
}

#[tokio::test]
async fn a_job_whose_guests_all_break_the_protocol_comes_to_its_end() {
    let mut spec = spec(serde_json::json!({}));
    let Work::Steps(steps) = &mut spec.work else { panic!("{spec:?}") };
    *steps = vec![steps[0].clone(); 9];
    let hostile = answering_calls_with(b"");
    let guests = vec![hostile.clone(), hostile.clone(), hostile.clone(), hostile];
    let (job, _) = job_and_skipped(guests, spec).await;
    assert_failed(&job, "sandbox_lost", "early");
    assert_eq!(job.failed_steps, [1, 2, 3, 4]);
}

/// Its end is said only when nothing of it runs any more.
#[tokio::test]
async fn a_job_whose_sandbox_cannot_be_removed_at_first_is_not_over_before() {
    let backend = FakeBackend::new(vec![greeting(behave)]);
    backend.unstoppable.store(3, Ordering::Relaxed);
    let (stopped, unstoppable) = (backend.stopped.clone(), backend.unstoppable.clone());
    let (job, _) = job_on(backend, spec(serde_json::json!({}))).await;
    assert_eq!(job.status, JobStatus::Completed, "{:?}", job.error);
    // That of the first job, and that of the second.
    assert_eq!((unstoppable.load(Ordering::Relaxed), stopped.load(Ordering::Relaxed)), (0, 2));
}

#[tokio::test]
async fn a_job_whose_guest_lies_about_its_result() {
    // Texts without end, numbers that cannot be, and a step that claims to be running still.
    let lying = greeting(|request, mut exchange: Exchange| async move {
        match request {
            Request::Call { .. } => {
                let mut result = success();
                result.status = bellglass_protocol::step::StepStatus::Running;
                result.text = Some("x".repeat(900_000));
                result.exit_code = Some(i32::MIN);
                result.signal = Some(i32::MAX);
                result.duration_us = u64::MAX;
                result.output_bytes = u64::MAX;
                let _ = say(&mut exchange, &Reply::Done { result }).await;
            }
            request => behave(request, exchange).await,
        }
    });
    let job = job_with(lying, serde_json::json!({})).await;
    // The step has failed; whether the job goes on after one that has is up to the job.
    assert_eq!(job.failed_steps, [1], "{job:#?}");
    assert_eq!(job.status, JobStatus::Completed, "{:?}", job.error);
    assert!(job.steps[0].output.len() <= 66 << 10);
}

#[tokio::test]
async fn a_job_whose_guest_floods_its_output() {
    let loud = greeting(|request, mut exchange: Exchange| async move {
        match request {
            Request::Call { .. } => {
                let piece = Bytes::from(vec![b'x'; DATA_CHUNK]);
                for _ in 0..1024 {
                    let frame = Frame::Output(OutputStream::Stderr, piece.clone());
                    if exchange.send(frame).await.is_err() {
                        return;
                    }
                }
                let _ = say(&mut exchange, &Reply::Done { result: success() }).await;
                use futures::StreamExt as _;
                while exchange.next().await.is_some() {}
            }
            request => behave(request, exchange).await,
        }
    });
    let before = own_memory();
    let job = job_with(loud, serde_json::json!({ "output": "1 MiB" })).await;
    assert!(own_memory() < before + (48 << 20));
    assert_eq!(job.status, JobStatus::Completed, "{:?}", job.error);
    assert!(job.steps[0].stderr.len() <= 66 << 10);
}

/// Packing: what the guest says about the workspace never ends, and leads everywhere.
fn packing<F>(send: impl Fn(Exchange) -> F + Send + Sync + Clone + 'static) -> Guest
where
    F: Future<Output = ()> + Send + 'static,
{
    greeting(move |request, exchange: Exchange| {
        let send = send.clone();
        async move {
            match request {
                Request::Pack => send(exchange).await,
                request => behave(request, exchange).await,
            }
        }
    })
}

fn entry(path: &str, kind: EntryKind) -> Frame {
    let modified = i64::MIN;
    let entry = Entry { path: path.into(), kind, mode: u32::MAX, bytes: u64::MAX, modified };
    Frame::message(&Reply::Entry { entry })
}

#[tokio::test]
async fn a_job_whose_workspace_has_no_end() {
    let pieces: [fn() -> Frame; 2] = [
        || Frame::Data(Bytes::from(vec![0; DATA_CHUNK])),
        || entry(&"../".repeat(100_000), EntryKind::Folder),
    ];
    for piece in pieces {
        let endless = packing(move |mut exchange| async move {
            let _ = exchange.send(entry("file", EntryKind::File)).await;
            while exchange.send(piece()).await.is_ok() {}
        });
        let before = own_memory();
        let job = job_with(endless, serde_json::json!({ "disk": "1 MiB" })).await;
        assert!(own_memory() < before + (160 << 20));
        assert_eq!(job.status, JobStatus::Completed, "{:?}", job.error);
        let result = job.result.unwrap();
        assert!(result.skipped.last().unwrap().contains("and all after it"), "{result:?}");
    }
}

#[tokio::test]
async fn a_job_whose_workspace_makes_no_sense() {
    let link = |target: &str| EntryKind::Symlink { target: target.into() };
    let nonsense = packing(move |mut exchange| async move {
        let frames = [
            Frame::Data(Bytes::from_static(b"of no file")),
            Frame::message(&Reply::EntryEnd { error: Some("\u{1b}[2J".repeat(10_000)) }),
            entry("../../etc/passwd", EntryKind::File),
            Frame::Data(Bytes::from_static(b"evil")),
            entry("/etc/passwd", EntryKind::File),
            entry("a", link("/etc")),
            entry("a/passwd", EntryKind::File),
            entry("A/passwd", EntryKind::File),
            entry("good", EntryKind::File),
            Frame::Data(Bytes::from_static(b"good")),
            entry("good", link("/etc/passwd")),
            entry("good", EntryKind::File),
            entry("", EntryKind::Folder),
            entry("nul\0byte", EntryKind::File),
            entry("device", EntryKind::Other),
            entry("long", link(&"x".repeat(900_000))),
            entry(&"deep/".repeat(3000), EntryKind::Folder),
            Frame::message(&Reply::EntryEnd { error: None }),
            Frame::message(&Reply::EntryEnd { error: None }),
            Frame::message(&Reply::End),
        ];
        for frame in frames {
            let _ = exchange.send(frame).await;
        }
    });
    let job = job_with(nonsense, serde_json::json!({})).await;
    assert_eq!(job.status, JobStatus::Completed, "{:?}", job.error);
    let result = job.result.unwrap();
    // The link, the good file, the one whose name was mended, and the long link.
    assert!((3..=4).contains(&result.entries), "{result:?}");
    assert!(result.skipped.iter().all(|why| !why.contains('\u{1b}') && why.len() < 1000));
}

#[tokio::test]
async fn a_job_whose_guest_breaks_off_while_packing() {
    let breaking = packing(|mut exchange| async move {
        let _ = exchange.send(entry("file", EntryKind::File)).await;
    });
    // What was done is done, and nothing of it was ever lost: the step changed no file.
    let job = job_with(breaking, serde_json::json!({})).await;
    assert_eq!(job.status, JobStatus::Completed, "{:?}", job.error);
    assert_eq!(job.result.unwrap().entries, 0);
}

/// What a checkpoint has is packed, and what it has not is said.
#[tokio::test]
async fn a_job_whose_guest_is_lost_while_packing() {
    let file = || {
        let path = WorkspacePath::new("made".into()).unwrap();
        let what = What::File { mode: 0o644, bytes: 3, modified: 0 };
        let change = Frame::message(&Reply::Change { change: Change { path, what } });
        vec![
            since(None),
            change,
            Frame::Data(Bytes::from_static(b"abc")),
            Frame::message(&Reply::EntryEnd { error: None }),
            Frame::message(&Reply::End),
        ]
    };
    let lost = greeting(move |request, mut exchange: Exchange| async move {
        match request {
            Request::Pack => {}
            Request::Checkpoint { .. } => {
                for frame in file() {
                    let _ = exchange.send(frame).await;
                }
            }
            request => behave(request, exchange).await,
        }
    });
    for (checkpoints, status, entries) in
        [("1 MiB", JobStatus::Completed, 1), ("0 B", JobStatus::Failed, 0)]
    {
        let limits = serde_json::json!({ "checkpoints": checkpoints });
        let job = job_with(lost.clone(), limits).await;
        assert_eq!((job.status, job.steps[0].status), (status, Succeeded), "{:?}", job.error);
        if status == JobStatus::Failed {
            assert_failed(&job, "result_not_whole", "before step 1");
        }
        assert_eq!(job.result.unwrap().entries, entries, "{checkpoints}");
    }
}

#[tokio::test]
async fn a_job_whose_guest_refuses_to_be_packed() {
    let refusing = packing(|mut exchange| async move {
        let error = ToolError { code: "io".into(), message: "the disk is on fire".into() };
        let _ = say(&mut exchange, &Reply::Error { error }).await;
    });
    let job = job_with(refusing, serde_json::json!({})).await;
    assert_failed(&job, "result_not_stored", "on fire");
}

/// Checkpoints: a guest that says this has changed after the step.
fn changing(frames: impl Fn() -> Vec<Frame> + Send + Sync + Clone + 'static) -> Guest {
    greeting(move |request, mut exchange: Exchange| {
        let frames = frames.clone();
        async move {
            match request {
                Request::Checkpoint { .. } => {
                    for frame in frames() {
                        let _ = exchange.send(frame).await;
                    }
                }
                request => behave(request, exchange).await,
            }
        }
    })
}

fn since(number: Option<u64>) -> Frame {
    Frame::message(&Reply::Changes { since: number.map(CheckpointNumber) })
}

fn file(path: &str, bytes: u64) -> Frame {
    let path = WorkspacePath::new(path.into()).unwrap();
    let what = What::File { mode: u32::MAX, bytes, modified: i64::MIN };
    Frame::message(&Reply::Change { change: Change { path, what } })
}

fn data(bytes: &'static [u8]) -> Frame {
    Frame::Data(Bytes::from_static(bytes))
}

fn file_end() -> Frame {
    Frame::message(&Reply::EntryEnd { error: None })
}

#[tokio::test]
async fn a_job_whose_changes_make_no_sense() {
    type Frames = fn() -> Vec<Frame>;
    let end = || Frame::message(&Reply::End);
    let cases: [(Frames, &str); 10] = [
        (|| vec![file("a", 1)], "did not say"),
        (|| vec![since(Some(77))], "another checkpoint"),
        (|| vec![since(None), since(None)], "began twice"),
        (|| vec![since(None), data(b"x")], "without a file"),
        (|| vec![since(None), file_end()], "had not begun"),
        (|| vec![since(None), file("a", 5), data(b"123456")], "more bytes than it said"),
        (|| vec![since(None), file("a", 5), data(b"123"), file_end()], "another size"),
        (|| vec![since(None), file("a", 5), file("b", 5)], "had no end"),
        (|| vec![since(None), file("a", 5), data(b"12345")], "ended within"),
        (|| vec![since(None), file("a/b", 1), data(b"1"), file_end()], "where no folder is"),
    ];
    for (frames, reason) in cases {
        let lying = changing(move || frames().into_iter().chain([end()]).collect());
        let (job, skipped) = job_and_skipped(vec![lying], spec(serde_json::json!({}))).await;
        assert_eq!(job.status, JobStatus::Completed, "{reason}: {:?}", job.error);
        assert_eq!((job.kept.newest(), job.kept.unkept_since()), (None, Some(1)), "{reason}");
        assert!(skipped.contains(reason), "{skipped}");
    }
}

#[tokio::test]
async fn a_job_whose_changes_lead_out_of_the_workspace() {
    for path in ["../x", "/etc/passwd", "a/../../x", "", "a\\x00b"] {
        let text = format!(
            "{{\"reply\":\"change\",\"change\":{{\"path\":\"{path}\",\"what\":{{\"kind\":\"folder\",\"mode\":0}}}}}}"
        );
        let leading_out =
            changing(move || vec![since(None), Frame::Message(text.clone().into_bytes().into())]);
        let job = job_with(leading_out, serde_json::json!({})).await;
        assert_eq!(job.status, JobStatus::Completed, "{:?}", job.error);
        assert_eq!((job.steps[0].status, job.kept.newest()), (Interrupted, None));
    }
}

#[tokio::test]
async fn a_job_whose_changes_have_no_end() {
    let pieces: [fn(u64) -> Frame; 4] = [
        |_| Frame::Data(Bytes::from(vec![0; DATA_CHUNK])),
        |_| Frame::Data(Bytes::new()),
        |n| {
            let path = WorkspacePath::new(format!("{n}").into()).unwrap();
            let what = What::Folder { mode: 0 };
            Frame::message(&Reply::Change { change: Change { path, what } })
        },
        |_| {
            let path = WorkspacePath::new("same".into()).unwrap();
            Frame::message(&Reply::Change { change: Change { path, what: What::Gone } })
        },
    ];
    for (at, piece) in pieces.into_iter().enumerate() {
        let endless = greeting(move |request, mut exchange: Exchange| async move {
            match request {
                Request::Checkpoint { .. } => {
                    let _ = exchange.send(since(None)).await;
                    if at < 2 {
                        let _ = exchange.send(file("file", u64::MAX)).await;
                    }
                    let mut n = 0;
                    while exchange.send(piece(n)).await.is_ok() {
                        n += 1;
                    }
                }
                request => behave(request, exchange).await,
            }
        });
        let before = own_memory();
        let limits = serde_json::json!({ "checkpoints": "1 MiB" });
        let (job, skipped) = job_and_skipped(vec![endless], spec(limits)).await;
        assert!(own_memory() < before + (160 << 20));
        assert_eq!(job.status, JobStatus::Completed, "{:?}", job.error);
        assert!(skipped.contains("broke the rules"), "{skipped}");
    }
}
