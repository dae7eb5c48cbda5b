//! `bellglass jobs` and `bellglass status`: how jobs stand.

use serde_json::Value;

use super::{Format, exit_of, print_json};
use crate::api_client::ApiClient;
use crate::cli;
use crate::exit::Exit;
use crate::render::safe;

pub(super) async fn list(flags: &cli::Jobs, format: Format) -> anyhow::Result<Exit> {
    let mut query = vec![("limit", flags.limit.to_string())];
    query.extend(flags.status.clone().map(|status| ("status", status)));
    query.extend(flags.search.clone().map(|search| ("search", search)));
    let page = ApiClient::new(&flags.server)?.jobs(&query).await?;
    if format == Format::Json {
        print_json(&page)?;
        return Ok(Exit::Success);
    }
    let jobs = page["jobs"].as_array().map(Vec::as_slice).unwrap_or_default();
    if jobs.is_empty() {
        println!("no jobs");
        return Ok(Exit::Success);
    }
    println!("{:36}  {:9}  {:19}  WHAT", "JOB", "STATUS", "SCHEDULED");
    for job in jobs {
        let text = |name: &str| job[name].as_str().unwrap_or_default();
        let what = job["name"].as_str().unwrap_or_else(|| text("title"));
        let at: String = text("scheduled_at").chars().take(19).collect();
        println!("{:36}  {:9}  {at:19}  {what}", text("job_id"), text("status"));
    }
    if !page["next"].is_null() {
        println!("… and more: see --limit, --status and --search");
    }
    Ok(Exit::Success)
}

pub(super) fn show_status(
    client: &ApiClient,
    status: &Value,
    format: Format,
) -> anyhow::Result<Exit> {
    if format == Format::Json {
        print_json(status)?;
        return Ok(exit_of(status));
    }
    let text = |name: &str| status[name].as_str().unwrap_or_default().to_owned();
    println!("{}  {}", text("job_id"), text("status"));
    let total =
        status["steps_total"].as_u64().map_or(String::new(), |total| format!(" of {total}"));
    println!("  steps done: {}{total}", status["steps_done"]);
    if let Some(failed) = status["failed_steps"].as_array().filter(|steps| !steps.is_empty()) {
        let failed: Vec<String> = failed.iter().map(Value::to_string).collect();
        println!("  failed steps: {}", failed.join(", "));
    }
    if let Some(message) = status["error"]["message"].as_str() {
        let code = status["error"]["code"].as_str().unwrap_or_default();
        println!("  error: {} ({code})", safe(message));
    }
    for moment in ["scheduled", "started", "finished"] {
        if let Some(at) = status[format!("{moment}_at")].as_str() {
            println!("  {moment}: {at}");
        }
    }
    if let Some(path) = status["download_url"].as_str() {
        println!("  download: {}", client.url(path));
    }
    Ok(exit_of(status))
}
