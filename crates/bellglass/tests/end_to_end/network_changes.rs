//! What a job may reach is changed while it runs, and holds from then on.

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::https::{HttpsHost, TestAuthority};
use crate::support::{Options, TestServer, bellglass, python, shell, signal, step, wait_for_go};

async fn server_and_host() -> (TestServer, HttpsHost) {
    let authority = TestAuthority::new();
    let host = HttpsHost::start(&authority, None).await;
    let server = TestServer::with(Options {
        config: "[network]\nprivate_exceptions = [\"127.0.0.2\"]\n",
        environment: vec![authority.environment()],
        ..Options::default()
    });
    // What is trusted is read when a job first needs it, which is before the folder goes.
    std::mem::forget(authority);
    (server, host)
}

async fn change(server: &TestServer, job: &str, network: Value) -> (u16, Value) {
    let request = server.request(Method::PUT, &format!("/jobs/{job}/network"));
    let response = request.json(&json!({ "network": network })).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// The sandbox had no proxy at all, and the server is killed right after it was told.
#[tokio::test]
async fn a_job_without_network_is_given_one_and_keeps_it_through_a_crash() {
    let (mut server, host) = server_and_host().await;
    // The port opens when the worker has heard of the change.
    let fetch =
        format!("until curl -sS --fail -x 127.0.0.1:3128 {}/; do sleep 0.05; done", host.url());
    let steps = [wait_for_go(), shell(&fetch), shell(&format!("curl -sS {}/", host.url()))];
    let job = server.submit(&json!({ "steps": steps })).await;
    server.wait_for_step(&job, "step.output", 1).await;
    let allow = json!({ "allow": [host.place()] });
    let (status, answer) = change(&server, &job, allow.clone()).await;
    assert_eq!((status, &answer["network"]), (200, &allow), "{answer}");
    server.kill();
    server.start_again();
    server.let_go_under_successor(&job).await;
    let done = server.wait_for_end(&job).await;
    for n in [2, 3] {
        assert!(step(&done, n)["stdout"].as_str().unwrap().ends_with("hello\n"), "{done:#}");
    }
    assert_eq!(done["spec"]["network"], "none");
    assert_eq!(done["network"], allow);
    let event = server.wait_for(&job, "network.changed").await;
    assert_eq!((&event["network"], &event["by"]), (&allow, &json!("api")));
}

#[tokio::test]
async fn connections_that_a_new_policy_forbids_are_cut() {
    let (server, host) = server_and_host().await;
    let port = host.port;
    let hold = format!(
        "import socket\n\
         s = socket.create_connection(('127.0.0.1', 3128))\n\
         s.sendall(b'CONNECT 127.0.0.2:{port} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')\n\
         print(s.recv(100).split()[1].decode())\n\
         print('end' if s.recv(100) == b'' else 'data')"
    );
    let refused =
        format!("curl -sS -o /dev/null -w '%{{http_connect}}' {}/ 2>/dev/null", host.url());
    let body = json!({
        "network": { "allow": [host.place()] },
        "steps": [python(&hold), shell(&refused)],
    });
    let job = server.submit(&body).await;
    server.wait_for_step(&job, "step.output", 1).await;
    // By the command, as an operator would.
    let command = |policy: &[&str]| {
        let mut command = bellglass(server.folder());
        command.args(["network", &job]).args(policy).args(["--server", &server.url("")]);
        command.output().unwrap()
    };
    assert!(command(&["elsewhere.example", "*.example.com:443"]).status.success());
    let done = server.wait_for_end(&job).await;
    assert_eq!(step(&done, 1)["stdout"], "200\nend\n", "{:#}", step(&done, 1));
    assert_eq!(step(&done, 2)["stdout"], "403", "{:#}", step(&done, 2));
    assert_eq!(done["network"], json!({ "allow": ["elsewhere.example", "*.example.com:443"] }));
    let log = server.log(&job).await;
    assert!(log.contains("\"cut_by_policy\""), "{log}");
    // It is over now.
    assert_eq!(command(&["open"]).status.code(), Some(5));
    let (status, answer) = change(&server, &job, json!("open")).await;
    assert_eq!((status, &answer["code"]), (409, &json!("job_ended")));
}

#[tokio::test]
async fn mistakes_in_a_change_are_named() {
    let server = TestServer::start();
    let job = server.submit(&json!({ "steps": [wait_for_go()] })).await;
    for (body, status, code) in [
        (json!({ "network": "all" }), 422, "invalid_request"),
        (json!({ "network": { "allow": ["a b"] } }), 422, "invalid_request"),
        (json!({ "policy": "none" }), 422, "invalid_request"),
        (json!(["none"]), 422, "invalid_request"),
    ] {
        let request = server.request(Method::PUT, &format!("/jobs/{job}/network"));
        let response = request.json(&body).send().await.unwrap();
        assert_eq!(response.status(), status, "{body}");
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["code"], code, "{body}");
    }
    let nowhere = bellglass_protocol::id::JobId::generate().to_string();
    let (status, answer) = change(&server, &nowhere, json!("none")).await;
    assert_eq!((status, &answer["code"]), (404, &json!("job_not_found")));
    server.cancel(&job).await;
}

/// The operator's own part of the policy, read again at SIGHUP, also holds for jobs that run.
#[tokio::test]
async fn the_configuration_is_read_again_at_a_signal() {
    let (server, host) = server_and_host().await;
    let refused =
        format!("curl -sS -o /dev/null -w '%{{http_connect}}' {}/ 2>/dev/null", host.url());
    let fetch = format!("until curl -sS --fail {}/; do sleep 0.05; done", host.url());
    let steps = [shell(&refused), wait_for_go(), shell(&fetch)];
    let job = server.submit(&json!({ "network": "registries", "steps": steps })).await;
    server.wait_for_step(&job, "step.output", 2).await;
    let config = format!(
        "[network]\nprivate_exceptions = [\"127.0.0.2\"]\nregistries = [\"{}\"]\n",
        host.place()
    );
    std::fs::write(server.folder().join("bellglass.toml"), config).unwrap();
    signal(server.pid(), Signal::HUP);
    server.let_go(&job).await;
    let done = server.wait_for_end(&job).await;
    assert_eq!(step(&done, 1)["stdout"], "403", "{:#}", step(&done, 1));
    assert!(
        step(&done, 3)["stdout"].as_str().unwrap().ends_with("hello\n"),
        "{:#}",
        step(&done, 3)
    );
}
