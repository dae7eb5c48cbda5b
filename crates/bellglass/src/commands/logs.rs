//! `bellglass logs`: a job's events, as they were or as they come.

use std::time::Duration;

use anyhow::Context as _;
use bellglass_protocol::event::{EndStatus, Event, EventBody};
use bellglass_protocol::id::JobId;
use futures::StreamExt as _;

use super::Format;
use crate::api_client::{ApiClient, ApiError};
use crate::cli;
use crate::exit::Exit;
use crate::output::{self, Reader};
use crate::render::{Colours, EventPrinter};

pub(super) async fn logs(flags: &cli::Logs, format: Format) -> anyhow::Result<Exit> {
    let client = ApiClient::new(&flags.server)?;
    let mut log = Log::new(&client, format, WhenUnread::Leave, flags.color);
    if flags.follow {
        return log.follow(&client, flags.job).await;
    }
    log.show(&client, flags.job, false).await?;
    Ok(Exit::Success)
}

/// What to do when the reader of standard output is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WhenUnread {
    Leave,
    /// Go on silently: how the job ends is still wanted.
    FollowOn,
}

/// How often a broken connection is tried again before giving up, a second apart.
const TRIES: u32 = 30;

/// Follows a job to its end.
pub(super) async fn follow(
    client: &ApiClient,
    job: JobId,
    format: Format,
    when_unread: WhenUnread,
) -> anyhow::Result<Exit> {
    Log::new(client, format, when_unread, Colours::Auto).follow(client, job).await
}

/// How far the server's answer was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    All,
    /// Nobody reads any more, and there is no reason to stay.
    Unread,
}

struct Log {
    format: Format,
    when_unread: WhenUnread,
    printer: EventPrinter,
    /// Number of the last event shown.
    after: u64,
    end: Option<EndStatus>,
}

impl Log {
    fn new(client: &ApiClient, format: Format, when_unread: WhenUnread, colours: Colours) -> Self {
        let printer = EventPrinter::for_stdout().coloured(colours).with_links_to(client.url(""));
        Self { format, when_unread, printer, after: 0, end: None }
    }

    /// Goes on to the end, over broken connections and restarts of the server.
    async fn follow(mut self, client: &ApiClient, job: JobId) -> anyhow::Result<Exit> {
        self.printer = self.printer.with_progress();
        let mut tries = 0;
        loop {
            let before = self.after;
            let outcome = self.show(client, job, true).await;
            if let Some(status) = self.end {
                let completed = status == EndStatus::Completed;
                return Ok(if completed { Exit::Success } else { Exit::JobFailed });
            }
            tries = if self.after > before { 0 } else { tries + 1 };
            match outcome {
                Ok(Shown::Unread) => return Ok(Exit::Success),
                Err(error) => match error.downcast_ref() {
                    Some(ApiError::Unreachable { .. } | ApiError::Broken(_))
                        if self.after > 0 && tries <= TRIES => {}
                    _ => return Err(error),
                },
                Ok(Shown::All) => {}
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    async fn show(
        &mut self,
        client: &ApiClient,
        job: JobId,
        follow: bool,
    ) -> anyhow::Result<Shown> {
        let mut lines = client.log(job, self.after, follow).await?;
        while let Some(line) = lines.next().await {
            let line = line?;
            // What is no event at all is shown as it is.
            let event = serde_json::from_str::<Event>(&line).ok();
            let reader = match (&event, self.format) {
                (Some(event), Format::Text) => self.printer.print(event),
                (None, _) | (_, Format::Json) => output::write(&format!("{line}\n")),
            };
            let reader = reader.context("cannot write to standard output")?;
            if let Some(event) = event {
                self.after = event.seq;
                if let EventBody::Finished { end } = &event.body {
                    self.end = Some(end.status);
                }
            }
            if reader == Reader::Gone && self.when_unread == WhenUnread::Leave {
                return Ok(Shown::Unread);
            }
        }
        Ok(Shown::All)
    }
}
