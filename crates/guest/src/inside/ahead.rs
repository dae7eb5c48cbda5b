//! A guest that is there before its job: it waits for the job and becomes its.
//!
//! Whoever made it holds the first connection; when that ends, so does this.

use std::io;
use std::time::Duration;

use bellglass_protocol::launch::{Adopted, Adoption, GuestConfig, LaunchFailure};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};

use super::{Filter, Placer, Readiness, serve_job};

/// How a cage becomes that of a job.
pub(crate) type Adapt = Box<dyn FnOnce(&Adoption) -> Result<Adopted, LaunchFailure> + Send>;

/// Whoever made this cage connects at once, unless it has died.
const CONNECTION_TIME: Duration = Duration::from_secs(60);

/// An adoption is a few hundred bytes; it comes from our own side of the glass.
const LONGEST_LINE: u64 = 64 << 10;

/// Makes everything ready, says so, waits for a job and serves it.
pub(super) async fn serve(
    listener: UnixListener,
    made: GuestConfig,
    placer: Placer,
    readiness: Readiness,
    say_ready: impl FnOnce(),
    adapt: Adapt,
) -> io::Result<()> {
    let mut readiness = readiness.complete().await;
    say_ready();
    let Some((adoption, mut connection)) = adoption(&listener).await else { std::process::exit(0) };
    match adapt(&adoption) {
        Ok(adopted) => answer(&mut connection, &adopted).await?,
        Err(failure) => {
            answer(&mut connection, &failure).await?;
            std::process::exit(1);
        }
    }
    drop(connection);
    let config = adoption.guest;
    if confines_alike(&made, &config) {
        readiness.see_new_name();
        readiness.confinement.take_filter_upon_guest(&config)?;
    } else {
        // Tools will be confined in another way, so somebody must look again.
        readiness = Readiness::begin(&config, Filter::OfGuest)?;
    }
    serve_job(listener, config, placer, readiness).await
}

/// How long the guest waits for a worker makes no difference to tools.
fn confines_alike(one: &GuestConfig, other: &GuestConfig) -> bool {
    let patient =
        |config: &GuestConfig| GuestConfig { orphaned_after_seconds: None, ..config.clone() };
    patient(one) == patient(other)
}

async fn adoption(listener: &UnixListener) -> Option<(Adoption, UnixStream)> {
    let accepted = tokio::time::timeout(CONNECTION_TIME, listener.accept()).await;
    let (mut connection, _) = accepted.ok()?.ok()?;
    let mut line = String::new();
    BufReader::new((&mut connection).take(LONGEST_LINE)).read_line(&mut line).await.ok()?;
    Some((serde_json::from_str(&line).ok()?, connection))
}

async fn answer(connection: &mut UnixStream, answer: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string(answer).map_err(io::Error::from)?;
    connection.write_all(format!("{text}\n").as_bytes()).await
}
