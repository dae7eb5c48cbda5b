//! `bellglass run`: the whole thing in one process, for one job, without a server.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bellglass_protocol::chain::SealedEvent;
use bellglass_protocol::event::{EndStatus, EventBody};
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::image_build_command;
use bellglass_protocol::request::JobRequest;
use bellglass_server::Images as _;
use bellglass_store::artifacts::ArtifactKey;
use bellglass_store::{Change, Store};
use futures::StreamExt as _;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::interruption::Interruptions;
use super::{Format, read_job};
use crate::cli;
use crate::config::Config;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::output;
use crate::render::EventPrinter;
use crate::run_folder::{self, RunFolder};
use crate::storage_config::StorageSettings;

/// How long the worker may take to let go of the job before its sandbox is ended all the same.
const LETTING_GO: Duration = Duration::from_secs(10);

/// The log is read again after this time even when no change of it was heard of.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Events that are read from the log at once.
const PAGE: u32 = 1000;

pub(super) async fn run(config: &Config, flags: &cli::Run, format: Format) -> anyhow::Result<Exit> {
    let body = read_job(&flags.job)?;
    // Caught before anything is made that a sudden end would leave behind.
    let mut interruptions = Interruptions::catch()?;
    // A data folder for this job alone: a server may be using the usual one.
    let data = RunFolder::make().context("cannot make a folder for the job")?;
    let (images, network) = (config.images(&flags.images)?, config.network()?);
    let (models, sandboxes) = (config.models(&config.data(None)?)?, config.sandboxes());
    run_folder::sweep(&sandboxes).await;
    let storage = StorageSettings::local().open(data.path()).await?;
    let installation =
        Installation::open(storage, data.path(), &images, network, models, &sandboxes)?;
    let installation = installation.without_successor().with_mcp(config.mcp()?);
    let request = JobRequest::from_json(&body)?;
    let spec = request.into_spec(&config.offer(installation.models.offer())?)?;
    installation.backends.choose(spec.isolation).await?;
    anyhow::ensure!(
        installation.images.exists(&spec.image).await,
        "there is no image named `{}`; build it with `{}`",
        spec.image,
        image_build_command(&spec.image)
    );

    let changes = installation.store.changes();
    let job = installation.store.schedule(spec).await?;
    let shutdown = CancellationToken::new();
    let worker = installation.worker(config.pace(1, Duration::ZERO));
    let worker = tokio::spawn(worker.run(shutdown.clone()));
    // A task of its own: printing waits for the reader, and signals must not wait with it.
    let show = print_with(format);
    let following = tokio::spawn(follow(installation.store.clone(), changes, job, show));
    let ended = tokio::select! {
        ended = following => Some(ended),
        () = interrupt(&mut interruptions, &*installation.store, job) => None,
    };

    // However it ended, nothing of the job may outlive this process.
    shutdown.cancel();
    let worked = tokio::time::timeout(LETTING_GO, worker).await;
    let swept = installation.backends.sweep(&HashSet::new()).await;
    let Some(ended) = ended else { return Ok(Exit::Failure) };
    let status = ended.context("the printing of events panicked")??;
    if let Ok(worked) = worked {
        worked.context("the worker panicked")??;
    }
    swept.context("cannot clean up after the job")?;

    let output = flags.output.clone().unwrap_or_else(|| free_name(&flags.job, job));
    let saved = tokio::select! {
        saved = save_result(&installation, job, &output) => saved?,
        _ = interruptions.next() => return Ok(Exit::Failure),
    };
    match (format, saved) {
        (Format::Text, true) => println!("result: {}", output.display()),
        (Format::Text, false) => println!("there is no result"),
        (Format::Json, saved) => {
            println!("{}", json!({ "job_id": job, "result": saved.then_some(&output) }));
        }
    }
    Ok(if status == EndStatus::Completed { Exit::Success } else { Exit::JobFailed })
}

/// Cancels the job at the first signal, so that its end is awaited and its work is kept. Returns at
/// the second.
async fn interrupt(interruptions: &mut Interruptions, store: &dyn Store, job: JobId) {
    let signal = interruptions.next().await;
    eprintln!("bellglass: cancelling; once more to leave at once");
    tokio::select! {
        // If the store fails here, it fails for the worker too, which ends the job.
        _ = store.request_cancel(job, signal) => {}
        _ = interruptions.next() => return,
    }
    interruptions.next().await;
}

/// When nobody reads the events any more, the job still goes on to its end.
fn print_with(format: Format) -> impl FnMut(&SealedEvent) -> io::Result<()> {
    let mut printer = EventPrinter::for_stdout();
    move |sealed| {
        match format {
            Format::Json => output::write(&format!("{}\n", sealed.line))?,
            Format::Text => printer.print(&sealed.event)?,
        };
        Ok(())
    }
}

/// Shows the events to the last.
async fn follow(
    store: Arc<dyn Store>,
    mut changes: broadcast::Receiver<Change>,
    job: JobId,
    mut show: impl FnMut(&SealedEvent) -> io::Result<()>,
) -> anyhow::Result<EndStatus> {
    let mut after = 0;
    loop {
        let page = store.events_after(job, after, PAGE).await?;
        if page.is_empty() {
            // Whatever this says, the log is read again; only waiting for ever would be wrong.
            let _ = tokio::time::timeout(LOOK_AGAIN, changes.recv()).await;
        }
        for sealed in page {
            after = sealed.event.seq;
            show(&sealed).context("cannot write to standard output")?;
            if let EventBody::Finished { end } = &sealed.event.body {
                return Ok(end.status);
            }
        }
    }
}

pub(super) async fn save_result(
    installation: &Installation,
    job: JobId,
    output: &Path,
) -> anyhow::Result<bool> {
    let Some(result) = installation.store.outline(job).await?.result else { return Ok(false) };
    let key = ArtifactKey::of_result(job, &result);
    let Ok(mut body) = installation.artifacts.get(&key, None).await else {
        return Ok(false);
    };
    let file = tokio::fs::File::create(output).await;
    let mut file = file.with_context(|| format!("cannot write {}", output.display()))?;
    while let Some(piece) = body.stream.next().await {
        file.write_all(&piece?).await?;
    }
    file.flush().await?;
    Ok(true)
}

/// `hello.json` becomes `hello.zip`, or `hello-2.zip` if that is there already.
fn free_name(job: &str, id: JobId) -> PathBuf {
    let file = Path::new(job);
    let stem = match file.file_stem() {
        Some(stem) if file.is_file() => stem.to_string_lossy().into_owned(),
        _ => id.to_string(),
    };
    let names = std::iter::once(format!("{stem}.zip"))
        .chain((2..).map(|number| format!("{stem}-{number}.zip")))
        .map(PathBuf::from);
    names.into_iter().find(|name| !name.exists()).unwrap_or_else(|| format!("{id}.zip").into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellglass_protocol::event::JobEnd;
    use bellglass_protocol::id::WorkerId;
    use bellglass_protocol::job::{IsolationLevel, Limits};
    use bellglass_protocol::model_offer::ModelOffer;
    use bellglass_protocol::request::Offer;
    use bellglass_protocol::step::OutputStream;
    use bellglass_store::SqliteStore;

    fn spec() -> bellglass_protocol::job::JobSpec {
        let offer = Offer {
            defaults: Limits::default(),
            maxima: Limits::default(),
            default_image: "base".into(),
            isolation: IsolationLevel::Namespace,
            models: ModelOffer::default(),
            budget: Default::default(),
            secrets: Default::default(),
        };
        let body = br#"{"steps":[{"tool":"shell","command":"true"}]}"#;
        JobRequest::from_json(body).unwrap().into_spec(&offer).unwrap()
    }

    /// Several pages wait, and no change is to come.
    #[tokio::test]
    async fn a_full_page_is_not_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(SqliteStore::open(&folder.path().join("db")).await.unwrap());
        let job = store.schedule(spec()).await.unwrap();
        let lease = Duration::from_secs(1000);
        let claimed = store.claim_next_job(&WorkerId::new("w"), lease).await.unwrap().unwrap();
        let output = EventBody::StepOutput { n: 1, stream: OutputStream::Stdout, text: "x".into() };
        let mut bodies = vec![output; 2 * PAGE as usize];
        let end = JobEnd { status: EndStatus::Completed, failed_steps: Vec::new(), error: None };
        bodies.push(EventBody::Finished { end });
        store.append(job, claimed.generation, bodies).await.unwrap();

        let shown = Arc::new(std::sync::Mutex::new(Vec::new()));
        let show = {
            let shown = shown.clone();
            move |sealed: &SealedEvent| {
                shown.lock().unwrap().push(sealed.event.seq);
                Ok(())
            }
        };
        let changes = store.changes();
        let status = follow(store, changes, job, show).await.unwrap();
        assert_eq!(status, EndStatus::Completed);
        let all: Vec<u64> = (1..=2 + 2 * u64::from(PAGE) + 1).collect();
        assert_eq!(*shown.lock().unwrap(), all);
    }
}
