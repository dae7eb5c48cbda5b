//! `bellglass share`: a link with which others can watch a job.

use serde_json::json;

use super::{Format, print_json};
use crate::api_client::ApiClient;
use crate::cli;
use crate::exit::Exit;
use crate::render::safe;

pub(super) async fn share(flags: &cli::Share, format: Format) -> anyhow::Result<Exit> {
    let client = ApiClient::new(&flags.server)?;
    if flags.revoke {
        client.unshare(flags.job).await?;
        match format {
            Format::Json => print_json(&json!({ "job_id": flags.job, "shared": false }))?,
            Format::Text => println!("{}: no link opens it any more", flags.job),
        }
        return Ok(Exit::Success);
    }
    let body = json!({
        "expires_in": flags.expires,
        "files": !flags.no_files,
        "output": !flags.no_download,
    });
    let mut link = client.share(flags.job, &body).await?;
    let url = client.url(link["url"].as_str().unwrap_or_default());
    match format {
        Format::Json => {
            link["url"] = json!(url);
            print_json(&link)?;
        }
        Format::Text => {
            println!("{}", safe(&url));
            eprintln!("holds until {}", safe(link["expires_at"].as_str().unwrap_or_default()));
        }
    }
    Ok(Exit::Success)
}
