//! `bellglass logs`: a job's events, as they were or as they come.

use std::time::Duration;

use bellglass_protocol::event::{EndStatus, Event, EventBody};
use bellglass_protocol::id::JobId;
use futures::StreamExt as _;

use super::Format;
use crate::api_client::{ApiClient, ApiError};
use crate::cli;
use crate::exit::Exit;
use crate::render::EventPrinter;

pub(super) async fn logs(flags: &cli::Logs, format: Format) -> anyhow::Result<Exit> {
    let client = ApiClient::new(&flags.server)?;
    if flags.follow {
        return follow(&client, flags.job, format).await;
    }
    let mut reader = Reader::new(format);
    reader.read(&client, flags.job, false).await?;
    Ok(Exit::Success)
}

/// How often a broken connection is tried again before giving up, a second apart.
const TRIES: u32 = 30;

/// Follows a job to its end, over broken connections and restarts of the server.
pub(super) async fn follow(client: &ApiClient, job: JobId, format: Format) -> anyhow::Result<Exit> {
    let mut reader = Reader::new(format);
    let mut tries = 0;
    loop {
        let before = reader.after;
        let outcome = reader.read(client, job, true).await;
        if let Some(status) = reader.end {
            let completed = status == EndStatus::Completed;
            return Ok(if completed { Exit::Success } else { Exit::JobFailed });
        }
        tries = if reader.after > before { 0 } else { tries + 1 };
        match outcome {
            Err(error @ ApiError::Problem { .. }) => return Err(error.into()),
            Err(error) if reader.after == 0 || tries > TRIES => return Err(error.into()),
            _ => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    }
}

struct Reader {
    format: Format,
    printer: EventPrinter,
    /// Number of the last event shown.
    after: u64,
    end: Option<EndStatus>,
}

impl Reader {
    fn new(format: Format) -> Self {
        Self { format, printer: EventPrinter::for_stdout(), after: 0, end: None }
    }

    async fn read(&mut self, client: &ApiClient, job: JobId, follow: bool) -> Result<(), ApiError> {
        let mut lines = client.log(job, self.after, follow).await?;
        while let Some(line) = lines.next().await {
            let line = line?;
            let Ok(event) = serde_json::from_str::<Event>(&line) else {
                // A newer server may know events that we do not; they are shown as they are.
                println!("{line}");
                continue;
            };
            self.after = event.seq;
            match self.format {
                Format::Json => println!("{line}"),
                // Nobody reads any more; the exit code is still wanted.
                Format::Text => drop(self.printer.print(&event)),
            }
            if let EventBody::Finished { end } = &event.body {
                self.end = Some(end.status);
            }
        }
        Ok(())
    }
}
