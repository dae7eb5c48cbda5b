//! Downloading the ZIP: whole, in ranges, conditionally; and when there is none.

use axum::body::Body;
use axum::http::{Method, StatusCode};
use bellglass_protocol::event::EndStatus;

use crate::harness::{HELLO, Harness, request};

fn content() -> Vec<u8> {
    (0..100_000u32).map(|n| (n % 251) as u8).collect()
}

#[tokio::test]
async fn the_zip_is_downloaded_whole_and_in_ranges() {
    let server = Harness::new().await;
    let job = server.ended_with(content()).await;
    let path = format!("/jobs/{job}/output.zip");
    let whole = server.get(&path).await;
    assert_eq!(whole.status, StatusCode::OK);
    assert_eq!(whole.body, content());
    assert_eq!(whole.header("content-length"), "100000");
    assert_eq!(whole.header("accept-ranges"), "bytes");
    assert_eq!(whole.header("content-type"), "application/zip");
    let disposition = format!("attachment; filename=\"bellglass-{job}.zip\"");
    assert_eq!(whole.header("content-disposition"), disposition);
    let etag = whole.header("etag").to_owned();
    assert_eq!(etag, format!("\"{}\"", "5e".repeat(32)));

    for (range, from, to) in
        [("bytes=0-9", 0, 10), ("bytes=99990-", 99_990, 100_000), ("bytes=-5", 99_995, 100_000)]
    {
        let part = server.get_with(&path, "range", range).await;
        assert_eq!(part.status, StatusCode::PARTIAL_CONTENT, "{range}");
        assert_eq!(part.body, content()[from..to], "{range}");
        assert_eq!(part.header("content-range"), format!("bytes {from}-{}/100000", to - 1));
        assert_eq!(part.header("content-length"), (to - from).to_string());
    }
    let outside = server.get_with(&path, "range", "bytes=100000-").await;
    assert_eq!(outside.problem(), (416, "range_not_satisfiable".into()));
    assert_eq!(outside.header("content-range"), "bytes */100000");
    for odd in ["bytes=0-1,4-5", "lines=1-2", "bytes=x"] {
        assert_eq!(server.get_with(&path, "range", odd).await.status, StatusCode::OK, "{odd}");
    }

    let same = server.get_with(&path, "if-none-match", &etag).await;
    assert_eq!((same.status, same.body.len()), (StatusCode::NOT_MODIFIED, 0));
    let other = server.get_with(&path, "if-none-match", "\"other\"").await;
    assert_eq!(other.status, StatusCode::OK);
    for (condition, status) in [(etag.as_str(), 206), ("\"other\"", 200)] {
        let request = request(Method::GET, &path)
            .header("range", "bytes=0-9")
            .header("if-range", condition)
            .body(Body::empty());
        assert_eq!(server.send(request.unwrap()).await.status.as_u16(), status);
    }

    let head = server.send(request(Method::HEAD, &path).body(Body::empty()).unwrap()).await;
    assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0));
    assert_eq!(head.header("content-length"), "100000");
}

#[tokio::test]
async fn a_missing_zip_says_whether_to_wait() {
    let server = Harness::new().await;
    let job = server.schedule(HELLO).await;
    let path = format!("/jobs/{job}/output.zip");
    for _ in ["scheduled", "running"] {
        let answer = server.get(&path).await;
        assert_eq!(answer.problem(), (404, "result_not_ready".into()));
        assert_eq!(answer.header("retry-after"), "1");
        if server.get(&format!("/status/{job}")).await.json()["status"] == "scheduled" {
            server.claim().await;
        }
    }
    let failed = server.schedule(HELLO).await;
    let claim = server.claim().await;
    server.finish(claim, EndStatus::Failed).await;
    let answer = server.get(&format!("/jobs/{failed}/output.zip")).await;
    assert_eq!(answer.problem(), (404, "result_missing".into()));
    assert_eq!(answer.header("retry-after"), "");
}

#[tokio::test]
async fn the_name_of_the_download_is_safe() {
    let server = Harness::new().await;
    let body = r#"{"name":"../Größe \"x\"; rm -rf /","steps":[{"tool":"shell","command":"ls"}]}"#;
    let job = server.schedule(body).await;
    let claim = server.claim().await;
    server.store_result(claim, content()).await;
    let answer = server.get(&format!("/jobs/{job}/output.zip")).await;
    let expected = format!("attachment; filename=\"gr-e-x-rm-rf-{job}.zip\"");
    assert_eq!(answer.header("content-disposition"), expected);
}
