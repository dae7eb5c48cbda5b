//! The end of a job: the workspace packed, the decision written down, the sandbox gone, `finished`.

use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::event::{EndStatus, EventBody, JobEnd, JobError, ResultSummary};
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::JobSpec;
use bellglass_protocol::memory::memory_document;
use bellglass_protocol::view::JobStatus;
use bellglass_protocol::wire::{Language, MAX_NOTEBOOK, MAX_SCREEN};
use bellglass_sandbox::client::{FileStream, GuestClient};
use bellglass_sandbox::{Sandbox, SandboxName};
use bellglass_store::{Store, StoreError};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};

use crate::job::leave;
use crate::job_log::JobLog;
use crate::pack::{Addition, PackError, pack_kept, pack_workspace};
use crate::queue::Shared;
use crate::spool;
use crate::stop::{StopReason, StopSwitch};
use crate::way_out::WayOut;

/// How long packing may take after the job itself is over.
const PACKING_TIME: Duration = Duration::from_secs(600);

/// The same for a job that somebody wants to be over.
const HURRIED_PACKING_TIME: Duration = Duration::from_secs(60);

/// How long to wait before a database that is away is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How long to wait at the most before a sandbox that could not be removed is tried again.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// How the work of a job came to its end, before it is packed and recorded.
pub(crate) enum Ending {
    /// The mind is done, well or badly.
    Concluded(Result<(), JobError>),
    Stopped(StopReason),
    Broken(JobError),
}

impl Ending {
    fn status(self, spec: &JobSpec) -> (EndStatus, Option<JobError>) {
        match self {
            Self::Concluded(Ok(())) => (EndStatus::Completed, None),
            Self::Concluded(Err(error)) | Self::Broken(error) => (EndStatus::Failed, Some(error)),
            Self::Stopped(StopReason::TimeLimit) => {
                let message = format!("the job reached its time limit of {}", spec.limits.time);
                (EndStatus::Failed, Some(JobError { code: "time_limit".into(), message }))
            }
            Self::Stopped(_) => (EndStatus::Cancelled, None),
        }
    }
}

/// Packs what there is, writes down how the job ends, and ends the sandbox.
///
/// The decision is written before the sandbox goes: a crash in between must not make the next
/// worker take the missing sandbox for a lost one and do everything again.
pub(crate) async fn conclude(
    shared: &Shared,
    log: &JobLog,
    spec: &JobSpec,
    ending: Ending,
    sandbox: Option<Sandbox>,
    way_out: &WayOut,
    stop: &StopSwitch,
) -> Result<(), StoreError> {
    // Any other reason to stop is news, even if it came before packing began.
    let known = match &ending {
        Ending::Stopped(reason) => Some(*reason),
        Ending::Concluded(_) | Ending::Broken(_) => None,
    };
    let (mut status, mut error) = ending.status(spec);
    let mut events = Vec::new();
    if let Some(sandbox) = &sandbox {
        match pack(shared, log, spec, sandbox, stop, known).await {
            Packed::Result(result) => events.push(EventBody::ResultStored { result }),
            Packed::Part(result, message) => {
                events.push(EventBody::ResultStored { result });
                if status == EndStatus::Completed {
                    status = EndStatus::Failed;
                    error = Some(JobError { code: "result_not_whole".into(), message });
                }
            }
            Packed::LeftTo(reason) => return leave(log, way_out, reason).await,
            Packed::Cancelled => (status, error) = (EndStatus::Cancelled, None),
            Packed::Failed(message) if status == EndStatus::Completed => {
                status = EndStatus::Failed;
                error = Some(JobError { code: "result_not_stored".into(), message });
            }
            Packed::Failed(message) => {
                tracing::warn!(job = %log.job, message, "no result was stored");
            }
        }
    }
    let failed_steps = log.look(|view| view.failed_steps.clone());
    let end = JobEnd { status, failed_steps, error };
    events.push(EventBody::Concluded { end: end.clone() });
    while let Err(error) = log.append(events.clone()).await {
        // The sandbox is in our hands, and nobody else can take the job up either.
        if !matches!(error, StoreError::Unavailable) {
            return Err(error);
        }
        tokio::select! {
            () = tokio::time::sleep(ASK_AGAIN) => {}
            _ = stop.told_to_let_go() => return Err(error),
        }
    }
    finish(shared, log, end, sandbox, way_out, stop).await
}

/// Ends the sandbox, and only then says that the job is over. While it cannot be ended the job is not over.
pub(crate) async fn finish(
    shared: &Shared,
    log: &JobLog,
    end: JobEnd,
    sandbox: Option<Sandbox>,
    way_out: &WayOut,
    stop: &StopSwitch,
) -> Result<(), StoreError> {
    let mut wait = Duration::from_millis(100);
    loop {
        let gone = match &sandbox {
            Some(sandbox) => sandbox.destroy().await,
            // It may have ended together with whoever was about to remove it.
            None => shared.backends.remove(&SandboxName::of_job(log.job)).await,
        };
        let Err(error) = gone else { break };
        tracing::error!(job = %log.job, %error, "could not remove the sandbox; trying again");
        tokio::select! {
            () = tokio::time::sleep(wait) => wait = (2 * wait).min(LONGEST_WAIT),
            // How it ends is written down, so whoever takes it up goes on from here.
            reason = stop.told_to_let_go() => return leave(log, way_out, reason).await,
        }
    }
    way_out.close().await;
    remove_spools(shared, log.job).await;
    log.hear_others_out().await;
    let word = JobStatus::from(end.status).as_str();
    log.append(vec![EventBody::Finished { end }]).await?;
    metrics::counter!("bellglass_jobs_finished_total", "status" => word).increment(1);
    Ok(())
}

/// What came of packing.
enum Packed {
    Result(ResultSummary),
    /// Not all of it, for this reason.
    Part(ResultSummary, String),
    Failed(String),
    /// The job was cancelled meanwhile; nothing was stored.
    Cancelled,
    /// The job goes on elsewhere, and is packed there.
    LeftTo(StopReason),
}

async fn pack(
    shared: &Shared,
    log: &JobLog,
    spec: &JobSpec,
    sandbox: &Sandbox,
    stop: &StopSwitch,
    known: Option<StopReason>,
) -> Packed {
    let packing = async {
        let mut additions = records(shared, log.job).await;
        additions.extend(traces(sandbox.guest()).await);
        let (limit, holder) = (spec.limits.disk.0, (log.job, log.generation));
        match pack_workspace(sandbox, &shared.artifacts, holder, limit, additions).await {
            Ok(result) => Packed::Result(result),
            Err(error) if error.is_loss() => pack_kept_files(shared, log, spec, &error).await,
            Err(error) => Packed::Failed(error.to_string()),
        }
    };
    let time = if known.is_some() { HURRIED_PACKING_TIME } else { PACKING_TIME };
    tokio::select! {
        packed = packing => packed,
        () = tokio::time::sleep(time) => Packed::Failed("packing took too long".into()),
        reason = stop.packing_stopped(known) => match reason {
            reason if reason.ends_the_job() => Packed::Cancelled,
            reason => Packed::LeftTo(reason),
        },
    }
}

/// Packs what the checkpoints have of a workspace that is lost.
async fn pack_kept_files(
    shared: &Shared,
    log: &JobLog,
    spec: &JobSpec,
    loss: &PackError,
) -> Packed {
    tracing::warn!(job = %log.job, %loss, "the sandbox was lost while it was packed");
    let (newest, unkept) = log.look(|view| (view.kept.newest(), view.kept.unkept_since()));
    let additions = records(shared, log.job).await;
    let (limit, holder) = (spec.limits.disk.0, (log.job, log.generation));
    match pack_kept(newest, &shared.artifacts, holder, limit, additions).await {
        Ok(result) => match unkept {
            None => Packed::Result(result),
            Some(step) => Packed::Part(
                result,
                format!(
                    "{loss}; the result has the files as they were before step {step}, from which on \
                     they were not kept"
                ),
            ),
        },
        Err(error) => Packed::Failed(format!("{loss}; {error}")),
    }
}

/// What is packed of the job itself, wherever its files come from.
async fn records(shared: &Shared, job: JobId) -> Vec<Addition> {
    let mut records = vec![
        Addition {
            name: "agent.log".into(),
            content: whole_log(shared.store.clone(), job).boxed(),
        },
        Addition { name: "memory.json".into(), content: memory(shared.store.clone(), job).boxed() },
    ];
    records.extend(contexts(shared, job).await);
    records
}

/// The most conversations that go into the ZIP: the last one, and the newest of those before.
const MOST_CONTEXTS: usize = 100;

/// The conversation with the model, if there was one, as it is and as it was each time before it was
/// made smaller.
async fn contexts(shared: &Shared, job: JobId) -> Vec<Addition> {
    let keys = shared.artifacts.contexts(job).await.unwrap_or_else(|error| {
        tracing::warn!(%job, %error, "the conversations cannot be listed");
        Vec::new()
    });
    let newest = keys.into_iter().rev().take(MOST_CONTEXTS);
    newest
        .map(|key| {
            let file = key.as_str().rsplit('/').next().unwrap_or_default();
            let name = format!("context/{file}").into();
            let artifacts = shared.artifacts.clone();
            // Each is read when its turn comes. One that cannot be read is empty.
            let content = futures::stream::once(async move {
                let content = artifacts.read(&key, MOST_CONTEXT_BYTES).await;
                Ok(content.unwrap_or_else(|error| {
                    tracing::warn!(%error, "a conversation cannot be read");
                    Bytes::new()
                }))
            });
            Addition { name, content: content.boxed() }
        })
        .collect()
}

/// Many times what a model reads.
const MOST_CONTEXT_BYTES: u64 = 256 << 20;

/// The events so far, as they go into the ZIP: page by page, since there can be many.
fn whole_log(
    store: Arc<dyn Store>,
    job: JobId,
) -> impl Stream<Item = Result<Bytes, StoreError>> + Send {
    const PAGE: u32 = 1000;
    futures::stream::try_unfold(0, move |after| {
        let store = store.clone();
        async move {
            let page = once_answered(|| store.events_after(job, after, PAGE)).await?;
            let Some(last) = page.last() else { return Ok(None) };
            let after = last.event.seq;
            let mut text = Vec::new();
            for sealed in &page {
                text.extend_from_slice(sealed.line.as_bytes());
                text.push(b'\n');
            }
            Ok(Some((Bytes::from(text), after)))
        }
    })
}

/// Asks a database that is away again. For how long is decided by whoever packs.
async fn once_answered<T, F>(ask: impl Fn() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    loop {
        match ask().await {
            Err(StoreError::Unavailable) => tokio::time::sleep(ASK_AGAIN).await,
            answer => return answer,
        }
    }
}

/// `memory.json`. Read only when its turn comes, so that no longer than that it is in memory.
fn memory(
    store: Arc<dyn Store>,
    job: JobId,
) -> impl Stream<Item = Result<Bytes, StoreError>> + Send {
    futures::stream::once(async move {
        let view = once_answered(|| store.job(job)).await?;
        Ok(serde_json::to_vec_pretty(&memory_document(&view)).unwrap_or_default().into())
    })
}

/// What was run in kernels, as notebooks, and what the screen showed last. Asked for before the workspace
/// is packed, which ends all that runs inside.
async fn traces(guest: &GuestClient) -> Vec<Addition> {
    // A guest that has none says so, and one that cannot say has nothing that could be kept.
    let traces = [
        ("python.ipynb", guest.read_notebook(Language::Python).await, MAX_NOTEBOOK),
        ("typescript.ipynb", guest.read_notebook(Language::TypeScript).await, MAX_NOTEBOOK),
        ("desktop.png", guest.read_screen().await, MAX_SCREEN),
    ];
    let found = traces.into_iter().filter_map(|(name, read, most)| {
        let (bytes, content) = read.ok()?;
        (bytes <= most).then(|| Addition { name: name.into(), content: bounded(content, most) })
    });
    found.collect()
}

/// A content up to a bound, whatever its length was said to be.
fn bounded(content: FileStream, most: u64) -> BoxStream<'static, Result<Bytes, StoreError>> {
    let mut left = most;
    content
        .scan((), move |(), piece| {
            let piece = piece.ok().filter(|piece| left >= piece.len() as u64);
            left -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
            std::future::ready(piece.map(Ok))
        })
        .boxed()
}

/// Removes the spools of a job whose output is recorded, or void.
pub(crate) async fn remove_spools(shared: &Shared, job: JobId) {
    let folder = spool::job_folder(&shared.spools, job);
    match tokio::fs::remove_dir_all(&folder).await {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%job, %error, "could not remove the job's spools");
        }
        _ => {}
    }
}
