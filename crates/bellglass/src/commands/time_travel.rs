//! `bellglass diff`, `fork` and `restore`: what the steps of a job did, and going on from one of them.

use anyhow::Context as _;
use serde_json::{Value, json};

use super::logs::{self, WhenUnread};
use super::{Format, print_json};
use crate::api_client::ApiClient;
use crate::cli;
use crate::exit::Exit;
use crate::render::safe;

/// Shows what one step did to the workspace, or what each of them did.
pub(super) async fn diff(flags: &cli::Diff, format: Format) -> anyhow::Result<Exit> {
    let client = ApiClient::new(&flags.server)?;
    let steps = match flags.step {
        Some(step) => vec![(step, String::new())],
        None => {
            let job = client.job(flags.job).await?;
            let steps = job["steps"].as_array().cloned().unwrap_or_default();
            steps.iter().filter(|step| !step["changes"].is_null()).filter_map(step_line).collect()
        }
    };
    let mut found = Vec::new();
    for (step, line) in steps {
        let diff = client.step_diff(flags.job, step).await?;
        match format {
            Format::Json => found.push(json!({ "step": step, "diff": diff })),
            Format::Text => {
                if !line.is_empty() {
                    println!("# {}", safe(&line));
                }
                // It came out of a sandbox, and this may be a terminal.
                diff.lines().for_each(|line| println!("{}", safe(line)));
            }
        }
    }
    if format == Format::Json {
        print_json(&found)?;
    }
    Ok(Exit::Success)
}

fn step_line(step: &Value) -> Option<(u32, String)> {
    let n = u32::try_from(step["n"].as_u64()?).ok()?;
    Some((n, format!("step {n}: {}", step["tool"].as_str().unwrap_or_default())))
}

/// Makes a new job that goes on from a step of another one.
pub(super) async fn fork(flags: &cli::Fork, format: Format) -> anyhow::Result<Exit> {
    let client = ApiClient::new(&flags.server)?;
    let mut body = json!({ "step": flags.step });
    if let Some(message) = &flags.message {
        body["message"] = json!(message);
    }
    if let Some(task) = &flags.task {
        body["task"] = json!(task);
    }
    if let Some(file) = &flags.steps {
        let text = std::fs::read(file);
        let text = text.with_context(|| format!("cannot read {}", file.display()))?;
        let steps: Value = serde_json::from_slice(&text)
            .with_context(|| format!("{} is not JSON", file.display()))?;
        // A whole job is fine too: its steps are meant.
        body["steps"] = steps.get("steps").cloned().unwrap_or(steps);
    }
    if let Some(name) = &flags.name {
        body["name"] = json!(name);
    }
    let answer = client.fork(flags.job, &body).await?;
    let job = answer["job_id"].as_str().context("the server's answer has no job_id")?;
    match (format, flags.follow) {
        (_, true) => {
            return logs::follow(&client, job.parse()?, format, WhenUnread::FollowOn).await;
        }
        (Format::Json, false) => print_json(&answer)?,
        (Format::Text, false) => println!("{job}"),
    }
    Ok(Exit::Success)
}

/// Makes the workspace of a running job what it was after a step.
pub(super) async fn restore(flags: &cli::Restore, format: Format) -> anyhow::Result<Exit> {
    let client = ApiClient::new(&flags.server)?;
    let answer = client.restore(flags.job, flags.step).await?;
    match format {
        Format::Json => print_json(&answer)?,
        Format::Text => println!("{}: asked to go back to step {}", flags.job, flags.step),
    }
    Ok(Exit::Success)
}
