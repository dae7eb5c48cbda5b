//! The life of one claimed job: sandbox, steps, and the way to its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bellglass_agent::mcp::Connected;
use bellglass_agent::model::catalogue::Line;
use bellglass_agent::{Attendant, Mind, Playbook, TaskMind, drive};
use bellglass_protocol::event::{EventBody, JobError};
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::{JobSpec, Work, image_build_command};
use bellglass_protocol::report::Start;
use bellglass_protocol::step::StepStatus;
use bellglass_protocol::tool::ToolCall;
use bellglass_protocol::view::JobView;
use bellglass_protocol::wire::Language;
use bellglass_sandbox::client::GuestClient;
use bellglass_sandbox::{Sandbox, SandboxName, SandboxOrder};
use bellglass_store::{ClaimedJob, StoreError};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use crate::capture::Capture;
use crate::checkpoints::Checkpoints;
use crate::clock::Clock;
use crate::control::DesktopControl;
use crate::ending::{Ending, conclude, finish, remove_spools};
use crate::hands::{HandsError, SandboxHands, describe, gone, kept_by};
use crate::job_log::JobLog;
use crate::mcp;
use crate::outcome;
use crate::past::Past;
use crate::queue::Shared;
use crate::resume::{self, prepare_workspace, record_loss};
use crate::stop::{StopReason, StopSwitch};
use crate::way_out::WayOut;
use crate::world::JobWorld;

/// Drives a claimed job to its end. An error means that the log cannot be written by us: the job is
/// left as it stands, and whoever claims it next goes on.
pub(crate) async fn run_job(
    shared: Arc<Shared>,
    claimed: ClaimedJob,
    stop: StopSwitch,
    network_changed: Arc<Notify>,
) -> Result<(), StoreError> {
    let log = JobLog::new(shared.store.clone(), claimed).heeding(stop.clone());
    let spec = log.look(|view| view.spec.clone());
    let way_out = WayOut::new(shared.clone(), log.clone());
    let (is_misread, is_cancelled) = log.look(|view| (view.misread, view.cancel_requested));
    if is_misread && !is_cancelled {
        return leave(&log, &way_out, StopReason::Misread).await;
    }
    if is_cancelled {
        stop.stop(StopReason::Cancelled);
    }
    if let Some(end) = log.look(|view| view.conclusion.clone()) {
        // Whoever held the job before came as far as this, and the result is safe.
        let sandbox = find_sandbox(&shared, &spec, &log).await.ok().flatten();
        return finish(&shared, &log, end, sandbox, &way_out, &stop).await;
    }
    if is_misread {
        // Whoever can read it may never come. What its workspace is, is not known here, so it is not packed.
        let ending = Ending::Stopped(StopReason::Cancelled);
        return conclude(&shared, &log, &spec, ending, None, &way_out, &stop).await;
    }
    if let Some(error) = log.look(gives_up) {
        // Whatever is wrong with it, it is not tried again: neither its steps nor its packing.
        close_open_step(&log, &error).await?;
        let ending = stop.reason().map_or(Ending::Broken(error), Ending::Stopped);
        return conclude(&shared, &log, &spec, ending, None, &way_out, &stop).await;
    }
    let (ending, sandbox, _attending) = loop {
        let sandbox = match open_sandbox(&shared, &log, &spec, &stop).await? {
            Opened::Sandbox(sandbox) => sandbox,
            Opened::Nothing(ending) => break (ending, None, None),
        };
        let attending = AbortOnDropHandle::new(tokio::spawn(attend(sandbox.guest().clone())));
        let ways = (&way_out, network_changed.clone());
        let reason = match work_through(&shared, &log, &spec, &sandbox, ways, &stop).await? {
            Worked::Ended(ending) => break (ending, Some(*sandbox), Some(attending)),
            Worked::Lost(reason) => reason,
        };
        if log.look(|view| view.losses_without_progress) >= MOST_LOSSES_WITHOUT_PROGRESS {
            break (lost(&reason), Some(*sandbox), Some(attending));
        }
        tracing::warn!(job = %log.job, reason, "the sandbox was lost; the job goes on in another");
        // All of it first, so that no job ever has two.
        if let Err(error) = sandbox.destroy().await {
            tracing::error!(job = %log.job, %error, "could not remove a lost sandbox");
            break (lost(&reason), None, None);
        }
        way_out.close().await;
        record_loss(&shared, &log, &spec, reason).await?;
    };
    if let Ending::Stopped(reason) = &ending
        && !reason.ends_the_job()
    {
        return leave(&log, &way_out, *reason).await;
    }
    conclude(&shared, &log, &spec, ending, sandbox, &way_out, &stop).await
}

/// More often than a guest waits for a sign of life, by far.
const ATTEND_EVERY: Duration = Duration::from_secs(5);

/// Lets a guest know, for as long as its sandbox is in our hands, that this process is awake. One that
/// stands still can neither drive its sandbox nor end it, so the sandbox ends by itself.
async fn attend(guest: GuestClient) {
    loop {
        tokio::time::sleep(ATTEND_EVERY).await;
        // A guest that does not answer is found out by whoever works with it.
        let _ = guest.attend().await;
    }
}

/// Leaves the job to its next worker. One that was told to end says so in the log: only a worker that
/// vanished makes the next one wonder whether the job was the reason.
pub(crate) async fn leave(
    log: &JobLog,
    way_out: &WayOut,
    reason: StopReason,
) -> Result<(), StoreError> {
    tracing::info!(job = %log.job, ?reason, "leaving the job to its next worker");
    // Before we let go of it, while what its connections were can still be written down; if another holds the job
    // already it cannot, and they end all the same.
    way_out.close().await;
    match reason {
        StopReason::ShuttingDown => log.release().await,
        StopReason::Misread => {
            tracing::warn!(job = %log.job, "the job's log can only be read by a newer program");
            log.leave_to_newer().await
        }
        // Somebody else holds it, and what we would write is refused.
        StopReason::LeaseLost | StopReason::Cancelled | StopReason::TimeLimit => Ok(()),
    }
}

/// How often a job is taken up without getting any further: an end to a job that takes its server
/// down each time.
const MOST_CLAIMS_WITHOUT_PROGRESS: u32 = 10;

/// How many sandboxes a job may lose under its worker's eyes without getting any further: an end to a
/// job that ends its own guest each time.
const MOST_LOSSES_WITHOUT_PROGRESS: u32 = 3;

fn lost(reason: &str) -> Ending {
    let message = format!("the sandbox was lost: {reason}");
    Ending::Broken(JobError { code: "sandbox_lost".into(), message })
}

/// Why the job is not tried again, if it was tried too often.
fn gives_up(view: &JobView) -> Option<JobError> {
    let claims = view.claims_without_progress;
    (claims > MOST_CLAIMS_WITHOUT_PROGRESS).then(|| JobError {
        code: "no_progress".into(),
        message: format!(
            "the job was taken up {MOST_CLAIMS_WITHOUT_PROGRESS} times and each time interrupted \
             before it got any further; the server's log may say by what"
        ),
    })
}

/// Writes down the end of a step that nobody will see the end of.
async fn close_open_step(log: &JobLog, error: &JobError) -> Result<(), StoreError> {
    let open = log.look(|view| {
        view.steps.iter().find(|step| step.status == StepStatus::Running).map(|step| step.n)
    });
    let Some(n) = open else { return Ok(()) };
    let unheard = Capture::new(log.recording());
    let code = error.code.clone();
    let outcome = outcome::of_interruption(&unheard, &code, error.message.clone(), Duration::ZERO);
    log.append(vec![EventBody::StepFinished { n, outcome: Box::new(outcome) }]).await
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
    spec: &JobSpec,
    stop: &StopSwitch,
) -> Result<Opened, StoreError> {
    if log.look(|view| view.sandbox.is_some()) {
        let reason = match find_sandbox(shared, spec, log).await {
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
        record_loss(shared, log, spec, reason).await?;
    }
    if let Some(reason) = stop.reason() {
        return Ok(Opened::Nothing(Ending::Stopped(reason)));
    }
    remove_spools(shared, log.job).await;
    let Some(rootfs) = shared.images.rootfs(&spec.image).await else {
        return Ok(Opened::Nothing(Ending::Broken(JobError {
            code: "image_not_found".into(),
            message: format!(
                "there is no image named `{}`; build it with `{}`",
                spec.image,
                image_build_command(&spec.image)
            ),
        })));
    };
    let backend = match shared.backends.choose(spec.isolation).await {
        Ok(backend) => backend,
        Err(lacking) => {
            let (code, message) = ("isolation_not_available".into(), lacking.to_string());
            return Ok(Opened::Nothing(Ending::Broken(JobError { code, message })));
        }
    };
    let name = SandboxName::of_job(log.job);
    let order = SandboxOrder {
        name,
        rootfs,
        limits: spec.limits,
        nested_sandboxing: spec.nested_sandboxing,
        orphaned_after: shared.orphaned_after,
    };
    let started = Instant::now();
    match Sandbox::start(&*backend, &order, &spec.image).await {
        Ok(sandbox) => {
            let kind = match sandbox.report().start {
                Start::Cold => "cold",
                Start::Warm => "warm",
            };
            metrics::histogram!("bellglass_sandbox_start_seconds", "start" => kind)
                .record(started.elapsed());
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
) -> Result<Option<Sandbox>, String> {
    // Which backend made it stands in its report; without one there was none that was used.
    let (report, is_with) = log.look(|view| (view.sandbox.clone(), view.sandbox_is_with.clone()));
    let Some(report) = report else { return Ok(None) };
    // One of this name that is here all the same is of before, and lacks what was done since.
    if is_with.as_ref() != Some(&shared.worker) {
        return Err("it was with another worker".into());
    }
    let Some(backend) = shared.backends.named(&report.backend) else {
        return Err(format!("there is no backend `{}` any more", report.backend));
    };
    let name = SandboxName::of_job(log.job);
    let found = Sandbox::find(&**backend, &name, &spec.image).await;
    found.map_err(|error| describe(&error))
}

/// What came of the work in a sandbox.
enum Worked {
    Ended(Ending),
    /// The sandbox is of no use any more, for this reason.
    Lost(String),
}

/// Works again and again while the database does not answer: the sandbox is in our hands, what was
/// written is written, and nobody else can take the job up either.
async fn work_through(
    shared: &Shared,
    log: &JobLog,
    spec: &JobSpec,
    sandbox: &Sandbox,
    (way_out, network_changed): (&Arc<WayOut>, Arc<Notify>),
    stop: &StopSwitch,
) -> Result<Worked, StoreError> {
    // One for as long as the sandbox is: a person who has the desktop has it also when the work begins anew.
    let control = DesktopControl::new(log.clone());
    loop {
        let ways = (way_out, network_changed.clone());
        match work(shared, log, spec, (sandbox, &control), ways, stop).await {
            Err(StoreError::Unavailable) => {
                tracing::warn!(job = %log.job, "the database is away; the job waits for it");
            }
            worked => return worked,
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            () = sandbox.gone() => {}
            _ = stop.told_to_let_go() => return Err(StoreError::Unavailable),
        }
    }
}

/// Everything between the sandbox's start and the packing of its workspace.
async fn work(
    shared: &Shared,
    log: &JobLog,
    spec: &JobSpec,
    (sandbox, control): (&Sandbox, &DesktopControl),
    (way_out, network_changed): (&Arc<WayOut>, Arc<Notify>),
    stop: &StopSwitch,
) -> Result<Worked, StoreError> {
    // A wish to cancel, or a new policy, that came between the claim and now was heard by nobody.
    let now = shared.store.job(log.job).await?;
    if now.misread {
        return Ok(Worked::Ended(Ending::Stopped(stop.leave_to_newer())));
    }
    if now.cancel_requested {
        stop.stop(StopReason::Cancelled);
    }
    let mut clock = Clock::start(&now, stop.clone());
    if let Err(error) = way_out.apply(sandbox.guest(), now.network).await {
        return Ok(broken(sandbox, error.into()).await);
    }
    let _following = way_out.follow(sandbox.guest().clone(), network_changed);
    let ran = run_to_the_end(shared, log, spec, (sandbox, control), &mut clock, stop).await;
    // Whether the time was up is decided from here on.
    clock.stop().await;
    Ok(Worked::Ended(match (ran, stop.reason()) {
        (Ok(Ending::Broken(error)), None) => return Ok(broken(sandbox, error).await),
        (Err(HandsError::Store(error)), _) => return Err(error),
        (Err(HandsError::Stopped(reason)), _) => Ending::Stopped(reason),
        // However the last step went: that the job was to stop is what ended it.
        (_, Some(reason)) if reason.ends_the_job() => Ending::Stopped(reason),
        (Ok(ending), _) => ending,
        // Whoever takes the job up finds out what is left of its sandbox.
        (Err(HandsError::SandboxLost(_)), Some(reason)) => Ending::Stopped(reason),
        (Err(HandsError::SandboxLost(reason)), None) => return Ok(Worked::Lost(reason)),
        (Err(error @ HandsError::Disk(_)), _) => {
            Ending::Broken(JobError { code: "output_not_kept".into(), message: error.to_string() })
        }
    }))
}

/// How long after a failure the end of its sandbox is waited for: the wire may tell of it first.
const MOMENT: Duration = Duration::from_secs(1);

/// What a failure comes to: where the sandbox is gone, it is nothing but the sign of that.
async fn broken(sandbox: &Sandbox, error: JobError) -> Worked {
    match tokio::time::timeout(MOMENT, sandbox.gone()).await {
        Ok(()) => Worked::Lost(error.message),
        Err(_) => Worked::Ended(Ending::Broken(error)),
    }
}

/// Lets the job's mind work until it is done.
async fn run_to_the_end(
    shared: &Shared,
    log: &JobLog,
    spec: &JobSpec,
    (sandbox, control): (&Sandbox, &DesktopControl),
    clock: &mut Clock,
    stop: &StopSwitch,
) -> Result<Ending, HandsError> {
    let checkpoints =
        Checkpoints::of_job(log, &shared.artifacts, shared.spools.clone(), &spec.limits).await;
    let mut checkpoints = match checkpoints {
        Ok(checkpoints) => checkpoints,
        Err(error) => return Ok(Ending::Broken(resume::unreadable(&error))),
    };
    tokio::select! {
        prepared = prepare_workspace(shared, log, spec, sandbox, &mut checkpoints) => {
            if let Err(error) = prepared? {
                return Ok(Ending::Broken(error));
            }
        }
        () = sandbox.gone() => return Err(gone()),
        reason = stop.stopped() => return Err(HandsError::Stopped(reason)),
    }
    // Not before: what somebody puts into a workspace that is still put back would be lost with no word.
    let guest = sandbox.guest().clone();
    let _presence = shared.live.enter(log.clone(), guest, spec, control.clone());
    control.take_back().await?;
    let mut servers = Vec::new();
    let (mut mind, models): (Box<dyn Mind>, Line) = match &spec.work {
        Work::Steps(steps) => (Box::new(Playbook::new(steps.clone(), spec.on_error)), Line::new()),
        Work::Session(_) => (Box::new(Attendant), Line::new()),
        Work::Task(_) => {
            let opened = tokio::select! {
                opened = open_task(shared, spec, log.job, sandbox.guest()) => opened,
                reason = stop.stopped() => return Err(HandsError::Stopped(reason)),
            };
            match opened {
                Ok(opened) => {
                    let others = opened.servers.iter().flat_map(Connected::definitions);
                    let others = others.cloned().collect();
                    log.append(opened.events).await?;
                    servers = opened.servers;
                    (
                        Box::new(TaskMind::new(opened.context_tokens, spec.budget, others)),
                        opened.models,
                    )
                }
                Err(error) => return Ok(Ending::Broken(error)),
            }
        }
    };
    let (already_started, kept) = log.look(|view| {
        let running = view.steps.iter().find(|step| step.status == StepStatus::Running);
        (running.map(|step| step.n), kept_by(&view.steps))
    });
    if let Some(screen) = spec.desktop
        && let Err(error) = sandbox.guest().start_desktop(screen).await
    {
        return Ok(Ending::Broken(JobError {
            code: "no_desktop".into(),
            message: format!("the desktop could not be started: {error}"),
        }));
    }
    warm_kernels(sandbox, spec).await;
    let hands = SandboxHands {
        log: log.clone(),
        sandbox,
        artifacts: &shared.artifacts,
        limits: spec.limits,
        stop: stop.clone(),
        spools: shared.spools.clone(),
        kept,
        already_started,
        checkpoints,
    };
    let changes = shared.store.changes();
    let past = match Past::of(&*shared.store, spec).await {
        Ok(past) => past,
        Err(StoreError::NotFound(job)) => {
            let message = format!("the job {job}, from which this one goes on, was removed");
            return Ok(Ending::Broken(JobError { code: "past_removed".into(), message }));
        }
        Err(error) => return Err(error.into()),
    };
    let embedder = shared.embedder.as_ref();
    let mut world = JobWorld::new(hands, past, control, changes, clock, servers, embedder);
    let driven = drive(&mut *mind, &models, &mut world).await;
    let is_ours = match &driven {
        Ok(_) => true,
        Err(HandsError::Stopped(reason)) => *reason != StopReason::LeaseLost,
        Err(_) => false,
    };
    if let Some(context) = mind.snapshot().filter(|_| is_ours) {
        world.keep_last_context(context).await?;
    }
    driven.map(Ending::Concluded)
}

/// Lets the kernels start that the steps will need, while the steps before them run.
async fn warm_kernels(sandbox: &Sandbox, spec: &JobSpec) {
    let Work::Steps(steps) = &spec.work else { return };
    for language in [Language::Python, Language::TypeScript] {
        let needs = |call: &ToolCall| match (language, call) {
            (Language::Python, ToolCall::Python(code))
            | (Language::TypeScript, ToolCall::TypeScript(code)) => !code.fresh,
            _ => false,
        };
        if steps.iter().any(needs) {
            // A guest that cannot is found out by the step itself.
            let _ = sandbox.guest().warm_kernel(language).await;
        }
    }
}

/// What a task needs beside its sandbox.
struct OpenedTask {
    models: Line,
    /// What all of the models can read.
    context_tokens: u64,
    servers: Vec<Connected>,
    /// What is to be written down about it.
    events: Vec<EventBody>,
}

async fn open_task(
    shared: &Shared,
    spec: &JobSpec,
    job: JobId,
    guest: &GuestClient,
) -> Result<OpenedTask, JobError> {
    let name = spec.model.as_deref().unwrap_or_default();
    let models = shared.models.line(name, &job.to_string()).await.map_err(|error| JobError {
        code: error.code().into(),
        message: format!("the model {name} cannot be used: {error}"),
    })?;
    let context_tokens = models.iter().map(|model| model.context_tokens()).min();
    let context_tokens = context_tokens.unwrap_or_default();
    let (servers, events) = mcp::connect(&shared.mcp, spec, guest).await?;
    Ok(OpenedTask { models, context_tokens, servers, events })
}

#[cfg(test)]
mod tests;
