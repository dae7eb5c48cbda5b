//! The examples that need nothing from outside: each runs, and leaves something to look at.

use std::fs;

use serde_json::Value;

use crate::support::{TestServer, archive, step, text};

async fn run(server: &TestServer, name: &str) -> Value {
    let path = format!("{}/../../examples/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let body: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let job = server.run(&body).await;
    assert_eq!(job["status"], "completed", "{job:#}");
    assert_eq!(job["failed_steps"], serde_json::json!([]), "{job:#}");
    job
}

fn is_picture(step: &Value) -> bool {
    step["attachments"][0]["media_type"] == "image/png"
}

#[tokio::test]
async fn a_plot_is_drawn_by_python() {
    let server = TestServer::start();
    let job = run(&server, "plot").await;
    assert!(is_picture(step(&job, 2)) && is_picture(step(&job, 3)), "{job:#}");
    let mut archive = server.archive(text(&job, "job_id")).await;
    assert!(archive::text(&mut archive, "python.ipynb").contains("image/png"));
}

#[tokio::test]
async fn a_drawing_is_made_by_mouse() {
    let server = TestServer::start();
    let job = run(&server, "paint").await;
    assert!(is_picture(step(&job, 9)) && is_picture(step(&job, 13)), "{job:#}");
    // The saved file has the triangle's three lines in it, and not just a white sheet.
    let red: u32 = text(step(&job, 12), "stdout").trim().parse().unwrap();
    assert!((450..=700).contains(&red), "{red} red pixels: {job:#}");
}

#[tokio::test]
async fn a_web_form_is_filled() {
    let server = TestServer::start();
    let job = run(&server, "web-form").await;
    let said = text(step(&job, 7), "output");
    assert_eq!(said, "Ada Λόβλεϊς 🎩 was here on 2026-12-24 and will come again");
    assert!(is_picture(step(&job, 8)), "{job:#}");
}
