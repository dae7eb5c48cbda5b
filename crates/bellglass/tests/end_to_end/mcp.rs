//! MCP both ways: servers whose tools a task's model uses, and a sandbox as a server for others.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::scripted::{Reply, Said, Scripted};
use crate::support::{Options, TestServer, archive, bellglass, text};

/// A small MCP server for standard input and output.
const STDIO_SERVER: &str = r#"
import json, os, sys
print("hello, people", flush=True)
def send(message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n"); sys.stdout.flush()
for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method == "initialize":
        send({"id": "q", "method": "ping"})
        send({"id": id, "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "t", "version": "1"}}})
    elif method == "tools/list" and not message["params"].get("cursor"):
        schema = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
        send({"id": id, "result": {"tools": [{"name": "shout", "description": "Shouts.", "inputSchema": schema}], "nextCursor": "2"}})
    elif method == "tools/list":
        send({"id": id, "result": {"tools": [{"name": "sleep"}, {"name": "flood"}]}})
    elif method == "tools/call":
        name, arguments = message["params"]["name"], message["params"].get("arguments", {})
        if name == "shout":
            text = arguments["word"].upper() + " in " + os.getcwd() + " " + os.environ.get("MOOD", "")
            send({"id": id, "result": {"content": [{"type": "text", "text": text}]}})
        elif name == "flood":
            send({"id": id, "result": {"content": [{"type": "text", "text": "x" * 600000}]}})
        called = id
    elif method == "notifications/cancelled":
        with open("cancelled.txt", "w") as file: file.write(str(message["params"]["requestId"] == called))
"#;

/// A PNG of one dot.
const PICTURE: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

fn server_with(model: &Scripted, config: &str) -> TestServer {
    TestServer::with(Options {
        config: config.to_owned().leak(),
        environment: vec![("OPENAI_BASE_URL", model.base_url())],
        ..Options::default()
    })
}

fn say(name: &str, arguments: Value) -> Reply {
    Reply::Say(Said::call(name, arguments))
}

async fn answers(server: &TestServer, job: &Value) -> Vec<Value> {
    let log = server.log(text(job, "job_id")).await;
    let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["type"] == "tool.answered").collect()
}

#[tokio::test]
async fn a_server_in_the_sandbox_offers_its_tools() {
    let model = Scripted::start([
        say("mcp__tools__shout", json!({ "word": "hi" })),
        say("mcp__tools__flood", json!({})),
        say("mcp__tools__sleep", json!({})),
        say("mcp__tools__shout", json!({ "word": "still here" })),
        Reply::Say(Said::finish("ok")),
    ])
    .await;
    let server = server_with(&model, "");
    let job = server
        .run(&json!({
            "task": "Shout.",
            "files": [{ "path": "server.py", "content": STDIO_SERVER }],
            "mcp": { "tools": {
                "command": ["python3", "server.py"], "env": { "MOOD": "gladly" }, "timeout": 5,
            } },
        }))
        .await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    let answers = answers(&server, &job).await;
    assert_eq!(answers[0]["output"], "HI in /workspace gladly");
    assert!(text(&answers[1], "output").len() < 300_000);
    assert_eq!(answers[2]["failed"], true);
    assert!(text(&answers[2], "output").contains("did not answer in 5 s"), "{:#}", answers[2]);
    // The server heard that the call is not waited for, and goes on with others.
    assert!(text(&answers[3], "output").starts_with("STILL HERE"), "{:#}", answers[3]);
    let mut result = server.archive(text(&job, "job_id")).await;
    assert_eq!(archive::text(&mut result, "cancelled.txt"), "True");
    let asked = &model.asked()[0].body;
    let tools: Vec<&str> = asked["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| text(&tool["function"], "name"))
        .collect();
    assert!(tools.ends_with(&["mcp__tools__shout", "mcp__tools__sleep", "mcp__tools__flood"]));
    let connected = server.wait_for(text(&job, "job_id"), "mcp.connected").await;
    assert_eq!(connected["tools"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_server_that_does_not_start_ends_the_task_and_says_why() {
    let model = Scripted::start([]).await;
    let server = server_with(&model, "");
    for (mcp, part) in [
        (json!({ "command": ["sh", "-c", "echo out of order >&2; exit 3"] }), "out of order"),
        (json!({ "command": ["no-such-program"] }), "no-such-program"),
        (json!({ "command": ["sleep", "100"], "timeout": 1 }), "did not answer in 1 s"),
        (json!({ "url": "http://127.0.0.1:9/mcp" }), "not a public address"),
    ] {
        let job = server.run(&json!({ "task": "x", "mcp": { "broken": mcp } })).await;
        assert_eq!(job["error"]["code"], "mcp_failed", "{job:#}");
        let message = text(&job["error"], "message");
        assert!(message.contains("`broken`") && message.contains(part), "{message}");
    }
    assert_eq!(model.asked().len(), 0);
}

/// Our own door as a server over HTTP, for a task of the same installation.
#[tokio::test]
async fn a_server_over_http_offers_its_tools() {
    let model = Scripted::start([
        say("mcp__other__write_file", json!({ "path": "there.txt", "content": "from afar\n" })),
        say("mcp__other__shell", json!({ "command": "cat there.txt; exit 4" })),
        Reply::Say(Said::finish("ok")),
    ])
    .await;
    let other = TestServer::start();
    let session = other.submit(&json!({ "session": {} })).await;
    other.wait_for(&session, "sandbox.ready").await;
    let config = format!("[mcp.other]\nurl = \"{}\"\n", other.url(&format!("/jobs/{session}/mcp")));
    let server = server_with(&model, &config);
    let job = server.run(&json!({ "task": "Work afar." })).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    let answers = answers(&server, &job).await;
    assert_eq!(answers[0]["failed"], false);
    assert_eq!(answers[1]["failed"], true);
    assert!(text(&answers[1], "output").starts_with("from afar\n"), "{:#}", answers[1]);
    other.cancel(&session).await;
    let ended = other.wait_for_end(&session).await;
    assert_eq!(ended["status"], "cancelled");
    let mut result = other.archive(&session).await;
    assert_eq!(archive::text(&mut result, "there.txt"), "from afar\n");
    let log = other.log(&session).await;
    assert_eq!(log.matches("\"tool.used\"").count(), 2);
    // A door that is closed says so.
    let late = other
        .post(&format!("/jobs/{session}/mcp"), r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#)
        .await;
    assert_eq!(late.status(), 409);
}

#[tokio::test]
async fn any_client_gets_a_sandbox_on_standard_input_and_output() {
    let folder = tempfile::tempdir().unwrap();
    let zip = folder.path().join("out.zip");
    let mut process = bellglass(folder.path())
        .args(["mcp", "--network", "none", "--output"])
        .arg(&zip)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = process.stdin.take().unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut ask = |id: u32, method: &str, params: Value| -> Value {
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        writeln!(input, "{message}").unwrap();
        let answer: Value = serde_json::from_str(&output.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer["id"], id);
        answer
    };
    let welcome = ask(1, "initialize", json!({ "protocolVersion": "2025-06-18" }));
    assert_eq!(welcome["result"]["protocolVersion"], "2025-06-18");
    let tools = ask(2, "tools/list", json!({}));
    let names: Vec<&str> = tools["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| text(tool, "name"))
        .collect();
    assert!(names.contains(&"shell") && !names.contains(&"finish"), "{names:?}");
    let command = json!({ "name": "shell", "arguments": { "command": "echo made > it; id -un" } });
    let called = ask(3, "tools/call", command);
    assert_eq!(called["result"]["content"][0]["text"], "agent\n");
    let wrong = ask(4, "tools/call", json!({ "name": "shell", "arguments": { "x": 1 } }));
    assert_eq!(wrong["result"]["isError"], true);
    let draw = format!("echo {PICTURE} | base64 -d > dot.png");
    ask(5, "tools/call", json!({ "name": "shell", "arguments": { "command": draw } }));
    let seen =
        ask(6, "tools/call", json!({ "name": "read_file", "arguments": { "path": "dot.png" } }));
    let picture = json!({ "type": "image", "mimeType": "image/png", "data": PICTURE });
    assert_eq!(seen["result"]["content"][1], picture, "{seen:#}");
    drop(input);
    assert!(process.wait().unwrap().success());
    let file = std::fs::read(&zip).unwrap();
    let mut result = zip::ZipArchive::new(std::io::Cursor::new(bytes::Bytes::from(file))).unwrap();
    assert_eq!(archive::text(&mut result, "it"), "made\n");
}
