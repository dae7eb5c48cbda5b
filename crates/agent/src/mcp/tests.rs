//! A made-up server: which versions of the protocol are spoken, and what becomes of calls that it does not
//! answer.

use std::sync::{Arc, Mutex};

use super::*;

/// Says what it is asked, and which version was agreed on then.
#[derive(Default)]
struct MadeUp {
    version: &'static str,
    agreed: Mutex<Option<String>>,
    said: Mutex<Vec<String>>,
    /// How many calls it refuses because it does not know who calls.
    forgets: Mutex<u32>,
}

#[async_trait]
impl Peer for Arc<MadeUp> {
    async fn request(&self, id: u64, method: &str, params: Value) -> Result<Value, McpError> {
        let version = self.agreed.lock().unwrap().clone().unwrap_or_default();
        self.said.lock().unwrap().push(format!("{id} {method} {version}"));
        match method {
            "initialize" => Ok(json!({ "protocolVersion": self.version })),
            "tools/list" => Ok(json!({ "tools": [{ "name": "speak" }, { "name": "sleep" }] })),
            _ if params["name"] == "sleep" => std::future::pending().await,
            _ => {
                let mut forgets = self.forgets.lock().unwrap();
                if *forgets > 0 {
                    *forgets -= 1;
                    return Err(McpError::Forgotten);
                }
                Ok(json!({ "content": [{ "type": "text", "text": "spoken" }] }))
            }
        }
    }

    async fn notify(&self, method: &str, params: Value) -> Result<(), McpError> {
        self.said.lock().unwrap().push(format!("{method} {}", params["requestId"]));
        Ok(())
    }

    fn agree(&self, version: Option<&str>) {
        *self.agreed.lock().unwrap() = version.map(str::to_owned);
    }
}

/// All answers come at once, so this is only waited for where there is none.
const PATIENCE: Duration = Duration::from_millis(50);

async fn greet(version: &'static str) -> (Arc<MadeUp>, Result<Connected, McpError>) {
    let peer = Arc::new(MadeUp { version, ..MadeUp::default() });
    let greeted = Connected::greet("it", Box::new(peer.clone()), PATIENCE).await;
    peer.said.lock().unwrap().clear();
    (peer, greeted)
}

#[tokio::test]
async fn a_version_that_is_not_spoken_is_refused() {
    for version in SPOKEN {
        let (peer, greeted) = greet(version).await;
        assert!(greeted.is_ok(), "{version}");
        assert_eq!(peer.agreed.lock().unwrap().as_deref(), Some(version));
    }
    for version in ["", "2024-10-07", "2026-07-28", "1.0"] {
        let (_, greeted) = greet(version).await;
        let error = greeted.err().unwrap().to_string();
        assert!(error.contains(&format!("`{version}`")) && error.contains("2025-06-18"), "{error}");
    }
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_cancelled() {
    let (peer, server) = greet("2025-06-18").await;
    let server = server.ok().unwrap();
    let result = server.call("mcp__it__sleep", &json!({})).await.unwrap();
    assert!(result.failed && result.text.contains("did not answer"), "{}", result.text);
    assert_eq!(
        *peer.said.lock().unwrap(),
        ["3 tools/call 2025-06-18", "notifications/cancelled 3"]
    );
    assert!(server.call("mcp__it__other", &json!({})).await.is_none());
}

#[tokio::test]
async fn a_server_that_forgot_us_is_greeted_again() {
    let (peer, server) = greet("2025-03-26").await;
    let server = server.ok().unwrap();
    for (forgets, failed) in [(0, false), (1, false), (2, true)] {
        *peer.forgets.lock().unwrap() = forgets;
        let result = server.call("mcp__it__speak", &json!({})).await.unwrap();
        assert_eq!(result.failed, failed, "{forgets} {}", result.text);
    }
    let said = peer.said.lock().unwrap();
    // Nothing is agreed on with somebody who is greeted.
    assert_eq!(
        said[1..5],
        [
            "4 tools/call 2025-03-26",
            "5 initialize ",
            "notifications/initialized null",
            "6 tools/call 2025-03-26",
        ]
    );
}
