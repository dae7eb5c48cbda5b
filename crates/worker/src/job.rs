//! The life of one claimed job: sandbox, steps, and the way to its end.

use std::sync::Arc;
use std::time::Instant;

use bellglass_agent::model::catalogue::Line;
use bellglass_agent::{Mind, Playbook, TaskMind, drive};
use bellglass_protocol::event::{EventBody, JobError};
use bellglass_protocol::job::{JobSpec, Work};
use bellglass_protocol::step::{StepStatus, decode_base64};
use bellglass_protocol::tool::Encoding;
use bellglass_sandbox::egress::Egress;
use bellglass_sandbox::{Sandbox, SandboxName, SandboxOrder};
use bellglass_store::{ClaimedJob, StoreError};
use bytes::Bytes;

use crate::clock::Clock;
use crate::ending::{Ending, conclude, finish, remove_spools};
use crate::hands::{HandsError, SandboxHands, describe};
use crate::job_log::JobLog;
use crate::queue::Shared;
use crate::stop::{StopReason, StopSwitch};
use crate::way_out::WayOut;
use crate::world::JobWorld;

/// Drives a claimed job to its end. An error means that the log cannot be written by us: the job is
/// left as it stands, and whoever claims it next goes on.
pub(crate) async fn run_job(
    shared: Arc<Shared>,
    claimed: ClaimedJob,
    stop: StopSwitch,
) -> Result<(), StoreError> {
    let log = JobLog::new(shared.store.clone(), claimed);
    let view = log.view();
    if view.cancel_requested {
        stop.stop(StopReason::Cancelled);
    }
    if let Some(end) = view.conclusion {
        // Whoever held the job before came as far as this, and the result is safe.
        let sandbox = find_sandbox(&shared, &view.spec, &log, None).await.ok().flatten();
        return finish(&shared, &log, end, sandbox, WayOut::none()).await;
    }
    let way_out = WayOut::open(&*shared.network, &log, &view.spec.network).await;
    let (ending, sandbox) = match open_sandbox(&shared, &log, &stop, way_out.egress()).await? {
        Opened::Sandbox(sandbox) => {
            let ending = work(&shared, &log, &view.spec, &sandbox, &stop).await?;
            (ending, Some(*sandbox))
        }
        Opened::Nothing(ending) => (ending, None),
    };
    if let Ending::Stopped(reason) = &ending
        && !reason.ends_the_job()
    {
        tracing::info!(job = %log.job, ?reason, "leaving the job to its next worker");
        return Ok(());
    }
    conclude(&shared, &log, &view.spec, ending, sandbox, way_out, &stop).await
}

/// What came of the wish for a sandbox.
enum Opened {
    Sandbox(Box<Sandbox>),
    /// There is none, and the job ends.
    Nothing(Ending),
}

/// Finds the sandbox that an earlier worker left, or starts one.
async fn open_sandbox(
    shared: &Shared,
    log: &JobLog,
    stop: &StopSwitch,
    egress: Option<Arc<Egress>>,
) -> Result<Opened, StoreError> {
    let view = log.view();
    let spec = &view.spec;
    if view.sandbox.is_some() {
        let reason = match find_sandbox(shared, spec, log, egress.clone()).await {
            Ok(Some(sandbox)) => {
                tracing::info!(job = %log.job, "found the job's sandbox still running");
                return Ok(Opened::Sandbox(Box::new(sandbox)));
            }
            Ok(None) => "it did not outlive the process that drove it".into(),
            Err(error) => error,
        };
        if let Some(reason) = stop.reason() {
            // What was done in it is gone, but its record stays, and nothing is done again.
            return Ok(Opened::Nothing(Ending::Stopped(reason)));
        }
        log.append(vec![EventBody::SandboxLost { reason }]).await?;
    }
    if let Some(reason) = stop.reason() {
        return Ok(Opened::Nothing(Ending::Stopped(reason)));
    }
    remove_spools(shared, log.job).await;
    let Some(rootfs) = shared.images.rootfs(&spec.image).await else {
        return Ok(Opened::Nothing(Ending::Broken(JobError {
            code: "image_not_found".into(),
            message: format!(
                "there is no image named `{}`; build it with `bellglass image build`",
                spec.image
            ),
        })));
    };
    let name = SandboxName::of_job(log.job);
    let order = SandboxOrder {
        name,
        rootfs,
        limits: spec.limits,
        egress: egress.is_some(),
        orphaned_after: shared.orphaned_after,
    };
    let started = Instant::now();
    match Sandbox::start(&*shared.backend, &order, &spec.image, egress).await {
        Ok(sandbox) => {
            metrics::histogram!("bellglass_sandbox_start_seconds").record(started.elapsed());
            let report = Box::new(sandbox.report().clone());
            if let Err(error) = log.append(vec![EventBody::SandboxReady { report }]).await {
                let _ = sandbox.destroy().await;
                return Err(error);
            }
            Ok(Opened::Sandbox(Box::new(sandbox)))
        }
        Err(error) => {
            let error = describe(&error);
            let message = format!("{error}; `bellglass doctor` says what this host can give");
            let error = JobError { code: "sandbox_failed".into(), message };
            Ok(Opened::Nothing(Ending::Broken(error)))
        }
    }
}

async fn find_sandbox(
    shared: &Shared,
    spec: &JobSpec,
    log: &JobLog,
    egress: Option<Arc<Egress>>,
) -> Result<Option<Sandbox>, String> {
    let name = SandboxName::of_job(log.job);
    let found = Sandbox::find(&*shared.backend, &name, &spec.image, egress).await;
    found.map_err(|error| describe(&error))
}

/// Everything between the sandbox's start and the packing of its workspace.
async fn work(
    shared: &Shared,
    log: &JobLog,
    spec: &JobSpec,
    sandbox: &Sandbox,
    stop: &StopSwitch,
) -> Result<Ending, StoreError> {
    let _presence = shared.live.enter(log.job, sandbox.guest().clone());
    // A wish to cancel that came between the claim and now was heard by nobody.
    if shared.store.job(log.job).await?.cancel_requested {
        stop.stop(StopReason::Cancelled);
    }
    let view = log.view();
    let clock = Clock::start(&view, stop.clone());
    let is_running = |status: StepStatus| status == StepStatus::Running;
    let running = view.steps.iter().find(|step| is_running(step.status));
    let already_started = running.map(|step| step.n);
    if view.steps.is_empty() {
        tokio::select! {
            placed = place_files(spec, sandbox) => {
                if let Err(error) = placed {
                    return Ok(Ending::Broken(error));
                }
            }
            reason = stop.stopped() => return Ok(Ending::Stopped(reason)),
        }
    }
    let (mut mind, models): (Box<dyn Mind>, Line) = match &spec.work {
        Work::Steps(steps) => (Box::new(Playbook::new(steps.clone(), spec.on_error)), Line::new()),
        Work::Task(_) => {
            let opened = tokio::select! {
                opened = open_models(shared, spec) => opened,
                reason = stop.stopped() => return Ok(Ending::Stopped(reason)),
            };
            match opened {
                Ok((context_tokens, models)) => {
                    (Box::new(TaskMind::new(context_tokens, spec.budget)), models)
                }
                Err(error) => return Ok(Ending::Broken(error)),
            }
        }
    };
    let hands = SandboxHands {
        log: log.clone(),
        sandbox,
        artifacts: &shared.artifacts,
        limits: spec.limits,
        stop: stop.clone(),
        spools: shared.spools.clone(),
        already_started,
    };
    let mut world = JobWorld { hands, changes: shared.store.changes(), clock };
    let mut driven = drive(&mut *mind, &models, &mut world).await;
    if let (Some(context), Ok(_) | Err(HandsError::Stopped(_))) = (mind.snapshot(), &driven)
        && let Err(error) = world.keep_last_context(context).await
    {
        driven = Err(error);
    }
    Ok(match (driven, stop.reason()) {
        (Err(HandsError::Store(error)), _) => return Err(error),
        (Err(HandsError::Stopped(reason)), _) => Ending::Stopped(reason),
        // However the last step went: that the job was to stop is what ended it.
        (_, Some(reason)) if reason.ends_the_job() => Ending::Stopped(reason),
        (Ok(conclusion), _) => Ending::Concluded(conclusion),
        (Err(error @ HandsError::SandboxLost(_)), _) => {
            Ending::Broken(JobError { code: "sandbox_lost".into(), message: error.to_string() })
        }
        (Err(error @ HandsError::Disk(_)), _) => {
            Ending::Broken(JobError { code: "output_not_kept".into(), message: error.to_string() })
        }
    })
}

/// The models of a task, and how much all of them can read.
async fn open_models(shared: &Shared, spec: &JobSpec) -> Result<(u64, Line), JobError> {
    let name = spec.model.as_deref().unwrap_or_default();
    let models = shared.models.line(name).await.map_err(|error| JobError {
        code: error.code().into(),
        message: format!("the model {name} cannot be used: {error}"),
    })?;
    let context_tokens = models.iter().map(|model| model.context_tokens()).min();
    Ok((context_tokens.unwrap_or_default(), models))
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
