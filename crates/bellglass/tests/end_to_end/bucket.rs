//! A server whose artifacts lie in a bucket of S3.

use std::io::Cursor;

use bellglass_protocol::id::JobId;
use serde_json::json;
use zip::ZipArchive;

use crate::support::{Options, TestServer, archive, shell, text};

fn variable(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} is not set: run the tests with `cargo nextest run`"))
}

#[tokio::test]
async fn a_result_in_a_bucket_is_fetched_by_a_link_of_the_buckets_own() {
    let endpoint = variable("BELLGLASS_TEST_S3");
    let config = format!(
        "[artifacts]\nurl = \"s3://bellglass/tests/{}\"\nendpoint = \"{endpoint}\"\npresigned = \"10m\"\n",
        JobId::generate()
    );
    let server = TestServer::with(Options {
        config: config.leak(),
        environment: vec![
            ("AWS_ACCESS_KEY_ID", variable("BELLGLASS_TEST_S3_KEY")),
            ("AWS_SECRET_ACCESS_KEY", variable("BELLGLASS_TEST_S3_SECRET")),
        ],
        ..Options::default()
    });
    let steps = [shell("echo it lies afar > file; seq 200000")];
    let job = server.run(&json!({ "name": "Far away", "steps": steps })).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    let id = text(&job, "job_id");

    let staying = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    let staying = staying.build().unwrap();
    let sent = staying.get(server.url(&format!("/jobs/{id}/output.zip"))).send().await.unwrap();
    assert_eq!(sent.status(), 307);
    assert_eq!(sent.headers()["cache-control"], "no-store");
    let link = sent.headers()["location"].to_str().unwrap().to_owned();
    assert!(link.starts_with(&endpoint), "{link}");

    // Nobody asks who fetches it, but only that.
    let fetched = staying.get(&link).send().await.unwrap();
    assert_eq!(fetched.status(), 200);
    let disposition = fetched.headers()["content-disposition"].to_str().unwrap().to_owned();
    assert!(disposition.contains(&format!("far-away-{id}.zip")), "{disposition}");
    let zip = fetched.bytes().await.unwrap();
    assert_eq!(job["result"]["bytes"], zip.len());
    let mut zip = ZipArchive::new(Cursor::new(zip)).unwrap();
    assert_eq!(archive::text(&mut zip, "file"), "it lies afar\n");
    let forged = staying.get(link.replace("output.zip", "memory.json")).send().await.unwrap();
    assert!(forged.status().is_client_error(), "{}", forged.status());

    // A client that follows links notices nothing, and all else comes through the server.
    assert_eq!(archive::text(&mut server.archive(id).await, "file"), "it lies afar\n");
    let read = server.get(&format!("/jobs/{id}/files/file")).await;
    assert_eq!(read.text().await.unwrap(), "it lies afar\n");
    let output = server.get(&format!("/jobs/{id}/steps/1/output")).await.text().await.unwrap();
    assert_eq!(output.lines().count(), 200_000);
    assert!(!server.data().join("artifacts").join("jobs").exists(), "nothing lies here");
}
