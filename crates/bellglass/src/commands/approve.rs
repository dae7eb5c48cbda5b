//! `bellglass approve`: allows or refuses what a job waits for.

use anyhow::Context as _;
use serde_json::json;

use super::{Format, print_json};
use crate::api_client::ApiClient;
use crate::cli;
use crate::exit::Exit;
use crate::render::safe;

pub(super) async fn approve(flags: &cli::Approve, format: Format) -> anyhow::Result<Exit> {
    let client = ApiClient::new(&flags.server)?;
    let approval = match &flags.approval {
        Some(approval) => approval.clone(),
        None => {
            let job = client.job(flags.job).await?;
            let first = job["approvals"][0]["id"].as_str();
            first.context("the job waits for no approval")?.to_owned()
        }
    };
    let decision = if flags.refuse { "refuse" } else { "allow" };
    let body = json!({ "decision": decision, "words": flags.words });
    let answer = client.decide(flags.job, &approval, &body).await?;
    match format {
        Format::Json => print_json(&answer)?,
        Format::Text => {
            let word = if flags.refuse { "refused" } else { "allowed" };
            println!("{}: {word} {}", flags.job, safe(&approval));
        }
    }
    Ok(Exit::Success)
}
