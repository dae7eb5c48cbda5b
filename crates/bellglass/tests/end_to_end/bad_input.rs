//! Whatever a client sends: a problem document with a stable code, and never half a job.

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::support::{Options, TestServer, text};

async fn assert_problem(response: Response, status: u16, code: &str, what: &str) {
    let what: String = what.chars().take(200).collect();
    assert_eq!(response.status(), status, "{what}");
    assert_eq!(response.headers()["content-type"], "application/problem+json", "{what}");
    let problem: Value = response.json().await.unwrap();
    assert_eq!(text(&problem, "code"), code, "{what}: {problem:#}");
    assert_eq!(problem["status"], status);
    for field in ["type", "title", "detail"] {
        assert!(!text(&problem, field).is_empty(), "{what}: {problem:#}");
    }
    assert!(text(&problem, "detail").len() < 2000, "{what}: the answer is short");
}

async fn assert_no_jobs(server: &TestServer) {
    assert_eq!(server.json("/jobs").await["jobs"], json!([]));
    assert_eq!(server.json("/readyz").await["ready"], true);
}

#[tokio::test]
async fn documents_that_are_no_json() {
    let server = TestServer::start();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let deep_field = format!("{{\"steps\":{}1{}}}", "{\"a\":".repeat(5000), "}".repeat(5000));
    let bodies: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"   \n".to_vec(),
        b"not json".to_vec(),
        b"{".to_vec(),
        b"{\"task\":\"x\"".to_vec(),
        b"{\"task\":\"x\"} more".to_vec(),
        b"{'task':'x'}".to_vec(),
        b"{\"task\":\"\xff\xfe\"}".to_vec(),
        b"{\"task\":\"\\ud800\"}".to_vec(),
        b"{\"task\":\"\\udc00\\ud800\"}".to_vec(),
        b"{\"task\":\"line\nbreak\"}".to_vec(),
        b"{\"steps\":[{\"tool\":\"shell\",\"command\":\"ls\"}],\"priority\":1e999}".to_vec(),
        b"{\"steps\":[{\"tool\":\"shell\",\"command\":\"ls\"}],\"priority\":NaN}".to_vec(),
        b"\xef\xbb\xbf{}".to_vec(),
        b"\0\0\0\0".to_vec(),
    ];
    for body in bodies {
        let what = String::from_utf8_lossy(&body).into_owned();
        for path in ["/schedule", "/submit"] {
            let response = server.post(path, body.clone()).await;
            assert_problem(response, 400, "invalid_json", &what).await;
        }
    }
    // These are JSON, but nothing that could be a job.
    for body in [deep, deep_field] {
        let response = server.post("/schedule", body).await;
        assert_problem(response, 422, "invalid_request", "a deep document").await;
    }
    assert_no_jobs(&server).await;
}

#[tokio::test]
async fn jobs_that_cannot_be_accepted() {
    let server = TestServer::start();
    let steps = |step: &str| format!("{{\"steps\":[{step}]}}");
    let with = |field: &str| {
        format!("{{\"steps\":[{{\"tool\":\"shell\",\"command\":\"true\"}}],{field}}}")
    };
    let many = vec!["{\"tool\":\"shell\",\"command\":\"true\"}"; 10_001].join(",");
    let cases: Vec<(String, &str)> = vec![
        ("{}".into(), "no_work"),
        ("[]".into(), "invalid_request"),
        ("null".into(), "invalid_request"),
        ("7".into(), "invalid_request"),
        ("\"task\"".into(), "invalid_request"),
        ("{\"task\":\"\"}".into(), "invalid_request"),
        ("{\"task\":\"  \\n\"}".into(), "invalid_request"),
        ("{\"prompt\":\"\"}".into(), "invalid_request"),
        ("{\"task\":5}".into(), "invalid_request"),
        ("{\"task\":\"a\",\"prompt\":\"b\"}".into(), "ambiguous_work"),
        ("{\"task\":\"a\",\"steps\":[]}".into(), "ambiguous_work"),
        ("{\"task\":\"a\",\"sudo\":true}".into(), "invalid_request"),
        ("{\"steps\":[]}".into(), "invalid_request"),
        ("{\"steps\":{}}".into(), "invalid_request"),
        ("{\"steps\":\"ls\"}".into(), "invalid_request"),
        (steps("null"), "invalid_request"),
        (steps("[]"), "invalid_request"),
        (steps("\"ls\""), "invalid_request"),
        (steps("{}"), "invalid_request"),
        (steps("{\"command\":\"ls\"}"), "invalid_request"),
        (steps("{\"tool\":7}"), "invalid_request"),
        (steps("{\"tool\":\"teleport\"}"), "unknown_tool"),
        (steps("{\"tool\":\"SHELL\",\"command\":\"ls\"}"), "unknown_tool"),
        (steps("{\"tool\":\"shell\"}"), "invalid_request"),
        (steps("{\"tool\":\"shell\",\"command\":\"\"}"), "invalid_request"),
        (steps("{\"tool\":\"shell\",\"command\":7}"), "invalid_request"),
        (steps("{\"tool\":\"shell\",\"command\":\"a\\u0000b\"}"), "invalid_request"),
        (steps("{\"tool\":\"python\",\"code\":\"a\\u0000b\"}"), "invalid_request"),
        (steps("{\"tool\":\"shell\",\"command\":\"ls\",\"sudo\":1}"), "invalid_request"),
        (steps("{\"tool\":\"shell\",\"command\":\"ls\",\"timeout\":-1}"), "invalid_request"),
        (steps("{\"tool\":\"shell\",\"command\":\"ls\",\"timeout\":1e300}"), "invalid_request"),
        (steps("{\"tool\":\"shell\",\"command\":\"ls\",\"env\":[]}"), "invalid_request"),
        (steps("{\"tool\":\"shell\",\"command\":\"ls\",\"env\":{\"A\":1}}"), "invalid_request"),
        (steps("{\"tool\":\"read_file\",\"path\":\"a\",\"offset\":-1}"), "invalid_request"),
        (steps(&many), "invalid_request"),
        (with("\"priority\":101"), "invalid_request"),
        (with("\"priority\":99999999999999999999999999"), "invalid_request"),
        (with("\"priority\":1.5"), "invalid_request"),
        (with("\"name\":\"\""), "invalid_request"),
        (with("\"name\":\"a\\u0007b\""), "invalid_request"),
        (with("\"name\":\"a\\u0000b\""), "invalid_request"),
        (with("\"on_error\":\"panic\""), "invalid_request"),
        (with("\"image\":\"../../etc\""), "invalid_request"),
        (with("\"image\":\"nope\""), "image_not_found"),
        (with("\"limits\":[]"), "invalid_request"),
        (with("\"limits\":{\"memory\":\"much\"}"), "invalid_request"),
        (with("\"limits\":{\"memory\":1}"), "invalid_request"),
        (with("\"limits\":{\"memory\":\"9999GiB\"}"), "invalid_request"),
        (with("\"limits\":{\"cpus\":-1}"), "invalid_request"),
        (with("\"limits\":{\"cpus\":1e300}"), "invalid_request"),
        (with("\"limits\":{\"time\":0}"), "invalid_request"),
        (with("\"limits\":{\"processes\":99999999999}"), "invalid_request"),
        (with("\"limits\":{\"luck\":1}"), "invalid_request"),
        (with("\"files\":[{\"path\":\"../x\",\"content\":\"\"}]"), "invalid_request"),
        (with("\"files\":[{\"path\":\"/etc/x\",\"content\":\"\"}]"), "invalid_request"),
        (with("\"files\":[{\"path\":\"a\\u0000\",\"content\":\"\"}]"), "invalid_request"),
        (
            with("\"files\":[{\"path\":\"x\",\"content\":\"*\",\"encoding\":\"base64\"}]"),
            "invalid_request",
        ),
        (with("\"files\":[{\"path\":\"x\"}]"), "invalid_request"),
        (with("\"files\":[[\"x\",\"y\"]]"), "invalid_request"),
        (with("\"isolation\":\"microvm\""), "not_available"),
        (with("\"isolation\":\"none\""), "invalid_request"),
        (with("\"network\":\"everything\""), "invalid_request"),
        (with("\"network\":{\"allow\":[\"*\"]}"), "invalid_request"),
        (with("\"desktop\":{\"width\":1,\"height\":1}"), "invalid_request"),
        (with("\"webhook\":\"http://127.0.0.1:1/\""), "not_available"),
        (format!("{{\"{}\":1}}", "x".repeat(100_000)), "invalid_request"),
        (steps(&format!("{{\"tool\":\"{}\"}}", "x".repeat(100_000))), "unknown_tool"),
    ];
    for (body, code) in cases {
        let response = server.post("/schedule", body.clone()).await;
        assert_problem(response, 422, code, &body).await;
    }
    assert_no_jobs(&server).await;
}

#[tokio::test]
async fn bodies_that_are_too_large_or_no_json_by_their_type() {
    let config = "[server]\nbody_limit = \"64KiB\"\n";
    let server = TestServer::with(Options { config, ..Options::default() });
    let large = json!({ "steps": [{ "tool": "shell", "command": "x".repeat(70_000) }] });
    let response = server.post("/schedule", large.to_string()).await;
    assert_problem(response, 413, "body_too_large", "with a length").await;
    let pieces = futures::stream::iter(
        (0..70).map(|_| Ok::<_, std::io::Error>(bytes::Bytes::from(vec![b' '; 1000]))),
    );
    let response = server.post("/schedule", reqwest::Body::wrap_stream(pieces)).await;
    assert_problem(response, 413, "body_too_large", "in pieces").await;

    let body = r#"{"steps":[{"tool":"shell","command":"true"}]}"#;
    for kind in [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("")] {
        let mut request = server.request(Method::POST, "/schedule").body(body);
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }
        let response = request.send().await.unwrap();
        assert_problem(response, 415, "unsupported_media_type", kind.unwrap_or("none")).await;
    }
    assert_no_jobs(&server).await;
}

#[tokio::test]
async fn addresses_that_lead_nowhere() {
    let server = TestServer::start();
    let unknown = "01890a5d-ac96-774b-bcce-b302099a8057";
    let upper = unknown.to_uppercase();
    let long = "x".repeat(5000);
    for id in ["7", "..%2f..%2fetc", "%00", "%ff", upper.as_str(), long.as_str(), "%F0%9F%98%80"] {
        for path in [
            format!("/status/{id}"),
            format!("/status?task_id={id}"),
            format!("/jobs/{id}"),
            format!("/jobs/{id}/events"),
            format!("/jobs/{id}/output.zip"),
            format!("/jobs/{id}/files/a"),
            format!("/jobs/{id}/steps/1/output"),
        ] {
            let response = server.get(&path).await;
            let status = response.status().as_u16();
            let problem: Value = response.json().await.unwrap();
            let code = text(&problem, "code");
            // What is no text in a query is a wrong query.
            let fits = code == "invalid_job_id" || code == "invalid_query";
            assert!(status == 400 && fits, "{path}: {status} {code}");
        }
        let response = server.post(&format!("/jobs/{id}/cancel"), "").await;
        assert_problem(response, 400, "invalid_job_id", id).await;
    }
    for (method, path, status, code) in [
        (Method::GET, format!("/jobs/{unknown}"), 404, "job_not_found"),
        (Method::GET, format!("/status?task_id={unknown}"), 404, "job_not_found"),
        (Method::GET, format!("/jobs/{unknown}/events"), 404, "job_not_found"),
        (Method::GET, format!("/jobs/{unknown}/output.zip"), 404, "job_not_found"),
        (Method::GET, format!("/jobs/{unknown}/files/x"), 404, "job_not_found"),
        (Method::PUT, format!("/jobs/{unknown}/files/x"), 404, "job_not_found"),
        (Method::DELETE, format!("/jobs/{unknown}/files/x"), 404, "job_not_found"),
        (Method::POST, format!("/jobs/{unknown}/cancel"), 404, "job_not_found"),
        (Method::GET, format!("/jobs/{unknown}/steps/0/output"), 400, "invalid_step"),
        (Method::GET, "/status".into(), 400, "invalid_query"),
        (Method::GET, "/jobs?limit=0".into(), 400, "invalid_query"),
        (Method::GET, "/jobs?limit=many".into(), 400, "invalid_query"),
        (Method::GET, "/jobs?status=lost".into(), 400, "invalid_query"),
        (Method::GET, "/jobs?before=x".into(), 400, "invalid_query"),
        (Method::GET, "/nowhere".into(), 404, "not_found"),
        (Method::GET, "/schedule".into(), 405, "method_not_allowed"),
        (Method::PUT, "/schedule".into(), 405, "method_not_allowed"),
        (Method::DELETE, "/jobs".into(), 405, "method_not_allowed"),
        (Method::POST, format!("/jobs/{unknown}/events"), 405, "method_not_allowed"),
    ] {
        let response = server.request(method.clone(), &path).send().await.unwrap();
        assert_problem(response, status, code, &format!("{method} {path}")).await;
    }
    assert_no_jobs(&server).await;
}

#[tokio::test]
async fn pages_of_other_sites_are_kept_out() {
    let server = TestServer::start();
    let body = r#"{"steps":[{"tool":"shell","command":"true"}]}"#;
    for (header, value, code) in [
        ("host", "evil.example", "forbidden_host"),
        ("origin", "http://evil.example", "forbidden_origin"),
        ("origin", "null", "forbidden_origin"),
        ("sec-fetch-site", "cross-site", "forbidden_origin"),
    ] {
        let request = server.request(Method::POST, "/schedule").header(header, value);
        let request = request.header("content-type", "application/json").body(body);
        assert_problem(request.send().await.unwrap(), 403, code, value).await;
    }
    assert_no_jobs(&server).await;
}
