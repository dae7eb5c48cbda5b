//! What a job goes on from: what still counts when its sandbox is lost, and what the workspace of a
//! new sandbox begins with.

use std::time::Duration;

use bellglass_protocol::checkpoint::Tree;
use bellglass_protocol::event::{EventBody, JobError, RestoreCause};
use bellglass_protocol::job::{JobSpec, Work};
use bellglass_protocol::step::{StepStatus, decode_base64};
use bellglass_protocol::tool::Encoding;
use bellglass_protocol::view::JobView;
use bellglass_sandbox::Sandbox;
use bellglass_sandbox::client::ClientError;
use bellglass_store::StoreError;
use bellglass_store::checkpoints::read_tree;
use bytes::Bytes;

use crate::capture::Capture;
use crate::checkpoints::{Checkpoints, RestoreError, restore};
use crate::hands::{HandsError, describe, from_client};
use crate::job_log::JobLog;
use crate::outcome;
use crate::queue::Shared;
use crate::spool::{self, Spool};

/// Writes down that the sandbox is gone, and which step was interrupted by it.
pub(crate) async fn record_loss(
    shared: &Shared,
    log: &JobLog,
    spec: &JobSpec,
    reason: String,
) -> Result<(), StoreError> {
    let (kept, open) = log.look(|view| (still_counts(view), open_step(view)));
    let mut events = Vec::new();
    if let Some(n) = open.filter(|n| kept.is_some_and(|kept| *n <= kept)) {
        // What it wrote until then is all that anybody has of it.
        let mut capture = Capture::new(log.recording());
        let path = spool::of_step(&shared.spools, log.job, n);
        let _ = Spool::open(path, spec.limits.output.0, &mut capture);
        let message = "the sandbox was lost while this step ran, and nobody knows how far it came; \
                       its changes to the workspace are gone";
        let outcome =
            outcome::of_interruption(&capture, "sandbox_lost", message.into(), Duration::ZERO);
        events.push(EventBody::StepFinished { n, outcome: Box::new(outcome) });
    }
    events.push(EventBody::SandboxLost { reason, kept });
    // What was kept of its steps is void with them. Looked for before the line that makes it so: what is
    // there afterwards may be the next worker's.
    let void = match kept {
        None => shared.artifacts.left_by(log.job).await,
        Some(_) => Ok(Vec::new()),
    };
    log.append(events).await?;
    let deleted = match void {
        Ok(void) => shared.artifacts.delete(log.job, void).await,
        Err(error) => Err(error),
    };
    if let Err(error) = deleted {
        tracing::warn!(job = %log.job, %error, "could not delete the output of a lost sandbox");
    }
    Ok(())
}

/// The last step that counts although its sandbox is gone.
fn still_counts(view: &JobView) -> Option<u32> {
    let last = view.steps.last().map_or_else(|| first_step(&view.spec) - 1, |step| step.n);
    match (&view.spec.work, view.kept.unkept_since()) {
        (Work::Steps(_), None) => (last > 0).then_some(last),
        // A list can be run again from where its files are kept.
        (Work::Steps(_), Some(unkept)) => (unkept > 1).then(|| unkept - 1),
        // What the model of a fork knows is more than its own log could begin with again.
        (Work::Task(_), _) if view.spec.fork.is_some_and(|fork| fork.heard.is_some()) => Some(last),
        // A model can be told what is gone, unless all is.
        (Work::Task(_), Some(_)) if view.kept.newest().is_none() => None,
        (Work::Task(_), _) => view.usage.is_some().then_some(last),
        // Whoever uses it finds the files.
        (Work::Session(_), _) => view.kept.newest().map(|_| last),
    }
}

/// A fork of a task counts on from the steps that its model knows.
pub(crate) fn first_step(spec: &JobSpec) -> u32 {
    match spec.fork {
        Some(fork) if fork.heard.is_some() => fork.step + 1,
        _ => 1,
    }
}

fn open_step(view: &JobView) -> Option<u32> {
    view.steps.iter().find(|step| step.status == StepStatus::Running).map(|step| step.n)
}

/// Puts into the workspace what it begins with, unless that is done. An inner error is the job's end.
pub(crate) async fn prepare_workspace(
    shared: &Shared,
    log: &JobLog,
    spec: &JobSpec,
    sandbox: &Sandbox,
    checkpoints: &mut Checkpoints<'_>,
) -> Result<Result<(), JobError>, HandsError> {
    let (pending, is_new) = log.look(|view| (view.kept.pending, view.steps.is_empty()));
    if let Some(why) = pending {
        match put_back(shared, log, spec, sandbox, checkpoints, why).await {
            Ok(event) => log.append(vec![event]).await?,
            Err(PutBackError::Job(error)) => return Ok(Err(error)),
            Err(PutBackError::Restore(RestoreError::Guest(error)))
                if !matches!(error, ClientError::Refused(_)) =>
            {
                return Err(from_client(error));
            }
            Err(PutBackError::Restore(error)) => return Ok(Err(not_restored(describe(&error)))),
        }
    } else if is_new && let Err(error) = place_files(spec, sandbox).await {
        return Ok(Err(error));
    }
    let begins_with_something = spec.fork.is_some() || !spec.files.is_empty();
    if is_new && begins_with_something && checkpoints.newest().is_none() {
        let event = checkpoints.take(sandbox.guest(), first_step(spec) - 1).await?;
        log.append(event.into_iter().collect()).await?;
    }
    Ok(Ok(()))
}

enum PutBackError {
    Job(JobError),
    Restore(RestoreError),
}

async fn put_back(
    shared: &Shared,
    log: &JobLog,
    spec: &JobSpec,
    sandbox: &Sandbox,
    checkpoints: &mut Checkpoints<'_>,
    why: RestoreCause,
) -> Result<EventBody, PutBackError> {
    // What an interrupted step did is gone.
    let last = log.look(|view| {
        let mut whole = view.steps.iter().rev();
        whole.find(|step| step.status != StepStatus::Interrupted).map(|step| step.n)
    });
    let last = last.unwrap_or(first_step(spec) - 1);
    // The step before the first one whose files were not kept is what the newest checkpoint holds. Before the
    // first step others may have put files there, of which some were kept.
    let unkept = log.look(|view| view.kept.unkept_since());
    let step = unkept.map_or(last, |unkept| unkept.saturating_sub(1));
    let restored = |from, step, entries: usize| {
        let (checkpoint, entries) = (None, entries as u64);
        EventBody::WorkspaceRestored { from, step, why, checkpoint, entries }
    };
    let (guest, artifacts) = (sandbox.guest(), &*shared.artifacts);
    if let Some(newest) = checkpoints.newest() {
        let tree = checkpoints.tree();
        let done = restore(guest, artifacts, log.job, tree, newest).await;
        return done.map(|()| restored(None, step, tree.len())).map_err(PutBackError::Restore);
    }
    match spec.fork {
        Some(fork) => {
            let tree = match fork.checkpoint {
                Some(number) => read_tree(artifacts, fork.job, number).await,
                None => Ok(Tree::default()),
            };
            let tree = tree.map_err(|error| PutBackError::Restore(error.into()))?;
            let number = log.next_checkpoint();
            let done = restore(guest, artifacts, fork.job, &tree, number).await;
            let done = done.map_err(PutBackError::Restore);
            done.map(|()| restored(Some(fork.job), fork.step, tree.len()))
        }
        None => {
            place_files(spec, sandbox).await.map_err(PutBackError::Job)?;
            Ok(restored(None, step, spec.files.len()))
        }
    }
}

fn not_restored(reason: String) -> JobError {
    let message = format!("the workspace could not be restored: {reason}");
    JobError { code: "not_restored".into(), message }
}

/// The same for checkpoints that cannot even be looked through.
pub(crate) fn unreadable(error: &dyn std::error::Error) -> JobError {
    not_restored(describe(error))
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
