//! How stores on one database tell each other of changes, by LISTEN and NOTIFY.
//!
//! A store hears of its own changes at once and without this. News are hints: what they tell of stands
//! in the log, and whoever may have missed some looks there.

use std::fmt::Write as _;
use std::time::Duration;

use bellglass_protocol::view::JobStatus;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::broadcast;

use super::fault::Backoff;
use super::reads;
use crate::group::publish;
use crate::{Change, StoreError};

pub(super) const CHANNEL: &str = "bellglass_changes";

/// PostgreSQL takes less than 8000 bytes at once.
const LONGEST: usize = 7800;

/// A connection on which nothing was heard for so long is asked whether it still stands.
const QUIET: Duration = Duration::from_secs(5);

/// Changes as texts to notify with: the teller's name, then a line for each change.
pub(super) fn written(teller: &str, changes: &[Change]) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for change in changes {
        let mut line = format!("\n{} {} {}", change.job, change.seq, change.status.as_str());
        for (flag, word) in
            [(change.cancel_requested, " cancel"), (change.network_changed, " network")]
        {
            if flag {
                line.push_str(word);
            }
        }
        match texts.last_mut() {
            Some(text) if text.len() + line.len() <= LONGEST => text.push_str(&line),
            _ => {
                let mut text = String::with_capacity(LONGEST);
                let _ = write!(text, "{teller}{line}");
                texts.push(text);
            }
        }
    }
    texts
}

/// The changes in a text that somebody else told. What is not understood is left out.
fn read(teller: &str, text: &str) -> Vec<Change> {
    let mut lines = text.lines();
    if lines.next() == Some(teller) {
        return Vec::new();
    }
    lines.filter_map(read_line).collect()
}

fn read_line(line: &str) -> Option<Change> {
    let mut words = line.split(' ');
    let job = words.next()?.parse().ok()?;
    let seq = words.next()?.parse().ok()?;
    let status = JobStatus::parse(words.next()?)?;
    let flags: Vec<&str> = words.collect();
    Some(Change {
        job,
        seq,
        status,
        cancel_requested: flags.contains(&"cancel"),
        network_changed: flags.contains(&"network"),
    })
}

/// Begins to hear news.
pub(super) async fn listen(options: &PgConnectOptions) -> Result<PgListener, sqlx::Error> {
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options.clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(CHANNEL).await?;
    Ok(listener)
}

/// Passes on what others tell, for ever. After a time without connection it tells of every job that
/// may have changed meanwhile.
pub(super) async fn pass_on(
    mut listener: PgListener,
    options: PgConnectOptions,
    readers: PgPool,
    teller: String,
    changes: broadcast::Sender<Change>,
) {
    loop {
        let mut heard_last = super::now();
        let error = hear(&mut listener, &teller, &changes, &mut heard_last).await;
        tracing::warn!(error, "news of other processes are not heard; connecting again");
        let mut backoff = Backoff::default();
        let missed = loop {
            backoff.wait().await;
            match catch_up(&options, &readers, heard_last).await {
                Ok((again, missed)) => {
                    listener = again;
                    break missed;
                }
                Err(error) => tracing::debug!(%error, "news are still not heard"),
            }
        };
        tracing::info!(jobs = missed.len(), "news of other processes are heard again");
        publish(&changes, missed);
    }
}

/// Passes on news until the connection fails; says why it did.
async fn hear(
    listener: &mut PgListener,
    teller: &str,
    changes: &broadcast::Sender<Change>,
    heard_last: &mut jiff::Timestamp,
) -> String {
    loop {
        match tokio::time::timeout(QUIET, listener.try_recv()).await {
            Ok(Ok(Some(told))) => {
                *heard_last = super::now();
                publish(changes, read(teller, told.payload()));
            }
            Ok(Ok(None)) => return "the connection was closed".into(),
            Ok(Err(error)) => return error.to_string(),
            Err(_) => {
                let asked = sqlx::query("SELECT 1").execute(&mut *listener);
                match tokio::time::timeout(QUIET, asked).await {
                    Ok(Ok(_)) => *heard_last = super::now(),
                    Ok(Err(error)) => return error.to_string(),
                    Err(_) => return "the database does not answer".into(),
                }
            }
        }
    }
}

/// Listens anew, and only then looks for what was missed: nothing falls in between.
async fn catch_up(
    options: &PgConnectOptions,
    readers: &PgPool,
    heard_last: jiff::Timestamp,
) -> Result<(PgListener, Vec<Change>), StoreError> {
    let listener = listen(options).await?;
    // Clocks differ a little, and an hour told twice does no harm.
    let since = heard_last.saturating_sub(jiff::SignedDuration::from_mins(5));
    let since = since.unwrap_or(heard_last);
    Ok((listener, reads::changed_since(readers, since).await?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellglass_protocol::id::JobId;

    fn change(seq: u64, cancel_requested: bool, network_changed: bool) -> Change {
        let (job, status) = (JobId::generate(), JobStatus::Running);
        Change { job, seq, status, cancel_requested, network_changed }
    }

    #[test]
    fn others_read_what_was_written_and_the_teller_does_not() {
        let changes: Vec<_> = (0..300).map(|n| change(n, n % 2 == 0, n % 3 == 0)).collect();
        let texts = written("me", &changes);
        assert!(texts.len() > 1 && texts.iter().all(|text| text.len() < 8000));
        let heard: Vec<_> = texts.iter().flat_map(|text| read("you", text)).collect();
        assert_eq!(format!("{heard:?}"), format!("{changes:?}"));
        assert!(texts.iter().all(|text| read("me", text).is_empty()));
    }

    #[test]
    fn what_a_newer_program_tells_is_not_an_error() {
        assert!(read("me", "you\nsomething else entirely\n\n").is_empty());
        assert!(read("me", "").is_empty());
    }
}
