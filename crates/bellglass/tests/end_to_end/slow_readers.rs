//! Clients that ask for files and do not read them: the job does not notice.

use serde_json::{Value, json};

use crate::support::{TestServer, shell, step, text, wait_for_go};

#[tokio::test]
async fn files_that_nobody_reads_do_not_hold_up_the_job() {
    let server = TestServer::start();
    let steps = [shell("truncate -s 50M large"), wait_for_go(), shell("rm large; echo after")];
    let id = server.submit(&json!({ "steps": steps })).await;
    server.wait_for_step(&id, "step.started", 2).await;

    let mut unread = Vec::new();
    for _ in 0..40 {
        unread.push(server.get(&format!("/jobs/{id}/files/large")).await);
    }
    let (served, refused): (Vec<_>, Vec<_>) =
        unread.into_iter().partition(|response| response.status() == 200);
    assert_eq!((served.len(), refused.len()), (16, 24));
    for response in refused {
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()["retry-after"], "1");
        let problem: Value = response.json().await.unwrap();
        assert_eq!(text(&problem, "code"), "sandbox_busy");
    }

    server.let_go(&id).await;
    let job = server.wait_for_end(&id).await;
    assert_eq!(job["status"], "completed");
    assert_eq!(text(step(&job, 3), "stdout"), "after\n");
    drop(served);
}

#[tokio::test]
async fn a_reader_that_leaves_makes_room() {
    let server = TestServer::start();
    let steps = [shell("truncate -s 50M large; echo small > small"), wait_for_go()];
    let id = server.submit(&json!({ "steps": steps })).await;
    server.wait_for_step(&id, "step.started", 2).await;
    let large = format!("/jobs/{id}/files/large");
    for _ in 0..3 {
        let mut served = 0;
        // Places are given back a moment after their readers have left.
        while served < 16 {
            let mut held = Vec::new();
            for _ in 0..16 {
                held.push(server.get(&large).await);
            }
            served = held.iter().filter(|response| response.status() == 200).count();
        }
    }
    while server.get(&format!("/jobs/{id}/files/small")).await.status() != 200 {}
    server.let_go(&id).await;
    assert_eq!(server.wait_for_end(&id).await["status"], "completed");
}
