//! `bellglass verify`: proves that a job's log is as it was written.

use std::path::Path;

use anyhow::Context as _;
use bellglass_protocol::chain::Verifier;
use bellglass_protocol::id::JobId;
use bellglass_protocol::view::JobView;
use bellglass_store::{SqliteStore, Store as _};
use serde_json::json;

use super::{Format, print_json};
use crate::cli;
use crate::config::Config;
use crate::exit::Exit;
use crate::installation::database;

pub(super) async fn verify(
    config: &Config,
    flags: &cli::Verify,
    format: Format,
) -> anyhow::Result<Exit> {
    let lines = match flags.log.parse::<JobId>() {
        Ok(job) => read_store(config, flags, job).await?,
        Err(_) if Path::new(&flags.log).is_file() => {
            let text = std::fs::read_to_string(&flags.log)?;
            (None, text.lines().map(str::to_owned).collect())
        }
        Err(invalid) => anyhow::bail!("{invalid}, and there is no file of that name"),
    };
    let (job, lines) = lines;
    let mut verifier = Verifier::new(job);
    let mut view: Option<JobView> = None;
    let checked = lines
        .iter()
        .try_for_each(|line| {
            let event = verifier.line(line)?;
            match &mut view {
                Some(view) => view.apply(&event),
                None => view = JobView::begin(&event),
            }
            Ok(())
        })
        .and_then(|()| verifier.finish());
    let status = view.map(|view| view.status.as_str());
    match (format, &checked) {
        (Format::Json, Ok((events, hash))) => print_json(
            &json!({ "valid": true, "events": events, "last_hash": hash, "status": status }),
        )?,
        (Format::Json, Err(error)) => {
            print_json(&json!({ "valid": false, "error": error.to_string() }))?;
        }
        (Format::Text, Ok((events, hash))) => {
            println!("the chain is whole: {events} events, status {}", status.unwrap_or("unknown"));
            println!("last hash: {hash}");
        }
        (Format::Text, Err(error)) => println!("the chain is BROKEN: {error}"),
    }
    Ok(if checked.is_ok() { Exit::Success } else { Exit::JobFailed })
}

async fn read_store(
    config: &Config,
    flags: &cli::Verify,
    job: JobId,
) -> anyhow::Result<(Option<JobId>, Vec<String>)> {
    let database = database(&config.data(flags.storage.data.as_ref())?);
    let store = SqliteStore::open_read_only(&database).await;
    let store = store.with_context(|| format!("cannot open {}", database.display()))?;
    let mut lines = Vec::new();
    loop {
        let page = store.events_after(job, lines.len() as u64, 1000).await?;
        if page.is_empty() {
            return Ok((Some(job), lines));
        }
        lines.extend(page.into_iter().map(|sealed| sealed.line));
    }
}
