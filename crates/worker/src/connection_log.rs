//! A sandbox's connections as events, gathered for a moment so that a program which connects a
//! thousand times costs a few events and not a thousand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellglass_protocol::event::EventBody;
use bellglass_protocol::network::{Connection, Verdict};
use bellglass_sandbox::egress::ConnectionLog;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::job_log::JobLog;
use crate::recording::Recording;

/// How long connections are gathered before they become events.
const GATHER: Duration = Duration::from_millis(200);

/// Different hosts in one gathering that nothing was sent to. What a hostile program adds beyond that is
/// summed up; where something may have gone to is always told, lest it hide in a flood of refusals.
const MOST_HOSTS: usize = 50;

/// The same once the job's records are short: longer gatherings, and of few hosts.
const SHORT_GATHER: Duration = Duration::from_secs(10);
const SHORT_MOST_HOSTS: usize = 3;
/// Hosts that were really reached in one of these longer gatherings, each a connection that somebody answered.
const SHORT_MOST_REACHED: usize = 200;

/// Stands for all hosts beyond [`MOST_HOSTS`].
const OTHERS: &str = "(others)";

/// Gathers a job's connections and writes them to its log.
pub(crate) struct NetworkJournal {
    shared: Arc<Gathering>,
    closing: CancellationToken,
    task: AbortOnDropHandle<()>,
    log: JobLog,
}

#[derive(Default)]
pub(crate) struct Gathering {
    connections: Mutex<Vec<(Connection, u64)>>,
    arrived: Notify,
}

impl NetworkJournal {
    pub(crate) fn start(log: JobLog) -> Self {
        let shared = Arc::new(Gathering::default());
        let closing = CancellationToken::new();
        let task = tokio::spawn(write(shared.clone(), log.clone(), closing.clone()));
        Self { shared, closing, task: AbortOnDropHandle::new(task), log }
    }

    /// Where connections are to be told.
    pub(crate) fn gathering(&self) -> Arc<Gathering> {
        self.shared.clone()
    }

    /// Writes what is left. The way out must be closed, or more will come.
    pub(crate) async fn finish(self) {
        self.closing.cancel();
        let _ = self.task.await;
        let rest = self.shared.take(self.log.recording());
        if !rest.is_empty()
            && let Err(error) = self.log.append(rest).await
        {
            tracing::warn!(%error, "the last connections of a job could not be recorded");
        }
    }
}

impl Gathering {
    fn take(&self, recording: Recording) -> Vec<EventBody> {
        let mut gathered = std::mem::take(&mut *self.lock());
        if recording != Recording::Full {
            let (reached, refused): (Vec<_>, Vec<_>) =
                gathered.into_iter().partition(|(connection, _)| is_reached(connection.verdict));
            gathered = summed_up(reached, SHORT_MOST_REACHED);
            gathered.extend(summed_up(refused, SHORT_MOST_HOSTS));
        }
        let event = |(connection, count)| EventBody::NetworkConnection { connection, count };
        gathered.into_iter().map(event).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(Connection, u64)>> {
        self.connections.lock().expect("no code panics while it holds this lock")
    }
}

impl ConnectionLog for Gathering {
    fn connection(&self, mut connection: Connection) {
        let mut gathered = self.lock();
        if !is_reached(connection.verdict) {
            let refused = || gathered.iter().filter(|(other, _)| !is_reached(other.verdict));
            let is_known = refused().any(|(other, _)| is_same(other, &connection));
            if !is_known && refused().count() >= MOST_HOSTS {
                hide_host(&mut connection);
            }
        }
        add(&mut gathered, connection, 1);
        drop(gathered);
        self.arrived.notify_one();
    }
}

/// The first so many, and all others as one.
fn summed_up(all: Vec<(Connection, u64)>, most: usize) -> Vec<(Connection, u64)> {
    let mut all = all.into_iter();
    let mut kept: Vec<_> = all.by_ref().take(most).collect();
    for (mut connection, count) in all {
        hide_host(&mut connection);
        add(&mut kept, connection, count);
    }
    kept
}

fn hide_host(connection: &mut Connection) {
    connection.host = OTHERS.into();
    connection.port = 0;
}

/// Whether bytes of the job's can have gone there.
fn is_reached(verdict: Verdict) -> bool {
    match verdict {
        Verdict::Allowed | Verdict::CutByPolicy => true,
        Verdict::RefusedByPolicy
        | Verdict::RefusedPrivateAddress
        | Verdict::NotResolved
        | Verdict::NotConnected => false,
    }
}

fn add(gathered: &mut Vec<(Connection, u64)>, connection: Connection, times: u64) {
    match gathered.iter_mut().find(|(other, _)| is_same(other, &connection)) {
        Some((other, count)) => {
            other.bytes_out += connection.bytes_out;
            other.bytes_in += connection.bytes_in;
            *count += times;
        }
        None => gathered.push((connection, times)),
    }
}

fn is_same(one: &Connection, other: &Connection) -> bool {
    (&one.host, one.port, one.verdict) == (&other.host, other.port, other.verdict)
}

async fn write(gathering: Arc<Gathering>, log: JobLog, closing: CancellationToken) {
    let gather = async || {
        gathering.arrived.notified().await;
        tokio::time::sleep(match log.recording() {
            Recording::Full => GATHER,
            Recording::AsShown | Recording::Short => SHORT_GATHER,
        })
        .await;
    };
    while closing.run_until_cancelled(gather()).await.is_some() {
        let events = gathering.take(log.recording());
        if !events.is_empty() && log.append(events).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(host: String, verdict: Verdict) -> Connection {
        Connection { host, port: 443, verdict, bytes_out: 1, bytes_in: 0 }
    }

    #[test]
    fn what_was_reached_cannot_hide_in_a_flood_of_refusals() {
        for recording in [Recording::Full, Recording::Short] {
            let gathering = Gathering::default();
            for n in 0..500 {
                gathering.connection(to(format!("host{n}"), Verdict::RefusedByPolicy));
            }
            gathering.connection(to("taken.example".into(), Verdict::Allowed));
            let told = gathering.take(recording).into_iter().any(|event| {
                matches!(event, EventBody::NetworkConnection { connection, .. }
                    if connection.host == "taken.example" && connection.port == 443)
            });
            assert!(told, "{recording:?}");
        }
    }

    #[test]
    fn a_flood_of_connections_is_summed_up() {
        for (recording, most) in
            [(Recording::Full, MOST_HOSTS), (Recording::Short, SHORT_MOST_HOSTS)]
        {
            is_summed_up(recording, most);
        }
    }

    fn is_summed_up(recording: Recording, most: usize) {
        let gathering = Gathering::default();
        for n in 0..10_000u32 {
            gathering.connection(to(format!("host{}", n % 500), Verdict::RefusedByPolicy));
        }
        let events = gathering.take(recording);
        assert_eq!(events.len(), most + 1);
        let total: u64 = events
            .iter()
            .map(|event| match event {
                EventBody::NetworkConnection { count, .. } => *count,
                _ => 0,
            })
            .sum();
        assert_eq!(total, 10_000);
    }
}
