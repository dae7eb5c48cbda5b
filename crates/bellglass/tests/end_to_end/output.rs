//! What a step writes: live, bounded in the record, complete on request.

use serde_json::{Value, json};

use crate::support::{TestServer, archive, shell, step, text, wait_for_go};

async fn full_output(server: &TestServer, job: &Value, n: usize) -> Vec<u8> {
    let path = format!("/jobs/{}/steps/{n}/output", text(job, "job_id"));
    let response = server.get(&path).await;
    assert_eq!(response.status(), 200);
    response.bytes().await.unwrap().to_vec()
}

#[tokio::test]
async fn output_comes_while_the_step_runs() {
    let server = TestServer::start();
    let job = server.submit(&json!({ "steps": [wait_for_go()] })).await;
    let event = server.wait_for_step(&job, "step.output", 1).await;
    assert_eq!((&event["text"], &event["stream"]), (&json!("waiting\n"), &json!("stdout")));
    let running = server.job(&job).await;
    let running = step(&running, 1);
    assert_eq!((text(running, "status"), text(running, "stdout")), ("running", "waiting\n"));
    server.let_go(&job).await;
    assert_eq!(step(&server.wait_for_end(&job).await, 1)["stdout"], "waiting\n");
}

#[tokio::test]
async fn long_output_keeps_head_and_tail_and_is_complete_on_request() {
    let server = TestServer::start();
    let job = server.run(&json!({ "steps": [shell("seq 1 200000")] })).await;
    let whole: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    let recorded = step(&job, 1);
    assert_eq!(recorded["output_bytes"], whole.len());
    for field in ["stdout", "output"] {
        let kept = text(recorded, field);
        assert!(kept.starts_with("1\n2\n3\n") && kept.ends_with("199999\n200000\n"), "{field}");
        assert!(kept.len() < 70_000, "{field} has {} bytes", kept.len());
    }
    let kept = text(recorded, "stdout");
    let dropped = recorded["dropped_bytes"].as_u64().unwrap() as usize;
    let note = format!("\n[… {dropped} bytes left out …]\n");
    assert!(kept.contains(&note));
    assert_eq!(kept.len() - note.len() + dropped, whole.len());
    assert!(full_output(&server, &job, 1).await == whole.as_bytes());
    // Events carry only the head.
    let log = server.log(text(&job, "job_id")).await;
    assert!(log.len() < 500_000, "the log has {} bytes", log.len());
}

#[tokio::test]
async fn both_outputs_are_kept_apart_and_together() {
    let server = TestServer::start();
    let command = "for n in {1..20000}; do echo out $n; echo err $n >&2; done";
    let job = server.run(&json!({ "steps": [shell(command)] })).await;
    let recorded = step(&job, 1);
    assert!(text(recorded, "stdout").starts_with("out 1\nout 2\n"));
    assert!(text(recorded, "stderr").ends_with("err 19999\nerr 20000\n"));
    assert!(!text(recorded, "stdout").contains("err"));
    let all = String::from_utf8(full_output(&server, &job, 1).await).unwrap();
    for word in ["out", "err"] {
        let lines: Vec<&str> = all.lines().filter(|line| line.starts_with(word)).collect();
        assert_eq!(lines.len(), 20_000);
        assert_eq!(lines[19_999], format!("{word} 20000"));
    }
}

#[tokio::test]
async fn output_that_is_no_text_does_no_harm() {
    let server = TestServer::start();
    let steps = [
        shell("printf 'a\\xff\\xfe\\x00b'"),
        shell("head -c 300000 /dev/urandom | tee copy"),
        shell("printf 'torn \\xf0\\x9f'; sleep 0.2; printf '\\x98\\x80 whole'"),
    ];
    let job = server.run(&json!({ "steps": steps })).await;
    assert_eq!(job["failed_steps"], json!([]));
    assert_eq!(step(&job, 1)["stdout"], "a\u{fffd}\u{fffd}\u{0}b");
    let copy = archive::content(&mut server.archive(text(&job, "job_id")).await, "copy");
    assert_eq!(copy.len(), 300_000);
    assert!(full_output(&server, &job, 2).await == copy);
    assert_eq!(step(&job, 3)["stdout"], "torn 😀 whole");
}

#[tokio::test]
async fn no_more_is_kept_in_full_than_the_job_may() {
    let server = TestServer::start();
    let steps = [shell("yes | head -c 1000000"), shell("echo on")];
    for limit in [100_000, 0] {
        let job = server.run(&json!({ "steps": steps, "limits": { "output": limit } })).await;
        assert_eq!(job["status"], "completed", "{limit}: {:#}", job["error"]);
        assert_eq!(step(&job, 1)["output_bytes"], 1_000_000);
        assert_eq!(step(&job, 1)["unkept_bytes"], 1_000_000 - limit);
        let kept = full_output(&server, &job, 1).await;
        let (kept, note) = kept.split_at(limit);
        assert!(kept.chunks(2).all(|line| line == b"y\n"));
        let lost = format!("\n[… {} bytes more were not kept", 1_000_000 - limit);
        assert!(note.starts_with(lost.as_bytes()), "{}", String::from_utf8_lossy(note));
        assert_eq!(step(&job, 2)["stdout"], "on\n");
    }
}

/// Of all its steps together a job may have so much kept in full, and no step's output lies on the
/// disk twice for longer than it takes to record its end.
#[tokio::test]
async fn a_job_cannot_fill_the_disk_with_its_output() {
    let server = TestServer::start();
    let long = || shell("yes | head -c 200000");
    let steps = [long(), long(), long(), wait_for_go()];
    let limits = json!({ "total_output": 300_000 });
    let job = server.submit(&json!({ "steps": steps, "limits": limits })).await;
    server.wait_for_step(&job, "step.output", 4).await;
    let spools = std::fs::read_dir(server.data().join("spools").join(&job)).unwrap();
    let spools: Vec<_> = spools.map(|spool| spool.unwrap().file_name()).collect();
    assert_eq!(spools, ["4"]);
    server.let_go(&job).await;
    let job = server.wait_for_end(&job).await;
    for (n, kept) in [(1, 200_000), (2, 100_000), (3, 0)] {
        assert_eq!(step(&job, n)["unkept_bytes"], 200_000 - kept, "step {n}");
        let all = full_output(&server, &job, n).await;
        let count = all.windows(2).filter(|pair| *pair == b"y\n").count();
        assert_eq!(count, kept / 2, "step {n}");
    }
}

/// Every character takes six in the log, on both outputs, in every step.
#[tokio::test]
async fn a_job_cannot_make_its_history_as_long_as_it_likes() {
    let server = TestServer::start();
    let steps = vec![shell("head -c 100000 /dev/zero | tee /dev/stderr"); 40];
    let job = server.run(&json!({ "steps": steps })).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    let log = server.log(text(&job, "job_id")).await;
    assert!(log.len() > 16 << 20, "nothing is proven by {} bytes", log.len());
    assert!(log.len() < 20 << 20, "the log has {} bytes", log.len());
    assert!(text(step(&job, 1), "stdout").len() > 60_000);
    let last = step(&job, 40);
    assert!(text(last, "stdout").len() < 1000 && text(last, "output").len() < 1000);
    assert_eq!(last["output_bytes"], 200_000);
    assert!(full_output(&server, &job, 40).await == vec![0; 200_000]);

    let id = text(&job, "job_id");
    let status = server.json(&format!("/status/{id}")).await;
    assert_eq!((&status["steps_done"], &status["steps_total"]), (&json!(40), &json!(40)));
    let packed = archive::text(&mut server.archive(id).await, "agent.log");
    assert!(log.starts_with(&packed), "the log in the ZIP is the log until then");
    let memory = archive::text(&mut server.archive(id).await, "memory.json");
    let memory: Value = serde_json::from_str(&memory).unwrap();
    assert_eq!(memory["history"].as_array().unwrap().len(), 40);
}

#[tokio::test]
async fn a_background_process_does_not_hold_up_its_step() {
    let server = TestServer::start();
    let steps = [
        shell("(while :; do echo noise; sleep 0.05; done) & echo started"),
        shell("setsid sleep 1000 & echo also started"),
        shell("pgrep -c sleep >/dev/null && echo still there"),
    ];
    let job = server.run(&json!({ "steps": steps })).await;
    assert_eq!(job["failed_steps"], json!([]), "{job:#}");
    assert!(text(step(&job, 1), "stdout").contains("started\n"));
    assert_eq!(step(&job, 3)["stdout"], "still there\n");
}
