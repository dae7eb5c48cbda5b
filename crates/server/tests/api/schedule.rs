//! Accepting jobs, and refusing what cannot be accepted without leaving anything behind.

use axum::body::{Body, Bytes};
use axum::http::{Method, StatusCode};
use bellglass_protocol::quantity::ByteSize;
use bellglass_server::ServerSettings;
use futures::stream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::connection::listen;
use crate::harness::{HELLO, Harness, request};

/// The body of the documented curl example, as the shell hands it over.
const README_STEPS: &str = r#"{"steps":[{"tool":"shell","command":"ls -la /app"},{"tool":"python","code":"with open(\"hello.txt\", \"w\") as f: f.write(\"Hello from the agent!\")"},{"tool":"shell","command":"cat hello.txt"}]}"#;

#[tokio::test]
async fn the_documented_steps_are_accepted() {
    let server = Harness::new().await;
    for path in ["/schedule", "/submit"] {
        let answer = server.post(path, README_STEPS).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED);
        let body = answer.json();
        let job = body["job_id"].as_str().unwrap();
        assert_eq!(body["task_id"], job);
        assert_eq!(body["status"], "scheduled");
        assert_eq!(body["status_url"], format!("/status/{job}"));
        assert_eq!(body["events_url"], format!("/jobs/{job}/events"));
        assert_eq!(body["logs_url"], format!("/jobs/{job}/events?format=jsonl"));
        assert_eq!(body["download_url"], format!("/jobs/{job}/output.zip"));
        assert_eq!(body["jupyter_url"], format!("/jobs/{job}/jupyter/"));
        assert!(body.as_object().unwrap()["vnc_port"].is_null());
        assert_eq!(answer.header("location"), format!("/jobs/{job}"));
    }
    assert_eq!(server.job_count().await, 2);
}

#[tokio::test]
async fn a_task_without_a_model_says_how_to_configure_one() {
    let server = Harness::new().await;
    let answer = server.post("/schedule", r#"{"task":"Build me a todo app in React"}"#).await;
    assert_eq!(answer.problem(), (422, "no_model_configured".into()));
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("OPENAI_API_KEY") && detail.contains("bellglass.toml"), "{detail}");
    assert_eq!(server.job_count().await, 0);
}

#[tokio::test]
async fn each_mistake_has_its_code_and_enqueues_nothing() {
    let server = Harness::new().await;
    for (body, status, code) in [
        ("", 400, "invalid_json"),
        ("{", 400, "invalid_json"),
        ("\u{0}", 400, "invalid_json"),
        ("nonsense", 400, "invalid_json"),
        ("[]", 422, "invalid_request"),
        ("null", 422, "invalid_request"),
        ("{}", 422, "no_work"),
        (r#"{"task":"x","steps":[]}"#, 422, "ambiguous_work"),
        (r#"{"task":""}"#, 422, "invalid_request"),
        (r#"{"task":" \n "}"#, 422, "invalid_request"),
        (r#"{"prompt":"build"}"#, 422, "no_model_configured"),
        (r#"{"task":7}"#, 422, "invalid_request"),
        (r#"{"steps":[]}"#, 422, "invalid_request"),
        (r#"{"steps":"ls"}"#, 422, "invalid_request"),
        (r#"{"steps":[{"tool":"shell","command":"ls"}],"colour":"red"}"#, 422, "invalid_request"),
        (r#"{"steps":[{"tool":"shell","command":"ls","sudo":1}]}"#, 422, "invalid_request"),
        (r#"{"steps":[{"tool":"teleport"}]}"#, 422, "unknown_tool"),
        (r#"{"steps":[{"tool":"shell","command":"ls"}],"desktop":true}"#, 422, "image_not_found"),
        (
            r#"{"steps":[{"tool":"shell","command":"ls"}],"desktop":{"width":9,"height":800}}"#,
            422,
            "invalid_request",
        ),
        (r#"{"steps":[{"tool":"shell","command":"ls"}],"image":"other"}"#, 422, "image_not_found"),
        (r#"{"steps":[{"tool":"shell","command":"ls"}],"image":"../x"}"#, 422, "invalid_request"),
    ] {
        let answer = server.post("/schedule", body).await;
        assert_eq!(answer.problem(), (status, code.into()), "{body}");
    }
    let answer = server.post("/schedule", vec![0xff, 0xfe]).await;
    assert_eq!(answer.problem(), (400, "invalid_json".into()));
    assert_eq!(server.job_count().await, 0);
}

#[tokio::test]
async fn an_error_says_where_it_is_and_what_to_do() {
    let server = Harness::new().await;
    let body = r#"{"steps":[{"tool":"shell","command":" "}]}"#;
    let problem = server.post("/schedule", body).await.json();
    assert_eq!(problem["pointer"], "steps[0].command");
    let body = r#"{"steps":[{"tool":"shell","command":"ls"}],"image":"other"}"#;
    let problem = server.post("/schedule", body).await.json();
    assert!(problem["hint"].as_str().unwrap().contains("bellglass image build --recipe"));
    let long = format!(r#"{{"{}":1}}"#, "x".repeat(100_000));
    let answer = server.post("/schedule", long).await;
    assert_eq!(answer.problem(), (422, "invalid_request".into()));
    assert!(answer.body.len() < 5_000, "{}", answer.body.len());
}

#[tokio::test]
async fn only_json_is_taken() {
    let server = Harness::new().await;
    for (content_type, accepted) in [
        (Some("application/json"), true),
        (Some("Application/JSON; charset=utf-8"), true),
        (Some("application/vnd.bellglass+json"), true),
        (Some("application/x-www-form-urlencoded"), false),
        (Some("text/plain"), false),
        (Some("multipart/form-data; boundary=x"), false),
        (None, false),
    ] {
        let mut builder = request(Method::POST, "/schedule");
        if let Some(content_type) = content_type {
            builder = builder.header("content-type", content_type);
        }
        let answer = server.send(builder.body(Body::from(HELLO)).unwrap()).await;
        if accepted {
            assert_eq!(answer.status, StatusCode::ACCEPTED, "{content_type:?}");
        } else {
            assert_eq!(answer.problem(), (415, "unsupported_media_type".into()));
            let hint = answer.json()["hint"].as_str().unwrap().to_owned();
            assert!(hint.contains(r#"-H "Content-Type: application/json""#), "{hint}");
        }
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_with_and_without_a_declared_length() {
    let settings = ServerSettings { body_limit: ByteSize::kib(64), ..ServerSettings::default() };
    let server = Harness::with(settings).await;
    let large = format!(r#"{{"task":"{}"}}"#, "x".repeat(100_000));
    let declared = request(Method::POST, "/schedule")
        .header("content-type", "application/json")
        .header("content-length", large.len())
        .body(Body::from(large.clone()))
        .unwrap();
    assert_eq!(server.send(declared).await.problem(), (413, "body_too_large".into()));
    let pieces: Vec<Result<Bytes, std::io::Error>> =
        large.as_bytes().chunks(1000).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    let answer = server.post("/schedule", Body::from_stream(stream::iter(pieces))).await;
    assert_eq!(answer.problem(), (413, "body_too_large".into()));
    assert_eq!(server.job_count().await, 0);
}

#[tokio::test]
async fn a_large_body_within_the_limit_is_accepted() {
    let server = Harness::new().await;
    let content = "x".repeat(2 << 20);
    let body = format!(
        r#"{{"steps":[{{"tool":"shell","command":"ls"}}],"files":[{{"path":"a","content":"{content}"}}]}}"#
    );
    assert_eq!(server.post("/schedule", body).await.status, StatusCode::ACCEPTED);
}

#[tokio::test]
async fn a_client_that_sends_without_listening_still_reads_the_refusal() {
    let settings = ServerSettings { body_limit: ByteSize::kib(64), ..ServerSettings::default() };
    let server = Harness::with(settings).await;
    let listening = listen(&server).await;
    let mut stream = TcpStream::connect(listening.address).await.unwrap();
    let body = vec![b' '; 20 << 20];
    let head = format!(
        "POST /schedule HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&body).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    assert!(answer.contains("body_too_large"));
}

#[tokio::test]
async fn a_panic_is_answered_like_any_other_failure() {
    let server = Harness::new().await;
    let body = r#"{"steps":[{"tool":"shell","command":"ls"}],"image":"panic"}"#;
    let answer = server.post("/schedule", body).await;
    assert_eq!(answer.problem(), (500, "internal".into()));
    assert_eq!(answer.header("x-content-type-options"), "nosniff");
}
