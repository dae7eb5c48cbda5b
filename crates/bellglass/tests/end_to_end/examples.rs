//! The examples that need nothing from outside: each runs, and leaves what it says it makes.

use std::fs;

use serde_json::{Value, json};

use crate::support::{TestServer, archive, step, text};

fn example(name: &str) -> Value {
    let path = format!("{}/../../examples/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

async fn run(server: &TestServer, name: &str) -> Value {
    let job = server.run(&example(name)).await;
    assert_eq!(job["status"], "completed", "{job:#}");
    assert_eq!(job["failed_steps"], serde_json::json!([]), "{job:#}");
    job
}

fn is_picture(step: &Value) -> bool {
    step["attachments"][0]["media_type"] == "image/png"
}

#[tokio::test]
async fn hello_tries_every_kind_of_file_tool_and_three_languages() {
    let server = TestServer::start();
    let job = run(&server, "hello").await;
    let mut archive = server.archive(text(&job, "job_id")).await;
    let greeting = archive::text(&mut archive, "hello.txt");
    assert!(
        greeting.starts_with("Hello from agent under the glass: Debian GNU/Linux"),
        "{greeting}"
    );
    assert_eq!(text(step(&job, 1), "stdout"), greeting);
    let squares: Value =
        serde_json::from_str(&archive::text(&mut archive, "squares.json")).unwrap();
    assert_eq!(squares, json!({ "1": 1, "2": 4, "3": 9, "4": 16, "5": 25 }));
    let said = text(step(&job, 2), "stdout");
    assert!(said.ends_with(" says {1: 1, 2: 4, 3: 9, 4: 16, 5: 25}\n"), "{said}");
    assert_eq!(archive::text(&mut archive, "sum.txt"), "The sum is 55.\n");
    assert!(text(step(&job, 3), "stdout").ends_with(" says 55\n"), "{:#}", step(&job, 3));
    let plan = "# Plan\n\n- [x] say hello\n- [ ] leave a trace\n";
    assert_eq!(archive::text(&mut archive, "notes/plan.md"), plan);
    let script = "#!/bin/sh\necho \"Hello, ${1:-world}!\"\n";
    assert_eq!(archive::text(&mut archive, "greet.sh"), script);
    assert_eq!(archive::mode(&mut archive, "greet.sh") & 0o111, 0o111);
    assert_eq!(text(step(&job, 9), "stdout"), "Hello, newcomer!\n");
    let names = archive::names(&archive);
    for gone in ["notes/greet.sh", "scratch/", "scratch/note.txt"] {
        assert!(!names.iter().any(|name| name == gone), "{names:?}");
    }
}

#[tokio::test]
async fn the_todo_app_is_written_tested_and_tried() {
    let server = TestServer::start();
    let job = run(&server, "todo-app").await;
    let mut archive = server.archive(text(&job, "job_id")).await;
    let given = example("todo-app");
    let given = given["steps"].as_array().unwrap().iter();
    let written: Vec<&Value> = given.filter(|step| step["tool"] == "write_file").collect();
    assert_eq!(written.len(), 9);
    for file in written {
        let path = text(file, "path");
        assert_eq!(archive::text(&mut archive, path), text(file, "content"), "{path}");
    }
    assert_eq!(text(step(&job, 11), "stdout"), "The types are right.\n");
    let tests = text(step(&job, 12), "stdout");
    let counts = |words: &str| tests.lines().any(|line| line.ends_with(words));
    assert!(counts(" pass 5") && counts(" fail 0"), "{tests}");
    let tried: Vec<&str> = text(step(&job, 13), "stdout").lines().collect();
    for line in [
        r#"{"id":1,"title":"Look under the glass","done":false}"#,
        r#"{"id":1,"title":"Look under the glass","done":true}"#,
        "The app answers.",
    ] {
        assert!(tried.contains(&line), "{line} is not in {tried:#?}");
    }
    let committed = text(step(&job, 14), "stdout");
    assert!(committed.contains("A small todo app"), "{committed}");
    assert!(committed.contains("9 files changed"), "{committed}");
    assert!(archive::text(&mut archive, "todo-app/.git/HEAD").starts_with("ref: refs/heads/"));
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
    assert!(is_picture(step(&job, 9)), "{job:#}");
    let mut archive = server.archive(text(&job, "job_id")).await;
    let book = archive::text(&mut archive, "downloads/guest-book.html");
    assert!(book.contains("<h1>Guest book</h1>") && book.contains(said), "{book}");
    let screen = archive::content(&mut archive, "desktop.png");
    let screen = image::load_from_memory(&screen).unwrap().to_rgb8();
    let colours: std::collections::HashSet<_> = screen.pixels().map(|pixel| pixel.0).collect();
    assert!(colours.len() > 20, "it shows nothing: {colours:?}");
}
