//! The end of a job: the workspace packed, the decision written down, the sandbox gone, `finished`.

use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::event::{EndStatus, EventBody, JobEnd, JobError, ResultSummary};
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::JobSpec;
use bellglass_protocol::memory::memory_document;
use bellglass_protocol::view::JobStatus;
use bellglass_protocol::wire::{Language, MAX_NOTEBOOK, MAX_SCREEN};
use bellglass_sandbox::client::{ClientError, FileStream, GuestClient};
use bellglass_sandbox::{Sandbox, SandboxName};
use bellglass_store::{Store, StoreError};
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};

use crate::job::leave;
use crate::job_log::JobLog;
use crate::pack::{Addition, PackError, pack_workspace};
use crate::queue::Shared;
use crate::spool;
use crate::stop::{StopReason, StopSwitch};
use crate::way_out::WayOut;

/// How long packing may take after the job itself is over.
const PACKING_TIME: Duration = Duration::from_secs(600);

/// The same for a job that somebody wants to be over.
const HURRIED_PACKING_TIME: Duration = Duration::from_secs(60);

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
    /// Whether nothing kept the mind from its own end.
    pub(crate) fn is_the_minds(&self) -> bool {
        matches!(self, Self::Concluded(_))
    }

    /// Why the job was stopped, if it was.
    fn reason(&self) -> Option<StopReason> {
        match self {
            Self::Stopped(reason) => Some(*reason),
            Self::Concluded(_) | Self::Broken(_) => None,
        }
    }

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

/// Writes down how the job ends and what was packed of it, and ends the sandbox.
///
/// The decision is written before the sandbox goes: a crash in between must not make the next
/// worker take the missing sandbox for a lost one and do everything again.
pub(crate) async fn conclude(
    shared: &Shared,
    log: &JobLog,
    spec: &JobSpec,
    (ending, packed): (Ending, Packed),
    sandbox: Option<Sandbox>,
    way_out: &WayOut,
    stop: &StopSwitch,
) -> Result<(), StoreError> {
    let (mut status, mut error) = ending.status(spec);
    let mut events = Vec::new();
    match packed {
        Packed::Nothing => {}
        Packed::Result(result) => events.push(EventBody::ResultStored { result }),
        Packed::LeftTo(reason) => return leave(log, reason).await,
        Packed::Cancelled => (status, error) = (EndStatus::Cancelled, None),
        Packed::Failed(message) | Packed::Lost(message) if status == EndStatus::Completed => {
            status = EndStatus::Failed;
            error = Some(JobError { code: "result_not_stored".into(), message });
        }
        Packed::Failed(message) | Packed::Lost(message) => {
            tracing::warn!(job = %log.job, message, "no result was stored");
        }
    }
    let failed_steps = log.look(|view| view.failed_steps.clone());
    let end = JobEnd { status, failed_steps, error };
    events.push(EventBody::Concluded { end: end.clone() });
    log.append(events).await?;
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
            reason = stop.told_to_let_go() => return leave(log, reason).await,
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
pub(crate) enum Packed {
    /// There was no sandbox to take anything from.
    Nothing,
    Result(ResultSummary),
    Failed(String),
    /// The sandbox went meanwhile, or is of no use any more, and with it what was to be packed.
    Lost(String),
    /// The job was cancelled meanwhile; nothing was stored.
    Cancelled,
    /// The job goes on elsewhere, and is packed there.
    LeftTo(StopReason),
}

/// Packs the workspace of a job whose work came to this end. An error means that the database is away: the
/// workspace is as it was, and whoever goes on with the job packs it.
pub(crate) async fn pack(
    shared: &Shared,
    log: &JobLog,
    spec: &JobSpec,
    ending: &Ending,
    sandbox: &Sandbox,
    stop: &StopSwitch,
) -> Result<Packed, StoreError> {
    // Any other reason to stop is news, even if it came before packing began.
    let known = ending.reason();
    let whole_log = whole_log(shared.store.clone(), log.job).boxed();
    let memory = memory(shared.store.clone(), log.job).boxed();
    let mut additions = vec![
        Addition { name: "agent.log".into(), content: whole_log },
        Addition { name: "memory.json".into(), content: memory },
    ];
    additions.extend(traces(sandbox.guest()).await);
    additions.extend(contexts(shared, log.job).await);
    let limit = spec.limits.disk.0;
    let holder = (log.job, log.generation);
    let packing = pack_workspace(sandbox.guest(), &shared.artifacts, holder, limit, additions);
    let time = if known.is_some() { HURRIED_PACKING_TIME } else { PACKING_TIME };
    Ok(tokio::select! {
        packed = packing => match packed {
            Ok(result) => Packed::Result(result),
            Err(PackError::Log(error @ StoreError::Unavailable)) => return Err(error),
            // One that refuses is as it was; one that breaks off or talks nonsense is of no use any more.
            Err(error @ PackError::Guest(ClientError::Refused(_))) => Packed::Failed(error.to_string()),
            Err(error @ PackError::Guest(_)) => Packed::Lost(error.to_string()),
            Err(error) => Packed::Failed(error.to_string()),
        },
        () = sandbox.gone() => Packed::Lost("the sandbox was gone".into()),
        () = tokio::time::sleep(time) => Packed::Failed("packing took too long".into()),
        reason = stop.packing_stopped(known) => match reason {
            reason if reason.ends_the_job() => Packed::Cancelled,
            reason => Packed::LeftTo(reason),
        },
    })
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
            let page = store.events_after(job, after, PAGE).await?;
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

/// `memory.json`. Read only when its turn comes, so that no longer than that it is in memory.
fn memory(
    store: Arc<dyn Store>,
    job: JobId,
) -> impl Stream<Item = Result<Bytes, StoreError>> + Send {
    futures::stream::once(async move {
        let view = store.job(job).await?;
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
