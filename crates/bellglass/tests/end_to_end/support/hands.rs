//! The tools of a sandbox, used one by one: for tests that must see one answer before the next call.

use bellglass_protocol::step::decode_base64;
use serde_json::{Value, json};

use super::{TestServer, wait_for_go};

/// A job that waits, and whose tools are used from outside as any MCP client does.
pub(crate) struct Hands<'a> {
    server: &'a TestServer,
    pub(crate) job: String,
}

/// What a call came to.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) text: String,
    pub(crate) failed: bool,
    pub(crate) pictures: Vec<Vec<u8>>,
}

impl<'a> Hands<'a> {
    /// Starts a job with these fields. Its desktop, if it has one, is there when this returns.
    pub(crate) async fn start(server: &'a TestServer, mut fields: Value) -> Self {
        fields["steps"] = json!([wait_for_go()]);
        let job = server.submit(&fields).await;
        server.wait_for_step(&job, "step.started", 1).await;
        Self { server, job }
    }

    /// Uses the tools of a job that does something else meanwhile.
    pub(crate) fn beside(server: &'a TestServer, job: &str) -> Self {
        Self { server, job: job.to_owned() }
    }

    /// Uses a tool, whatever comes of it.
    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Answered {
        let message = json!({
            "jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": { "name": tool, "arguments": arguments },
        });
        let path = format!("/jobs/{}/mcp", self.job);
        let answer = self.server.post(&path, message.to_string()).await;
        assert_eq!(answer.status(), 200, "{message}");
        let answer: Value = answer.json().await.unwrap();
        let result = &answer["result"];
        let content = result["content"].as_array().unwrap_or_else(|| panic!("{answer:#}"));
        let pictures = content.iter().filter(|part| part["type"] == "image");
        let picture = |part: &Value| decode_base64(part["data"].as_str().unwrap()).unwrap();
        Answered {
            text: content[0]["text"].as_str().unwrap().to_owned(),
            failed: result["isError"].as_bool().unwrap(),
            pictures: pictures.map(picture).collect(),
        }
    }

    /// Uses a tool, which must succeed, and returns what it says.
    pub(crate) async fn succeed(&self, tool: &str, arguments: Value) -> String {
        let answered = self.call(tool, arguments.clone()).await;
        assert!(!answered.failed, "{tool} {arguments}: {}", answered.text);
        answered.text
    }

    pub(crate) async fn shell(&self, command: &str) -> String {
        self.succeed("shell", json!({ "command": command, "timeout": 120 })).await
    }

    pub(crate) async fn computer(&self, action: &str, more: Value) -> String {
        self.succeed("computer", with_action(action, more)).await
    }

    pub(crate) async fn browser(&self, action: &str, more: Value) -> String {
        self.succeed("browser", with_action(action, more)).await
    }

    /// Runs a script in the page that the browser shows.
    pub(crate) async fn script(&self, text: &str) -> String {
        self.browser("script", json!({ "text": text })).await
    }

    /// Waits until the screen stands still.
    pub(crate) async fn still(&self) {
        self.computer("wait_for_stability", json!({ "timeout": 60 })).await;
    }

    /// Lets the job go to its end, and returns it.
    pub(crate) async fn end(self) -> Value {
        self.server.let_go(&self.job).await;
        self.server.wait_for_end(&self.job).await
    }
}

pub(crate) fn with_action(action: &str, more: Value) -> Value {
    let mut call = json!({ "action": action });
    for (field, value) in more.as_object().unwrap() {
        call[field] = value.clone();
    }
    call
}

/// Width and height as a PNG's header says.
pub(crate) fn size_of(picture: &[u8]) -> (u32, u32) {
    assert!(picture.starts_with(b"\x89PNG\r\n\x1a\n"));
    let number = |at: usize| u32::from_be_bytes(picture[at..at + 4].try_into().unwrap());
    (number(16), number(20))
}
