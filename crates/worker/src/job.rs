//! The life of one claimed job: sandbox, steps, ZIP, end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bellglass_agent::{DoneStep, Mind, Playbook, drive};
use bellglass_protocol::event::{EndStatus, EventBody, JobEnd, JobError};
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::{JobSpec, Work};
use bellglass_protocol::memory::memory_document;
use bellglass_protocol::quantity::Seconds;
use bellglass_protocol::step::{StepStatus, decode_base64};
use bellglass_protocol::tool::Encoding;
use bellglass_protocol::view::JobView;
use bellglass_sandbox::{Sandbox, SandboxName, SandboxOrder};
use bellglass_store::{ClaimedJob, Store, StoreError};
use bytes::Bytes;
use jiff::Timestamp;

use crate::hands::{HandsError, JobLog, SandboxHands, describe};
use crate::pack::{Addition, pack_workspace};
use crate::queue::Shared;
use crate::spool;
use crate::stop::{StopReason, StopSwitch};

/// How long packing may take after the job itself is over.
const PACKING_TIME: Duration = Duration::from_secs(600);

/// How the work of a job came to its end, before it is packed and recorded.
enum Ending {
    /// The mind is done, well or badly.
    Concluded(Result<(), JobError>),
    Stopped(StopReason),
    Broken(JobError),
}

/// Drives a claimed job to its end. An error means that the log cannot be written by us: the job is
/// left as it stands, and whoever claims it next goes on.
pub(crate) async fn run_job(
    shared: Arc<Shared>,
    claimed: ClaimedJob,
    stop: StopSwitch,
) -> Result<(), StoreError> {
    let ClaimedJob { generation, view } = claimed;
    let job = view.job_id;
    let log = JobLog { store: shared.store.clone(), job, generation };
    let opened = open_sandbox(&shared, &log, &view).await?;
    let (ending, sandbox) = match opened {
        Ok((sandbox, done)) => {
            let ending = work(&shared, &log, &view.spec, &sandbox, done, &stop).await?;
            (ending, Some(sandbox))
        }
        Err(error) => (Ending::Broken(error), None),
    };
    if let Ending::Stopped(reason) = &ending
        && !reason.ends_the_job()
    {
        tracing::info!(%job, ?reason, "leaving the job to its next worker");
        return Ok(());
    }
    conclude(&shared, &log, &view.spec, ending, sandbox).await
}

/// Finds the sandbox that an earlier worker left, or starts one. The inner error ends the job.
async fn open_sandbox(
    shared: &Shared,
    log: &JobLog,
    view: &JobView,
) -> Result<Result<(Sandbox, Vec<DoneStep>), JobError>, StoreError> {
    let name = SandboxName::of_job(log.job);
    let spec = &view.spec;
    if view.sandbox.is_some() {
        match Sandbox::find(&*shared.backend, &name, &spec.image).await {
            Ok(Some(sandbox)) => {
                tracing::info!(job = %log.job, "found the job's sandbox still running");
                return Ok(Ok((sandbox, done_steps(view))));
            }
            found => {
                let reason = match found {
                    Err(error) => error.to_string(),
                    _ => "it did not outlive the process that drove it".into(),
                };
                log.append(vec![EventBody::SandboxLost { reason }]).await?;
            }
        }
    }
    remove_traces(shared, log.job).await;
    let Some(rootfs) = shared.images.rootfs(&spec.image).await else {
        return Ok(Err(JobError {
            code: "image_not_found".into(),
            message: format!(
                "there is no image named `{}`; build it with `bellglass image build`",
                spec.image
            ),
        }));
    };
    let order = SandboxOrder { name, rootfs, limits: spec.limits };
    let started = Instant::now();
    match Sandbox::start(&*shared.backend, &order, &spec.image).await {
        Ok(sandbox) => {
            metrics::histogram!("bellglass_sandbox_start_seconds").record(started.elapsed());
            let report = Box::new(sandbox.report().clone());
            if let Err(error) = log.append(vec![EventBody::SandboxReady { report }]).await {
                let _ = sandbox.destroy().await;
                return Err(error);
            }
            Ok(Ok((sandbox, Vec::new())))
        }
        Err(error) => {
            let error = describe(&error);
            let message = format!("{error}; `bellglass doctor` says what this host can give");
            Ok(Err(JobError { code: "sandbox_failed".into(), message }))
        }
    }
}

fn done_steps(view: &JobView) -> Vec<DoneStep> {
    let done = view.steps.iter().filter(|step| step.status != StepStatus::Running);
    done.map(|step| DoneStep { n: step.n, status: step.status }).collect()
}

/// Everything between the sandbox's start and the packing of its workspace.
async fn work(
    shared: &Shared,
    log: &JobLog,
    spec: &JobSpec,
    sandbox: &Sandbox,
    done: Vec<DoneStep>,
    stop: &StopSwitch,
) -> Result<Ending, StoreError> {
    let _presence = shared.live.enter(log.job, sandbox.guest().clone());
    let view = shared.store.job(log.job).await?;
    let _clock = start_clock(&view, stop.clone());
    // A request that came between the claim and now was heard by nobody.
    if view.cancel_requested {
        stop.stop(StopReason::Cancelled);
    }
    let already_started =
        view.steps.iter().find(|step| step.status == StepStatus::Running).map(|step| step.n);
    if done.is_empty()
        && already_started.is_none()
        && let Err(error) = place_files(spec, sandbox).await
    {
        return Ok(Ending::Broken(error));
    }
    let mut mind: Box<dyn Mind> = match &spec.work {
        Work::Steps(steps) => Box::new(Playbook::new(steps.clone(), spec.on_error)),
        Work::Task(_) => {
            return Ok(Ending::Broken(JobError {
                code: "no_model_configured".into(),
                message: "no model is configured, so a task cannot be worked on".into(),
            }));
        }
    };
    let mut hands = SandboxHands {
        log: log.clone(),
        sandbox,
        artifacts: &shared.artifacts,
        limits: spec.limits,
        stop: stop.clone(),
        spools: shared.spools.clone(),
        already_started,
    };
    match drive(&mut *mind, &mut hands, done).await {
        // A stop that came while the last step ran counts too.
        Ok(conclusion) => Ok(match stop.reason() {
            Some(reason) if reason.ends_the_job() => Ending::Stopped(reason),
            _ => Ending::Concluded(conclusion),
        }),
        Err(HandsError::Stopped(reason)) => Ok(Ending::Stopped(reason)),
        Err(HandsError::Store(error)) => Err(error),
        Err(HandsError::SandboxLost(reason)) => Ok(Ending::Broken(JobError {
            code: "sandbox_lost".into(),
            message: format!("the sandbox was lost: {reason}"),
        })),
        Err(HandsError::Disk(reason)) => Ok(Ending::Broken(JobError {
            code: "output_not_kept".into(),
            message: format!("the server could not keep a step's output: {reason}"),
        })),
    }
}

/// Stops the job when its time is up. Dropping the guard stops the clock.
fn start_clock(view: &JobView, stop: StopSwitch) -> tokio_util::task::AbortOnDropHandle<()> {
    let began = view.steps.first().map(|step| step.started_at);
    let left = time_left(view.spec.limits.time, began, Timestamp::now());
    tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
        tokio::time::sleep(left).await;
        stop.stop(StopReason::TimeLimit);
    }))
}

/// What is left of a job's time. It runs from the first step in this sandbox, whoever drove it: a
/// restart of the server gives no more of it, and a job that had to begin again has all of it.
fn time_left(limit: Seconds, began: Option<Timestamp>, now: Timestamp) -> Duration {
    let used = began.map(|began| Duration::try_from(now.duration_since(began)));
    // A clock that was set back counts as no time at all.
    let used = used.and_then(Result::ok).unwrap_or_default();
    limit.duration().saturating_sub(used)
}

async fn place_files(spec: &JobSpec, sandbox: &Sandbox) -> Result<(), JobError> {
    for file in &spec.files {
        let content = match file.encoding {
            Encoding::Text => Ok(file.content.clone().into_bytes()),
            Encoding::Base64 => decode_base64(&file.content).map_err(|error| error.to_string()),
        };
        let placed = match content {
            Ok(content) => {
                let content = futures::stream::iter([Ok(Bytes::from(content))]);
                let guest = sandbox.guest();
                let placed = guest.write_file(&file.path, file.executable, content).await;
                placed.map_err(|error| error.to_string())
            }
            Err(error) => Err(error),
        };
        placed.map_err(|error| JobError {
            code: "file_not_placed".into(),
            message: format!(
                "the file `{}` could not be put into the workspace: {error}",
                file.path
            ),
        })?;
    }
    Ok(())
}

/// Packs what there is, ends the sandbox, and only then says that the job is over.
async fn conclude(
    shared: &Shared,
    log: &JobLog,
    spec: &JobSpec,
    ending: Ending,
    sandbox: Option<Sandbox>,
) -> Result<(), StoreError> {
    let mut error = None;
    let mut status = match ending {
        Ending::Concluded(Ok(())) => EndStatus::Completed,
        Ending::Stopped(StopReason::TimeLimit) => {
            error = Some(JobError {
                code: "time_limit".into(),
                message: format!("the job reached its time limit of {}", spec.limits.time),
            });
            EndStatus::Failed
        }
        Ending::Stopped(_) => EndStatus::Cancelled,
        Ending::Concluded(Err(reason)) | Ending::Broken(reason) => {
            error = Some(reason);
            EndStatus::Failed
        }
    };
    let mut events = Vec::new();
    if let Some(sandbox) = sandbox {
        match pack(shared, log, spec, &sandbox).await? {
            Ok(result) => events.push(EventBody::ResultStored { result }),
            Err(message) if status == EndStatus::Completed => {
                status = EndStatus::Failed;
                error = Some(JobError { code: "result_not_stored".into(), message });
            }
            Err(message) => tracing::warn!(job = %log.job, message, "no result was stored"),
        }
        if let Err(error) = sandbox.destroy().await {
            tracing::error!(job = %log.job, %error, "could not remove the sandbox");
        }
    }
    remove_traces(shared, log.job).await;
    let failed_steps = shared.store.job(log.job).await?.failed_steps;
    events.push(EventBody::Finished { end: JobEnd { status, failed_steps, error } });
    log.append(events).await?;
    let word = bellglass_protocol::view::JobStatus::from(status).as_str();
    metrics::counter!("bellglass_jobs_finished_total", "status" => word).increment(1);
    Ok(())
}

async fn pack(
    shared: &Shared,
    log: &JobLog,
    spec: &JobSpec,
    sandbox: &Sandbox,
) -> Result<Result<bellglass_protocol::event::ResultSummary, String>, StoreError> {
    let view = shared.store.job(log.job).await?;
    let memory = serde_json::to_vec_pretty(&memory_document(&view)).unwrap_or_default();
    let additions = vec![
        Addition { name: "agent.log", content: whole_log(&*shared.store, log.job).await? },
        Addition { name: "memory.json", content: memory },
    ];
    let limit = spec.limits.disk.0;
    let packing = pack_workspace(sandbox.guest(), &shared.artifacts, log.job, limit, additions);
    let packed = tokio::time::timeout(PACKING_TIME, async {
        tokio::select! {
            packed = packing => packed.map_err(|error| error.to_string()),
            () = sandbox.gone() => Err("the sandbox was gone".into()),
        }
    });
    Ok(packed.await.unwrap_or_else(|_| Err("packing took too long".into())))
}

/// The events so far, as they go into the ZIP.
async fn whole_log(store: &dyn Store, job: JobId) -> Result<Vec<u8>, StoreError> {
    const PAGE: u32 = 1000;
    let mut text = Vec::new();
    let mut after = 0;
    loop {
        let page = store.events_after(job, after, PAGE).await?;
        for sealed in &page {
            text.extend_from_slice(sealed.line.as_bytes());
            text.push(b'\n');
            after = sealed.event.seq;
        }
        if page.len() < PAGE as usize {
            return Ok(text);
        }
    }
}

/// Removes the spools of a job whose output is recorded, or void.
async fn remove_traces(shared: &Shared, job: JobId) {
    let folder = spool::job_folder(&shared.spools, job);
    match tokio::fs::remove_dir_all(&folder).await {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%job, %error, "could not remove the job's spools");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_gives_no_new_time() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (began, now, left) in [
            (None, 500, 60),
            (Some(100), 100, 60),
            (Some(100), 130, 30),
            (Some(100), 900, 0),
            (Some(100), 90, 60),
        ] {
            let time = time_left(Seconds::whole(60), began.map(at), at(now));
            assert_eq!(time, Duration::from_secs(left), "{began:?} {now}");
        }
    }
}
