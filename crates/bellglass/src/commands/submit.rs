//! `bellglass submit`: hand a job to a server.

use anyhow::Context as _;

use super::logs::{self, WhenUnread};
use super::{Format, print_json, read_job};
use crate::api_client::ApiClient;
use crate::cli;
use crate::exit::Exit;

pub(super) async fn submit(flags: &cli::Submit, format: Format) -> anyhow::Result<Exit> {
    let client = ApiClient::new(&flags.server)?;
    let answer = client.submit(read_job(&flags.job)?).await?;
    match (format, flags.follow) {
        (Format::Json, false) => print_json(&answer)?,
        (Format::Text, false) => {
            let field = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
            println!("{}", field("job_id"));
            // The id alone goes to standard output, for scripts; the rest is for people.
            eprintln!("status: {}", client.url(&field("status_url")));
            eprintln!("events: {}", client.url(&field("events_url")));
        }
        (_, true) => {
            let job = answer["job_id"].as_str().context("the server's answer has no job_id")?;
            let job = job.parse()?;
            return logs::follow(&client, job, format, WhenUnread::FollowOn).await;
        }
    }
    Ok(Exit::Success)
}
