//! The MCP servers of a job: those in its sandbox are spoken to through the guest, the others over
//! HTTP. What a server in the sandbox says is as hostile as the sandbox.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bellglass_agent::mcp::http::{HttpPeer, Reach};
use bellglass_agent::mcp::{Connected, MOST_MESSAGE, McpError, PATIENCE, Peer, answer_to, outcome};
use bellglass_agent::model::Secret;
use bellglass_protocol::event::{EventBody, JobError};
use bellglass_protocol::job::JobSpec;
use bellglass_protocol::mcp::McpServer;
use bellglass_protocol::step::OutputStream;
use bellglass_sandbox::client::{GuestClient, ServiceInput, ServiceOutput};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use crate::mcp_lines::Lines;

/// A server that the operator gives to every task.
#[derive(Clone, Debug)]
pub struct OperatorServer {
    pub server: McpServer,
    /// Sent with every request, where it is reached over HTTP.
    pub headers: BTreeMap<String, Secret>,
}

/// Greets all servers of a task. One that does not start is an error that names it.
pub(crate) async fn connect(
    operator: &BTreeMap<String, OperatorServer>,
    spec: &JobSpec,
    guest: &GuestClient,
) -> Result<(Vec<Connected>, Vec<EventBody>), JobError> {
    // A job's own server stands in the place of the operator's of the same name.
    let own =
        spec.mcp.iter().map(|(name, server)| (name, (server, BTreeMap::new(), Reach::PublicOnly)));
    let mut servers: BTreeMap<&String, (&McpServer, BTreeMap<String, Secret>, Reach)> = operator
        .iter()
        .map(|(name, given)| (name, (&given.server, given.headers.clone(), Reach::Anywhere)))
        .collect();
    servers.extend(own);
    let (mut connected, mut events) = (Vec::new(), Vec::new());
    for (name, (server, headers, reach)) in servers {
        let failed = |error: McpError| JobError {
            code: "mcp_failed".into(),
            message: format!("the MCP server `{name}` could not be used: {error}"),
        };
        let time = server.timeout.map_or(PATIENCE, |time| time.duration());
        let peer: Box<dyn Peer> = match &server.url {
            Some(url) => Box::new(HttpPeer::new(url, headers, reach).map_err(failed)?),
            None => Box::new(start(guest, server).await.map_err(failed)?),
        };
        let greeted = Connected::greet(name, peer, time).await.map_err(failed)?;
        let tools = greeted.definitions().map(|tool| tool.name.clone()).collect();
        events.push(EventBody::McpConnected { server: name.clone(), tools });
        connected.push(greeted);
    }
    Ok((connected, events))
}

/// A server in the sandbox.
struct SandboxPeer {
    input: Arc<tokio::sync::Mutex<ServiceInput>>,
    waiting: Arc<Mutex<Waiting>>,
    _listening: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct Waiting {
    answers: HashMap<u64, oneshot::Sender<Value>>,
    /// Why there will be no more answers.
    over: Option<McpError>,
    /// The end of what the program wrote beside its answers.
    said: Vec<u8>,
}

/// How much of a program's complaints is kept.
const MOST_SAID: usize = 2000;

/// How long a program may take to read what is sent to it.
const READING: Duration = Duration::from_secs(30);

/// How long the end of a program that reads no more is waited for.
const LAST_WORDS: Duration = Duration::from_secs(2);

async fn start(guest: &GuestClient, server: &McpServer) -> Result<SandboxPeer, McpError> {
    let started = guest.start_service(&server.command, &server.env).await;
    let service = started.map_err(|error| McpError::NotReached(error.to_string()))?;
    let input = Arc::new(tokio::sync::Mutex::new(service.input));
    let waiting = Arc::new(Mutex::new(Waiting::default()));
    let listening = tokio::spawn(listen(service.output, input.clone(), waiting.clone()));
    Ok(SandboxPeer { input, waiting, _listening: AbortOnDropHandle::new(listening) })
}

#[async_trait]
impl Peer for SandboxPeer {
    async fn request(&self, id: u64, method: &str, params: Value) -> Result<Value, McpError> {
        let (sender, answer) = oneshot::channel();
        {
            let mut waiting = lock(&self.waiting);
            if let Some(over) = &waiting.over {
                return Err(over.clone());
            }
            waiting.answers.insert(id, sender);
        }
        let _awaited = Awaited { id, waiting: &self.waiting };
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        if let Err(error) = send(&self.input, &message).await {
            // Why it reads no more is known in a moment, from its last words.
            let _ = tokio::time::timeout(LAST_WORDS, answer).await;
            return Err(lock(&self.waiting).over.clone().unwrap_or(error));
        }
        match answer.await {
            Ok(answer) => outcome(answer),
            Err(_) => {
                Err(lock(&self.waiting).over.clone().unwrap_or(McpError::Ended(String::new())))
            }
        }
    }

    async fn notify(&self, method: &str, params: Value) -> Result<(), McpError> {
        let message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        send(&self.input, &message).await
    }

    /// Messages on a line are the same in every version.
    fn agree(&self, _: Option<&str>) {}
}

/// An answer that is waited for. Whoever waits no longer is forgotten, and an answer that comes then is
/// nobody's.
struct Awaited<'a> {
    id: u64,
    waiting: &'a Mutex<Waiting>,
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        lock(self.waiting).answers.remove(&self.id);
    }
}

async fn send(input: &tokio::sync::Mutex<ServiceInput>, message: &Value) -> Result<(), McpError> {
    let line = format!("{message}\n");
    let sending = async { input.lock().await.write(line.as_bytes()).await };
    match tokio::time::timeout(READING, sending).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(McpError::Ended(error.to_string())),
        Err(_) => Err(McpError::Silent(READING)),
    }
}

/// Takes what the program writes, one message on each line, until it ends or breaks the rules.
async fn listen(
    mut output: ServiceOutput,
    input: Arc<tokio::sync::Mutex<ServiceInput>>,
    waiting: Arc<Mutex<Waiting>>,
) {
    let mut lines = Lines::up_to(MOST_MESSAGE);
    let over = loop {
        let piece = match output.read().await {
            Ok(Some((OutputStream::Stdout, piece))) => piece,
            Ok(Some((OutputStream::Stderr, piece))) => {
                lock(&waiting).hear(&piece);
                continue;
            }
            Ok(None) => break None,
            Err(error) => break Some(McpError::Ended(error.to_string())),
        };
        for message in lines.take(&piece) {
            take(message, &input, &waiting).await;
        }
        if lines.is_too_long() {
            break Some(McpError::Nonsense("a message is longer than 8 MiB".into()));
        }
    };
    let mut waiting = lock(&waiting);
    let said = String::from_utf8_lossy(&waiting.said).into_owned();
    waiting.over = Some(over.unwrap_or(McpError::Ended(said)));
    waiting.answers.clear();
}

async fn take(message: Value, input: &tokio::sync::Mutex<ServiceInput>, waiting: &Mutex<Waiting>) {
    if let Some(answer) = answer_to(&message) {
        // A server that asks and does not read has only itself to blame.
        let _ = send(input, &answer).await;
        return;
    }
    let asker = message["id"].as_u64().and_then(|id| lock(waiting).answers.remove(&id));
    if let Some(asker) = asker {
        let _ = asker.send(message);
    }
}

impl Waiting {
    fn hear(&mut self, piece: &[u8]) {
        self.said.extend_from_slice(&piece[piece.len().saturating_sub(MOST_SAID)..]);
        let excess = self.said.len().saturating_sub(MOST_SAID);
        self.said.drain(..excess);
    }
}

fn lock(waiting: &Mutex<Waiting>) -> std::sync::MutexGuard<'_, Waiting> {
    waiting.lock().expect("no code panics while it holds this lock")
}
