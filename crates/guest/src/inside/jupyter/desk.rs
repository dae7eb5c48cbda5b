//! Where JupyterLab asks for kernels: a socket that takes one wish, and says how to connect.

use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::wire::Language;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::inside::{Guest, kernel};

/// The longest wish, and how long one may take to come.
const LONGEST_WISH: u64 = 4 << 10;
const WISHING: Duration = Duration::from_secs(10);
/// Between two tries to accept when there are no descriptors left.
const RECOVERING: Duration = Duration::from_millis(20);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    /// As the notebook names it.
    kernel: Kernel,
    wish: Wish,
}

#[derive(Clone, Copy, Deserialize)]
enum Kernel {
    #[serde(rename = "python3")]
    Python,
    #[serde(rename = "deno")]
    Deno,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Wish {
    Attach,
    Restart,
}

/// Serves until the sandbox ends.
pub(super) async fn serve(guest: Arc<Guest>, listener: UnixListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => drop(tokio::spawn(answer(guest.clone(), stream))),
            Err(_) => tokio::time::sleep(RECOVERING).await,
        }
    }
}

async fn answer(guest: Arc<Guest>, mut stream: UnixStream) {
    let (reading, mut writing) = stream.split();
    let mut line = String::new();
    let mut reading = BufReader::new(reading.take(LONGEST_WISH));
    let Ok(Ok(_)) = timeout(WISHING, reading.read_line(&mut line)).await else { return };
    let mut reply = fulfil(&guest, &line).await.to_string();
    reply.push('\n');
    // Whoever went away needs no answer.
    let _ = writing.write_all(reply.as_bytes()).await;
}

async fn fulfil(guest: &Arc<Guest>, line: &str) -> Value {
    let request: Request = match serde_json::from_str(line) {
        Ok(request) => request,
        Err(error) => return json!({ "error": format!("a wish that cannot be read: {error}") }),
    };
    let language = match request.kernel {
        Kernel::Python => Language::Python,
        Kernel::Deno => Language::TypeScript,
    };
    let connection = match request.wish {
        Wish::Attach => kernel::attach(guest, language).await,
        Wish::Restart => kernel::begin_anew(guest, language).await,
    };
    connection.unwrap_or_else(|error| json!({ "error": error.message }))
}
