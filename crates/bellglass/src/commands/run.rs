//! `bellglass run`: the whole thing in one process, for one job, without a server.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use bellglass_protocol::event::{EndStatus, EventBody};
use bellglass_protocol::id::JobId;
use bellglass_protocol::request::JobRequest;
use bellglass_server::Images as _;
use bellglass_store::artifacts::ArtifactKey;
use bellglass_store::{Change, Store};
use futures::StreamExt as _;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::{Format, read_job};
use crate::cli;
use crate::config::Config;
use crate::exit::Exit;
use crate::installation::Installation;
use crate::render::EventPrinter;

pub(super) async fn run(config: &Config, flags: &cli::Run, format: Format) -> anyhow::Result<Exit> {
    let body = read_job(&flags.job)?;
    // A data folder for this job alone: a server may be using the usual one.
    let data = tempfile::Builder::new().prefix("bellglass-run-").tempdir()?;
    let installation = Installation::open(data.path(), &config.images(&flags.images)?).await?;
    let request = JobRequest::from_json(&body)?;
    let spec = request.into_spec(&config.offer(installation.backend.level()))?;
    anyhow::ensure!(
        installation.images.exists(&spec.image).await,
        "there is no image named `{}`; build it with `bellglass image build`",
        spec.image
    );

    let mut changes = installation.store.changes();
    let job = installation.store.schedule(spec).await?;
    let shutdown = CancellationToken::new();
    let worker = tokio::spawn(installation.worker(1, config.lease()).run(shutdown.clone()));
    let store = installation.store.clone();
    tokio::spawn(async move {
        // The job is cancelled rather than abandoned, so that its sandbox goes with it.
        if tokio::signal::ctrl_c().await.is_ok() {
            eprintln!("bellglass: cancelling; once more to leave at once");
            let _ = store.request_cancel(job, "Ctrl-C").await;
        }
        let _ = tokio::signal::ctrl_c().await;
        std::process::exit(i32::from(Exit::Failure as u8));
    });

    let status = follow(&*installation.store, &mut changes, job, format).await?;
    shutdown.cancel();
    worker.await.context("the worker panicked")??;

    let output = flags.output.clone().unwrap_or_else(|| free_name(&flags.job, job));
    let saved = save_result(&installation, job, &output).await?;
    match (format, saved) {
        (Format::Text, true) => println!("result: {}", output.display()),
        (Format::Text, false) => println!("there is no result"),
        (Format::Json, saved) => {
            println!("{}", json!({ "job_id": job, "result": saved.then_some(&output) }));
        }
    }
    Ok(if status == EndStatus::Completed { Exit::Success } else { Exit::JobFailed })
}

/// Prints the events to the last.
async fn follow(
    store: &dyn Store,
    changes: &mut broadcast::Receiver<Change>,
    job: JobId,
    format: Format,
) -> anyhow::Result<EndStatus> {
    let mut printer = EventPrinter::for_stdout();
    let mut after = 0;
    loop {
        for sealed in store.events_after(job, after, 1000).await? {
            after = sealed.event.seq;
            match format {
                Format::Json => println!("{}", sealed.line),
                Format::Text => printer.print(&sealed.event)?,
            }
            if let EventBody::Finished { end } = &sealed.event.body {
                return Ok(end.status);
            }
        }
        // Whatever this says, the log is read again; only waiting for ever would be wrong.
        let _ = changes.recv().await;
    }
}

async fn save_result(
    installation: &Installation,
    job: JobId,
    output: &Path,
) -> anyhow::Result<bool> {
    let Ok(mut body) = installation.artifacts.get(&ArtifactKey::result(job), None).await else {
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
