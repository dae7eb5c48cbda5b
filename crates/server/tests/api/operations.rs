//! Health, metrics, pages, and addresses that do not exist.

use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::{Method, StatusCode};
use bellglass_store::Store as _;

use crate::harness::{HELLO, Harness, request};

#[tokio::test]
async fn health_and_readiness() {
    let server = Harness::new().await;
    assert_eq!(server.get("/healthz").await.json()["status"], "ok");
    let ready = server.get("/readyz").await.json();
    assert_eq!(ready["ready"], true);
    assert_eq!(ready["checks"][0], serde_json::json!({"name": "store", "ok": true}));

    server.worker_runs.store(false, Ordering::Relaxed);
    let unready = server.get("/readyz").await;
    assert_eq!(unready.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(unready.json()["checks"][1], serde_json::json!({"name": "worker", "ok": false}));
    server.worker_runs.store(true, Ordering::Relaxed);

    server.store.close().await;
    let unready = server.get("/readyz").await;
    assert_eq!(unready.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(unready.json()["checks"][0]["ok"], false);
    let job = bellglass_protocol::id::JobId::generate();
    let failed = server.get(&format!("/status/{job}")).await;
    assert_eq!(failed.problem(), (500, "internal".into()));
    assert!(!failed.text().to_lowercase().contains("sql"), "{}", failed.text());
    assert!(server.get("/metrics").await.text().contains("bellglass_store_up 0"));
}

#[tokio::test]
async fn metrics_count_by_template_and_not_by_address() {
    let server = Harness::new().await;
    let job = server.schedule(HELLO).await;
    for _ in 0..3 {
        server.get(&format!("/status/{job}")).await;
    }
    server.get("/made/up/1").await;
    server.get("/made/up/2").await;
    server.get(&format!("/jobs/{job}/files/a/b/c")).await;
    let odd = request(Method::from_bytes(b"BREW").unwrap(), "/jobs").body(Body::empty()).unwrap();
    server.send(odd).await;
    let answer = server.get("/metrics").await;
    let text = answer.text();
    for line in [
        r#"bellglass_jobs{status="scheduled"} 1"#,
        r#"bellglass_jobs{status="failed"} 0"#,
        "bellglass_jobs_scheduled_total 1",
        "bellglass_store_up 1",
        r#"bellglass_http_requests_total{route="/schedule",method="POST",status="2xx"} 1"#,
        r#"bellglass_http_requests_total{route="/status/{id}",method="GET",status="2xx"} 3"#,
        r#"bellglass_http_requests_total{route="unmatched",method="GET",status="4xx"} 2"#,
        r#"bellglass_http_requests_total{route="/jobs/{id}/files/{*path}",method="GET",status="4xx"} 1"#,
        r#"bellglass_http_requests_total{route="/jobs",method="OTHER",status="4xx"} 1"#,
        r#"bellglass_http_request_duration_seconds_count{route="/status/{id}",method="GET"} 3"#,
        r#"bellglass_http_request_duration_seconds_bucket{route="/status/{id}",method="GET",le="5"} 3"#,
        "# TYPE bellglass_http_request_duration_seconds histogram",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    assert!(text.contains("bellglass_build_info{version=\""));
    assert!(!text.contains(&job.to_string()) && !text.contains("made/up"));
}

#[tokio::test]
async fn unknown_addresses_and_methods() {
    let server = Harness::new().await;
    for path in ["/nowhere", "/jobs/x/y/z", "/schedule/", "/docs/other.js"] {
        assert_eq!(server.get(path).await.problem(), (404, "not_found".into()), "{path}");
    }
    for (method, path, allow) in [
        (Method::GET, "/schedule", "POST"),
        (Method::DELETE, "/jobs", "GET,HEAD"),
        (Method::POST, "/", "GET,HEAD"),
        (Method::OPTIONS, "/jobs", "GET,HEAD"),
        (Method::TRACE, "/healthz", "GET,HEAD"),
    ] {
        let answer = server.send(request(method, path).body(Body::empty()).unwrap()).await;
        assert_eq!(answer.problem(), (405, "method_not_allowed".into()), "{path}");
        assert_eq!(answer.header("allow"), allow, "{path}");
    }
}

#[tokio::test]
async fn the_pages_ask_nothing_of_other_hosts() {
    let server = Harness::new().await;
    for (path, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/docs", "text/html; charset=utf-8"),
        ("/docs/docs.js", "text/javascript; charset=utf-8"),
        ("/docs/pages.css", "text/css; charset=utf-8"),
    ] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.header("content-type"), content_type);
        assert!(answer.header("content-security-policy").starts_with("default-src 'none'"));
        let foreign = answer.text().replace("http://localhost:8000", "");
        assert!(!foreign.contains("http://") && !foreign.contains("https://"), "{path}");
    }
}
