//! A sandbox's connections as events, gathered for a moment so that a program which connects a
//! thousand times costs a few events and not a thousand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellglass_protocol::event::EventBody;
use bellglass_protocol::network::Connection;
use bellglass_sandbox::egress::ConnectionLog;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::job_log::JobLog;
use crate::recording::Recording;

/// How long connections are gathered before they become events.
const GATHER: Duration = Duration::from_millis(200);

/// Different hosts in one gathering. What a hostile program adds beyond that is summed up.
const MOST_HOSTS: usize = 50;

/// The same once the job's records are short: longer gatherings, and of few hosts.
const SHORT_GATHER: Duration = Duration::from_secs(10);
const SHORT_MOST_HOSTS: usize = 3;

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

    /// Writes what is left. The sandbox must be gone, or more will come.
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
        if recording == Recording::Short && gathered.len() > SHORT_MOST_HOSTS {
            let rest = gathered.split_off(SHORT_MOST_HOSTS);
            rest.into_iter().for_each(|(mut connection, count)| {
                connection.host = OTHERS.into();
                connection.port = 0;
                add(&mut gathered, connection, count);
            });
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
        if gathered.len() >= MOST_HOSTS {
            let known = gathered.iter().any(|(other, _)| is_same(other, &connection));
            if !known {
                connection.host = OTHERS.into();
                connection.port = 0;
            }
        }
        add(&mut gathered, connection, 1);
        drop(gathered);
        self.arrived.notify_one();
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
            Recording::Short => SHORT_GATHER,
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
    use bellglass_protocol::network::Verdict;

    #[test]
    fn a_flood_of_connections_is_summed_up() {
        for (recording, most) in
            [(Recording::Full, MOST_HOSTS), (Recording::Short, SHORT_MOST_HOSTS)]
        {
            summed_up(recording, most);
        }
    }

    fn summed_up(recording: Recording, most: usize) {
        let gathering = Gathering::default();
        for n in 0..10_000u32 {
            gathering.connection(Connection {
                host: format!("host{}", n % 500),
                port: 443,
                verdict: Verdict::RefusedByPolicy,
                bytes_out: 1,
                bytes_in: 0,
            });
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
