//! `bellglass verify`: proves that a job's log, or the audit log, is as it was written.

use std::path::Path;

use anyhow::Context as _;
use bellglass_protocol::audit::AuditVerifier;
use bellglass_protocol::chain::{ChainError, Verifier};
use bellglass_protocol::id::JobId;
use bellglass_protocol::view::JobView;
use bellglass_store::LogEnd;
use serde_json::json;

use super::{Format, print_json};
use crate::cli;
use crate::config::Config;
use crate::exit::Exit;
use crate::render::counted;

pub(super) async fn verify(
    config: &Config,
    flags: &cli::Verify,
    format: Format,
) -> anyhow::Result<Exit> {
    if flags.audit {
        return verify_audit(config, flags, format).await;
    }
    let named = flags.log.as_deref().unwrap_or_default();
    let log = match named.parse::<JobId>() {
        Ok(job) => read_store(config, flags, job).await?,
        Err(_) if Path::new(named).is_file() => {
            Log { job: None, end: None, lines: read_lines(named)? }
        }
        Err(invalid) => anyhow::bail!("{invalid}, and there is no file of that name"),
    };
    let mut view = None;
    let checked = check(&log, &mut view);
    let status = view.map(|view: JobView| view.status);
    // Lines that were cut off at the end leave no trace in those that are left.
    let is_open = log.end.is_none() && !status.is_some_and(|status| status.is_terminal());
    let status = status.map(|status| status.as_str());
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
            if is_open {
                println!(
                    "it does not reach the job's end; a file cannot show whether more was written"
                );
            }
        }
        (Format::Text, Err(error)) => println!("the chain is BROKEN: {error}"),
    }
    Ok(if checked.is_ok() { Exit::Success } else { Exit::JobFailed })
}

async fn verify_audit(
    config: &Config,
    flags: &cli::Verify,
    format: Format,
) -> anyhow::Result<Exit> {
    let (end, lines) = match &flags.log {
        Some(file) => (None, read_lines(file)?),
        None => {
            let data = config.data(flags.storage.data.as_ref())?;
            let store = config.storage()?.open_to_read(&data).await?;
            // The end first: what is done meanwhile only makes the log longer.
            let (end, mut lines) = (store.end_of_audit().await?, Vec::new());
            loop {
                let page = store.audit_after(lines.len() as u64, 1000).await?;
                if page.is_empty() {
                    break (Some(end), lines);
                }
                lines.extend(page);
            }
        }
    };
    let checked = check_audit(&lines, end.as_ref());
    match (format, &checked) {
        (Format::Json, Ok((entries, hash))) => {
            print_json(&json!({ "valid": true, "entries": entries, "last_hash": hash }))?;
        }
        (Format::Json, Err(error)) => {
            print_json(&json!({ "valid": false, "error": error.to_string() }))?;
        }
        (Format::Text, Ok((entries, hash))) => {
            println!("the audit log is whole: {}", counted(*entries));
            println!("last hash: {hash}");
        }
        (Format::Text, Err(error)) => println!("the audit log is BROKEN: {error}"),
    }
    Ok(if checked.is_ok() { Exit::Success } else { Exit::JobFailed })
}

/// The number of entries and the last hash of an audit log that is whole.
fn check_audit(lines: &[String], end: Option<&LogEnd>) -> Result<(u64, String), ChainError> {
    let mut verifier = AuditVerifier::default();
    for line in lines {
        let seq = verifier.line(line)?.seq;
        if end.is_some_and(|end| end.seq == seq && end.hash != verifier.last_hash()) {
            return Err(ChainError::Broken { line: seq });
        }
    }
    let (lines, hash) = verifier.finish();
    match end {
        Some(end) if lines < end.seq => Err(ChainError::Shortened { lines, written: end.seq }),
        _ => Ok((lines, hash)),
    }
}

fn read_lines(file: &str) -> anyhow::Result<Vec<String>> {
    let text = std::fs::read(file).with_context(|| format!("failed to read {file}"))?;
    Ok(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect())
}

/// A log, from wherever it was read.
struct Log {
    job: Option<JobId>,
    /// Where it must at least reach, if that is known.
    end: Option<LogEnd>,
    lines: Vec<String>,
}

/// The number of lines and the last hash of a log that is whole; folds its events into `view`.
fn check(log: &Log, view: &mut Option<JobView>) -> Result<(u64, String), ChainError> {
    let mut verifier = Verifier::new(log.job);
    for line in &log.lines {
        let event = verifier.line(line)?;
        match view {
            Some(view) => view.apply(&event),
            None => *view = JobView::begin(&event),
        }
        if let Some(end) = log.end.as_ref().filter(|end| end.seq == event.seq)
            && verifier.last_hash().as_ref() != Some(&end.hash)
        {
            return Err(ChainError::Broken { line: event.seq });
        }
    }
    let (lines, hash) = verifier.finish()?;
    match &log.end {
        Some(end) if lines < end.seq => Err(ChainError::Shortened { lines, written: end.seq }),
        _ => Ok((lines, hash)),
    }
}

async fn read_store(config: &Config, flags: &cli::Verify, job: JobId) -> anyhow::Result<Log> {
    let data = config.data(flags.storage.data.as_ref())?;
    let store = config.storage()?.open_to_read(&data).await?;
    // The end first: a job that goes on meanwhile only makes the log longer.
    let end = Some(store.end_of_log(job).await?);
    let mut lines = Vec::new();
    loop {
        let page = store.lines_after(job, lines.len() as u64, 1000).await?;
        if page.is_empty() {
            return Ok(Log { job: Some(job), end, lines });
        }
        lines.extend(page);
    }
}
