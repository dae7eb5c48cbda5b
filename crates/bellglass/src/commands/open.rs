//! `bellglass open`: a job's page in the browser; its address where there is no browser.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tokio::process::Command;

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
    if let Format::Text = format {
        println!("{url}");
    }
    let opened = match config.browser().filter(|_| !flags.print) {
        Some(program) => start(&program, &url).await,
        None => false,
    };
    if let Format::Json = format {
        print_json(&json!({ "url": url, "opened": opened }))?;
    }
    Ok(Exit::Success)
}

/// How long a browser that does not work has to say so.
const PATIENCE: Duration = Duration::from_secs(1);

/// Starts a browser, and says whether it shows something as far as can be seen. Some hand the address on to
/// another and end; others stay for as long as somebody looks at them, and are left alone.
async fn start(program: &Path, url: &str) -> bool {
    let mut command = Command::new(program);
    command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // What is typed here to end something else does not end it.
    let Ok(mut browser) = command.process_group(0).spawn() else { return false };
    match tokio::time::timeout(PATIENCE, browser.wait()).await {
        Ok(ended) => ended.is_ok_and(|status| status.success()),
        Err(_) => true,
    }
}
