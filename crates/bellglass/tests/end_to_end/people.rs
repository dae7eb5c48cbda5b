//! Users by the command line: tokens, what they may not, links, and the page's address.

use std::process::Output;

use serde_json::{Value, json};

use crate::support::{Options, TestServer, bellglass, shell, text, wait_for_go};

const OPERATOR: &str = "open-sesame-open-sesame";

fn start(config: &'static str) -> TestServer {
    let environment = vec![("BELLGLASS_TOKEN", OPERATOR.to_owned())];
    TestServer::with(Options { config, environment, ..Options::default() })
}

/// Runs a client's command as whoever has this token.
async fn command(server: &TestServer, token: &str, arguments: &[&str]) -> Output {
    let mut command = bellglass(server.folder());
    command.args(arguments).env("BELLGLASS_SERVER", server.url("")).env("BELLGLASS_TOKEN", token);
    command.env_remove("BROWSER").env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY");
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

fn stdout(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout.clone()).unwrap().trim().to_owned()
}

#[track_caller]
fn assert_refused(output: &Output, words: &str) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{said}");
    assert!(said.contains(words), "{said}");
}

async fn submit(server: &TestServer, token: &str, job: &Value) -> Output {
    std::fs::write(server.folder().join("job.json"), job.to_string()).unwrap();
    command(server, token, &["submit", "job.json"]).await
}

#[tokio::test]
async fn tokens_from_their_making_to_their_end() {
    let mut server = start("");
    let ada = command(&server, OPERATOR, &["token", "create", "ada", "--name", "laptop"]).await;
    let ada = stdout(&ada);
    assert!(ada.starts_with("bg_"), "{ada}");
    let bob = stdout(&command(&server, OPERATOR, &["token", "create", "bob"]).await);
    let listed = stdout(&command(&server, OPERATOR, &["token", "list"]).await);
    assert!(listed.contains("ada") && listed.contains("laptop"), "{listed}");
    assert!(!listed.contains(&ada) && !listed.contains(&bob), "{listed}");
    assert_refused(&command(&server, &ada, &["token", "list"]).await, "403 forbidden");

    let job = json!({ "steps": [shell("echo hers > made.txt")] });
    let id = stdout(&submit(&server, &ada, &job).await);
    assert_eq!(command(&server, &ada, &["logs", "-f", &id]).await.status.code(), Some(0));
    for refused in [
        &["status", &id][..],
        &["logs", &id],
        &["cancel", &id],
        &["download", &id],
        &["share", &id],
        &["open", &id],
    ] {
        assert_refused(&command(&server, &bob, refused).await, "404 job_not_found");
    }
    assert_eq!(
        stdout(&command(&server, &bob, &["--json", "jobs"]).await),
        "{\n  \"jobs\": [],\n  \"next\": null\n}"
    );

    // No token, and nothing from which one could be made, lies in the data folder.
    let files = walk(&server.data());
    assert!(!files.is_empty());
    for file in files {
        let bytes = std::fs::read(&file).unwrap_or_default();
        let found = bytes.windows(ada.len()).any(|window| window == ada.as_bytes());
        assert!(!found, "a token lies in {}", file.display());
    }

    // They outlive the server that made them, and end when they are revoked.
    server.stop();
    server.start_again();
    stdout(&command(&server, &ada, &["status", &id]).await);
    let tokens = stdout(&command(&server, OPERATOR, &["--json", "token", "list"]).await);
    let tokens: Value = serde_json::from_str(&tokens).unwrap();
    stdout(
        &command(&server, OPERATOR, &["token", "revoke", text(&tokens["tokens"][0], "id")]).await,
    );
    assert_refused(&command(&server, &ada, &["status", &id]).await, "401 unauthorized");
    let gone = command(&server, OPERATOR, &["token", "revoke", "nonsense"]).await;
    assert_refused(&gone, "404 token_not_found");
    let wrong = command(&server, OPERATOR, &["token", "create", "not a name"]).await;
    assert_refused(&wrong, "letters, digits");
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => walk(&path),
            false => vec![path],
        })
        .collect()
}

#[tokio::test]
async fn a_user_gets_as_much_as_the_configuration_says() {
    let server = start("[quotas]\njobs_at_once = 1\n");
    let ada = stdout(&command(&server, OPERATOR, &["token", "create", "ada"]).await);
    let job = json!({ "steps": [wait_for_go()] });
    let id = stdout(&submit(&server, &ada, &job).await);
    assert_refused(&submit(&server, &ada, &job).await, "429 quota_exceeded");
    assert_refused(&submit(&server, &ada, &job).await, "cancel one");
    stdout(&command(&server, &ada, &["cancel", &id]).await);
    command(&server, &ada, &["logs", "-f", &id]).await;
    let next = stdout(&submit(&server, &ada, &json!({ "steps": [shell("true")] })).await);
    assert_eq!(command(&server, &ada, &["logs", "-f", &next]).await.status.code(), Some(0));
}

#[tokio::test]
async fn a_link_is_made_and_taken_back() {
    let server = start("");
    let ada = stdout(&command(&server, OPERATOR, &["token", "create", "ada"]).await);
    let job = json!({ "steps": [shell("echo shown > made.txt")] });
    let id = stdout(&submit(&server, &ada, &job).await);
    command(&server, &ada, &["logs", "-f", &id]).await;
    let page = stdout(&command(&server, &ada, &["open", &id]).await);
    assert_eq!(page, server.url(&format!("/watch/{id}")));

    let link = stdout(&command(&server, &ada, &["share", &id, "--expires", "1h"]).await);
    let visitor = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
    let visitor = visitor.build().unwrap();
    let opened = visitor.get(&link).send().await.unwrap();
    assert_eq!(opened.status(), 303);
    let cookie = opened.headers()["set-cookie"].to_str().unwrap().to_owned();
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let status = async |path: &str| {
        let url = server.url(&format!("/jobs/{id}{path}"));
        visitor.get(url).header("cookie", &cookie).send().await.unwrap().status().as_u16()
    };
    for path in ["", "/events?follow=0", "/files/made.txt", "/output.zip"] {
        assert_eq!(status(path).await, 200, "{path}");
    }
    assert_eq!(status("/context").await, 403);
    stdout(&command(&server, &ada, &["share", &id, "--revoke"]).await);
    assert_eq!(status("").await, 401);
}
