//! What waits for the user's word: calls of tools, and hosts that the policy does not allow.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::scripted::{Reply, Said, Scripted};
use crate::support::{Options, TestServer, bellglass, step, text};

fn server_with(model: &Scripted, config: &'static str) -> TestServer {
    let environment = vec![("OPENAI_BASE_URL", model.base_url())];
    TestServer::with(Options { config, environment, ..Options::default() })
}

fn shell(command: &str) -> Reply {
    Reply::Say(Said::call("shell", json!({ "command": command })))
}

async fn decide(server: &TestServer, job: &str, approval: &str, body: Value) -> u16 {
    let path = format!("/jobs/{job}/approvals/{approval}");
    server.post(&path, body.to_string()).await.status().as_u16()
}

#[tokio::test]
async fn named_tools_wait_for_approval() {
    let script = [shell("touch one"), shell("touch two"), Reply::Say(Said::finish("ok"))];
    let model = Scripted::start(script).await;
    let server = server_with(&model, "");
    let id = server.submit(&json!({ "task": "Touch.", "approve": ["shell"] })).await;
    let mut events = server.events(&id).await;
    let asked = events.until(|event| event["type"] == "approval.requested").await;
    assert_eq!(asked["approval"]["tool"]["name"], "shell");
    events.until(|event| event["type"] == "paused").await;
    let job = server.job(&id).await;
    assert_eq!((&job["status"], job["steps"].as_array().unwrap().len()), (&json!("paused"), 0));
    assert_eq!(job["approvals"][0]["id"], asked["approval"]["id"]);
    assert_eq!(decide(&server, &id, "other", json!({ "decision": "allow" })).await, 404);
    assert_eq!(decide(&server, &id, "other", json!({ "decision": "maybe" })).await, 422);
    let first = text(&asked["approval"], "id");
    assert_eq!(decide(&server, &id, first, json!({ "decision": "allow" })).await, 200);
    let asked = events.until(|event| event["type"] == "approval.requested").await;
    let refused = bellglass(server.folder())
        .args(["approve", &id, "--refuse", "--words", "one is enough", "--server"])
        .arg(server.url(""))
        .output()
        .unwrap();
    assert!(refused.status.success(), "{refused:?}");
    assert_ne!(asked["approval"]["id"], first);
    let job = server.wait_for_end(&id).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    assert_eq!(job["steps"].as_array().unwrap().len(), 1);
    let told = model.asked()[2].body["messages"].as_array().unwrap().last().unwrap().to_string();
    assert!(told.contains("one is enough"), "{told}");
}

#[tokio::test]
async fn a_host_outside_of_the_policy_waits_for_approval() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let answer = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\nhi\n";
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let fetch = format!(
        "curl -sS --noproxy '' http://{place}/; curl -s --noproxy '' http://127.0.0.1:1/ -o /dev/null -w '%{{http_code}}'"
    );
    let model = Scripted::start([shell(&fetch), Reply::Say(Said::finish("ok"))]).await;
    let server = server_with(&model, "[network]\nprivate_exceptions = [\"127.0.0.1\"]\n");
    let body = json!({ "task": "Fetch.", "network": "none", "approve": ["network"] });
    let id = server.submit(&body).await;
    let mut events = server.events(&id).await;
    for (host, decision) in [(place.to_string(), "allow"), ("127.0.0.1:1".into(), "refuse")] {
        let asked = events.until(|event| event["type"] == "approval.requested").await;
        assert_eq!(asked["approval"]["host"], host.as_str());
        let approval = text(&asked["approval"], "id");
        assert_eq!(decide(&server, &id, approval, json!({ "decision": decision })).await, 200);
    }
    let job = server.wait_for_end(&id).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    assert_eq!(step(&job, 1)["stdout"], "hi\n403", "{:#}", step(&job, 1));
    assert_eq!(job["approvals"], json!([]));
}
