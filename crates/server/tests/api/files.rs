//! The workspace: in a running sandbox, and in the ZIP after the end. All of it is hostile.

use std::io::{Cursor, Write as _};

use axum::body::Body;
use axum::http::{Method, StatusCode};
use bellglass_protocol::id::JobId;
use bellglass_protocol::quantity::ByteSize;
use bellglass_server::ServerSettings;
use tower::ServiceExt as _;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use crate::harness::{Answer, HELLO, Harness, request};

async fn send(server: &Harness, method: Method, path: &str, body: &str) -> Answer {
    server.send(request(method, path).body(Body::from(body.to_owned())).unwrap()).await
}

async fn running(server: &Harness) -> JobId {
    let job = server.schedule(HELLO).await;
    server.claim().await;
    server.live.0.lock().unwrap().insert(job, Default::default());
    job
}

#[tokio::test]
async fn a_running_workspace_is_written_read_listed_and_deleted() {
    let server = Harness::new().await;
    let job = running(&server).await;
    let file = format!("/jobs/{job}/files/src/a%20b.txt");
    let put = send(&server, Method::PUT, &format!("{file}?executable=1"), "hello").await;
    assert_eq!(put.status, StatusCode::NO_CONTENT);
    let got = server.get(&file).await;
    assert_eq!(got.text(), "hello");
    assert_eq!(got.header("content-length"), "5");
    for path in ["files", "files/"] {
        let list = server.get(&format!("/jobs/{job}/{path}")).await.json();
        assert_eq!(list["path"], "");
        let entry = serde_json::json!({
            "name": "src/a b.txt", "type": "file", "bytes": 5, "mode": 0o755,
            "modified": "2023-11-14T22:13:20Z",
        });
        assert_eq!(list["entries"], serde_json::json!([entry]));
    }
    let deleted = send(&server, Method::DELETE, &file, "").await;
    assert_eq!(deleted.status, StatusCode::NO_CONTENT);
    assert_eq!(server.get(&file).await.problem(), (404, "file_not_found".into()));
    let again = send(&server, Method::DELETE, &file, "").await;
    assert_eq!(again.problem(), (404, "file_not_found".into()));
}

#[tokio::test]
async fn what_a_sandbox_wrote_cannot_act_in_a_browser() {
    let server = Harness::new().await;
    let job = running(&server).await;
    for (name, content_type, disposition) in [
        ("a.html", "application/octet-stream", "attachment"),
        ("a.svg", "application/octet-stream", "attachment"),
        ("a.xml", "application/octet-stream", "attachment"),
        ("a.js", "application/octet-stream", "attachment"),
        ("a", "application/octet-stream", "attachment"),
        ("a.txt", "text/plain; charset=utf-8", "inline"),
        ("a.png", "image/png", "inline"),
    ] {
        let path = format!("/jobs/{job}/files/{name}");
        send(&server, Method::PUT, &path, "<script>alert(1)</script>").await;
        let answer = server.get(&path).await;
        assert_eq!(answer.header("content-type"), content_type, "{name}");
        assert!(answer.header("content-disposition").starts_with(disposition), "{name}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("sandbox; default-src 'none'"), "{policy}");
    }
}

#[tokio::test]
async fn refusals_of_a_running_workspace() {
    let settings = ServerSettings { upload_limit: ByteSize(10), ..ServerSettings::default() };
    let server = Harness::with(settings).await;
    let job = running(&server).await;
    for (method, path, status, code) in [
        (Method::GET, "..%2fetc%2fpasswd", 400, "invalid_path"),
        (Method::GET, "%2e%2e/x", 400, "invalid_path"),
        (Method::GET, "a%00b", 400, "invalid_path"),
        (Method::GET, "%ff", 400, "invalid_path"),
        (Method::GET, "/etc/passwd", 400, "invalid_path"),
        (Method::PUT, "a/../../b", 400, "invalid_path"),
        (Method::PUT, "forbidden", 409, "refused_by_sandbox"),
        (Method::PUT, "a?executable=perhaps", 400, "invalid_query"),
        (Method::DELETE, "..", 400, "invalid_path"),
        (Method::GET, "broken", 503, "sandbox_unreachable"),
        (Method::GET, "busy", 503, "sandbox_busy"),
    ] {
        let answer = send(&server, method, &format!("/jobs/{job}/files/{path}"), "x").await;
        assert_eq!(answer.problem(), (status, code.into()), "{path}");
        assert!(!answer.text().contains('\u{1b}') && !answer.text().contains("\\u001b"));
    }
    let path = format!("/jobs/{job}/files/large");
    let large = send(&server, Method::PUT, &path, "eleven byte").await;
    assert_eq!(large.problem(), (413, "body_too_large".into()));
    let fits = send(&server, Method::PUT, &path, "ten bytes.").await;
    assert_eq!(fits.status, StatusCode::NO_CONTENT);
    let post = send(&server, Method::POST, &path, "").await;
    assert_eq!(post.problem(), (405, "method_not_allowed".into()));
}

#[tokio::test]
async fn before_the_sandbox_runs_there_are_no_files() {
    let server = Harness::new().await;
    let job = server.schedule(HELLO).await;
    let path = format!("/jobs/{job}/files/a");
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        let answer = send(&server, method, &path, "").await;
        assert_eq!(answer.problem(), (409, "not_started".into()));
    }
}

fn zip() -> Vec<u8> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let options = SimpleFileOptions::default();
    let mut file = |name: &str, content: &[u8]| {
        zip.start_file(name, options.unix_permissions(0o640)).unwrap();
        zip.write_all(content).unwrap();
    };
    file("hello.txt", b"hello");
    file("src/main.rs", b"fn main() {}");
    file("src/large.bin", &vec![7; 1 << 20]);
    file("../escape", b"out");
    file("/etc/passwd", b"root");
    file("a/../../b", b"out");
    file("<img src=x>.html", b"<script>");
    zip.add_directory("empty", options).unwrap();
    zip.add_symlink("link", "src/main.rs", options).unwrap();
    zip.add_symlink("out", "../../../etc/passwd", options).unwrap();
    zip.finish().unwrap().into_inner()
}

#[tokio::test]
async fn after_the_end_the_workspace_is_read_from_the_zip() {
    let server = Harness::new().await;
    let job = server.ended_with(zip()).await;
    let base = format!("/jobs/{job}/files");
    let list = server.get(&base).await.json();
    let entries: Vec<(&str, &str)> = list["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["name"].as_str().unwrap(), entry["type"].as_str().unwrap()))
        .collect();
    assert_eq!(
        entries,
        [
            ("<img src=x>.html", "file"),
            ("empty", "folder"),
            ("hello.txt", "file"),
            ("link", "symlink"),
            ("out", "symlink"),
            ("src", "folder"),
        ]
    );
    let hello = list["entries"].as_array().unwrap().iter().find(|e| e["name"] == "hello.txt");
    assert_eq!(hello.unwrap()["mode"], 0o640);

    let text = server.get(&format!("{base}/hello.txt")).await;
    assert_eq!((text.text(), text.header("content-length")), ("hello", "5"));
    assert_eq!(server.get(&format!("{base}/link")).await.text(), "fn main() {}");
    assert_eq!(server.get(&format!("{base}/src/large.bin")).await.body, vec![7; 1 << 20]);
    let html = server.get(&format!("{base}/%3Cimg%20src=x%3E.html")).await;
    assert_eq!(
        html.header("content-disposition"),
        "attachment; filename=\"_img_src_x_.html\"; filename*=UTF-8''%3Cimg%20src%3Dx%3E.html"
    );
    let folder = server.get(&format!("{base}/src/")).await.json();
    assert_eq!(folder["path"], "src");
    assert_eq!(folder["entries"].as_array().unwrap().len(), 2);

    for missing in ["out", "escape", "b", "etc/passwd", "nothing", "hello.txt/x"] {
        let answer = server.get(&format!("{base}/{missing}")).await;
        assert_eq!(answer.problem(), (404, "file_not_found".into()), "{missing}");
    }
    for method in [Method::PUT, Method::DELETE] {
        let answer = send(&server, method, &format!("{base}/hello.txt"), "x").await;
        assert_eq!(answer.problem(), (409, "job_ended".into()));
    }
}

/// Readers of a ZIP wait for the artifact store, which needs a blocking thread for each piece. If
/// they held such threads themselves, this would never end.
#[test]
fn reading_from_the_zip_needs_no_blocking_threads_of_its_own() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    runtime.block_on(async {
        let server = Harness::new().await;
        let job = server.ended_with(zip()).await;
        let path = format!("/jobs/{job}/files/src/large.bin");
        let read = async || assert_eq!(server.get(&path).await.body, vec![7; 1 << 20]);
        futures::join!(read(), read(), read());
    });
}

#[tokio::test]
async fn only_so_many_read_from_zips_at_once() {
    let server = Harness::new().await;
    let job = server.ended_with(zip()).await;
    let path = format!("/jobs/{job}/files/src/large.bin");
    let mut held = Vec::new();
    let refused = loop {
        let request = request(Method::GET, &path).body(Body::empty()).unwrap();
        let response = server.router.clone().oneshot(request).await.unwrap();
        match response.status() {
            // Nobody reads the body, so it holds its place.
            StatusCode::OK => held.push(response),
            _ => break response,
        }
        assert!(held.len() < 1000, "there is no bound");
    };
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(server.get(&path).await.problem(), (503, "files_busy".into()));
    drop(held);
    // A reader's thread hears that it is alone a moment after; a time-out of the test is the only
    // way to fail here.
    while server.get(&path).await.status != StatusCode::OK {
        tokio::task::yield_now().await;
    }
}
