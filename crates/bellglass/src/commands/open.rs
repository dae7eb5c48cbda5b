//! `bellglass open`: a job's page in the browser; its address where there is no browser.

use std::process::Stdio;

use serde_json::json;

use super::{Format, print_json};
use crate::api_client::ApiClient;
use crate::cli;
use crate::config::Config;
use crate::exit::Exit;

pub(super) async fn open(
    config: &Config,
    flags: &cli::Open,
    format: Format,
) -> anyhow::Result<Exit> {
    let client = ApiClient::new(&flags.server)?;
    // Says so at once if there is no such job.
    client.status(flags.job).await?;
    let url = client.url(&format!("/watch/{}", flags.job));
    let browser = config.browser().filter(|_| !flags.print);
    let opened = match &browser {
        Some(program) => {
            let mut command = tokio::process::Command::new(program);
            command.arg(&url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().await.is_ok_and(|status| status.success())
        }
        None => false,
    };
    match format {
        Format::Json => print_json(&json!({ "url": url, "opened": opened }))?,
        Format::Text => println!("{url}"),
    }
    Ok(Exit::Success)
}
