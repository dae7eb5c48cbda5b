//! `/jobs/{id}/files/…`: a workspace while its job runs, and after.

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::support::{TestServer, shell, step, text, wait_for_go};

async fn problem(response: Response) -> (u16, String) {
    let status = response.status().as_u16();
    let problem: Value = response.json().await.unwrap();
    (status, text(&problem, "code").to_owned())
}

fn names(folder: &Value) -> Vec<(&str, &str)> {
    let entries = folder["entries"].as_array().unwrap();
    entries.iter().map(|entry| (text(entry, "name"), text(entry, "type"))).collect()
}

#[tokio::test]
async fn a_running_workspace_can_be_read_and_changed() {
    let server = TestServer::start();
    let steps = [
        shell("mkdir sub; echo inside > sub/a.txt; ln -s /etc etc; ln -s .. up; mkfifo pipe"),
        wait_for_go(),
        shell("cat put/from-outside; ./run.sh; ls"),
    ];
    let job = server.submit(&json!({ "steps": steps })).await;
    server.wait_for_step(&job, "step.started", 2).await;
    let files = format!("/jobs/{job}/files");
    let at = |path: &str| format!("{files}/{path}");

    let listed = server.json(&files).await;
    assert_eq!(
        names(&listed),
        [("etc", "symlink"), ("pipe", "other"), ("sub", "folder"), ("up", "symlink"),]
    );
    assert_eq!(names(&server.json(&at("sub")).await), [("a.txt", "file")]);
    let read = server.get(&at("sub/a.txt")).await;
    assert_eq!(read.headers()["x-content-type-options"], "nosniff");
    assert_eq!(read.text().await.unwrap(), "inside\n");

    assert_eq!(server.put_file(&job, "put/from-outside", "put\n").await.status(), 204);
    let script = "#!/bin/sh\necho ran\n";
    assert_eq!(server.put_file(&job, "run.sh?executable=1", script).await.status(), 204);
    assert_eq!(server.put_file(&job, "doomed", "x").await.status(), 204);
    let delete = server.request(Method::DELETE, &at("doomed")).send().await.unwrap();
    assert_eq!(delete.status(), 204);
    assert_eq!(problem(server.get(&at("doomed")).await).await, (404, "file_not_found".into()));

    for (path, expected) in [
        ("etc/passwd", (409, "refused_by_sandbox")),
        ("up/etc/passwd", (409, "refused_by_sandbox")),
        ("pipe", (409, "refused_by_sandbox")),
        ("..%2fetc%2fpasswd", (400, "invalid_path")),
        ("%2fetc%2fpasswd", (400, "invalid_path")),
        ("a%00b", (400, "invalid_path")),
    ] {
        let (status, code) = problem(server.get(&at(path)).await).await;
        assert_eq!((status, code.as_str()), expected, "GET {path}");
    }
    for path in ["etc/evil", "up/evil", "..%2fevil"] {
        let (status, _) = problem(server.put_file(&job, path, "x").await).await;
        assert!(matches!(status, 400 | 409), "PUT {path}: {status}");
        let delete = server.request(Method::DELETE, &at(path)).send().await.unwrap();
        assert!(delete.status().is_client_error(), "DELETE {path}");
    }

    server.let_go(&job).await;
    let job = server.wait_for_end(&job).await;
    assert_eq!(step(&job, 3)["stdout"], "put\nran\netc\ngo\npipe\nput\nrun.sh\nsub\nup\n");
}

#[tokio::test]
async fn a_workspace_can_be_read_after_the_end() {
    let server = TestServer::start();
    let commands = "mkdir -p deep/er empty; echo kept > deep/er/file.txt; ln -s deep/er short; \
                    ln -s /etc/passwd passwd; printf '<script>' > page.html";
    let job = server.run(&json!({ "steps": [shell(commands)] })).await;
    let id = text(&job, "job_id");
    let at = |path: &str| format!("/jobs/{id}/files/{path}");

    assert_eq!(
        names(&server.json(&format!("/jobs/{id}/files")).await),
        [
            ("agent.log", "file"),
            ("deep", "folder"),
            ("empty", "folder"),
            ("memory.json", "file"),
            ("page.html", "file"),
            ("passwd", "symlink"),
            ("short", "symlink"),
        ]
    );
    for path in ["deep/er/file.txt", "short/file.txt"] {
        assert_eq!(server.get(&at(path)).await.text().await.unwrap(), "kept\n", "{path}");
    }
    let page = server.get(&at("page.html")).await;
    assert_eq!(page.headers()["content-type"], "application/octet-stream");
    assert_eq!(problem(server.get(&at("passwd")).await).await, (404, "file_not_found".into()));
    assert_eq!(problem(server.get(&at("nothing")).await).await, (404, "file_not_found".into()));

    let put = server.put_file(id, "new", "x").await;
    assert_eq!(problem(put).await, (409, "job_ended".into()));
    let delete = server.request(Method::DELETE, &at("empty")).send().await.unwrap();
    assert_eq!(problem(delete).await, (409, "job_ended".into()));
}

#[tokio::test]
async fn a_job_that_waits_has_no_files_yet() {
    let server = TestServer::with_slots(1);
    let blocker = server.submit(&json!({ "steps": [wait_for_go()] })).await;
    server.wait_for_step(&blocker, "step.started", 1).await;
    let waiting = server.submit(&json!({ "steps": [shell("true")] })).await;
    let files = server.get(&format!("/jobs/{waiting}/files")).await;
    assert_eq!(problem(files).await, (409, "not_started".into()));
    let zip = server.get(&format!("/jobs/{waiting}/output.zip")).await;
    assert_eq!(problem(zip).await, (404, "result_not_ready".into()));
    server.let_go(&blocker).await;
    assert_eq!(server.wait_for_end(&waiting).await["status"], "completed");
}

#[tokio::test]
async fn a_large_upload_arrives_whole() {
    let server = TestServer::start();
    let steps = [wait_for_go(), shell("sha256sum < large | cut -c-64; stat -c %s large")];
    let job = server.submit(&json!({ "steps": steps })).await;
    server.wait_for_step(&job, "step.started", 1).await;
    let large = "0123456789abcdef".repeat(2_000_000);
    assert_eq!(server.put_file(&job, "large", large.as_str()).await.status(), 204);
    server.let_go(&job).await;
    let job = server.wait_for_end(&job).await;
    let hash = <sha2::Sha256 as sha2::Digest>::digest(&large);
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(step(&job, 2)["stdout"], format!("{hash}\n32000000\n"));
}
