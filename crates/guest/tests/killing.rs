//! Nothing that a call started survives its time-out or its cancellation.

mod support;

use std::time::Duration;

use bellglass_protocol::id::CallId;
use bellglass_protocol::step::StepStatus;
use bellglass_protocol::wire::{Reply, Request};
use serde_json::json;
use support::{PATIENCE, TestGuest, eventually, runs};

/// Every way to hide that a command line offers. `MARK` tells these processes from others.
fn hiding_places(mark: &str) -> String {
    r#"
    setsid sleep 1000.MARK &
    (sleep 1000.MARK &)
    nohup sleep 1000.MARK > /dev/null 2>&1 &
    env -i setsid sh -c 'trap "" TERM INT HUP; sleep 1000.MARK & wait' &
    (setsid setsid sh -c '(sleep 1000.MARK &) & sleep 1000.MARK' > /dev/null 2>&1 < /dev/null &) &
    python3 -c '
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 64)
        os.execvp("sleep", ["sleep", "1000.MARK"])
    os._exit(0)
time.sleep(1000)  # MARK
' &
    sh -c 'kill -STOP $$; : MARK' &
    until [ "$(pgrep -fc '^sleep 1000.MARK')" -ge 7 ]; do sleep 0.02; done
    echo ready
    sleep 1000.MARK
    "#
    .replace("MARK", mark)
}

#[tokio::test]
async fn a_time_out_kills_the_whole_tree() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    let call = json!({"tool": "shell", "command": hiding_places("20771")});
    let mut running = worker.begin(1, call, Duration::from_secs(4)).await;
    running.take_output(6).await;
    assert!(runs("1000.20771"));
    let done = running.finish_from(6).await;
    assert_eq!(done.result.status, StepStatus::TimedOut);
    assert_eq!(done.result.output_bytes, 6, "output so far is kept");
    assert!(!runs("20771"), "something survived");
}

#[tokio::test]
async fn a_cancellation_kills_the_whole_tree() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    let call = json!({"tool": "shell", "command": hiding_places("20773")});
    let mut running = worker.begin(1, call, PATIENCE).await;
    running.take_output(6).await;
    let cancel = Request::CancelCall { id: CallId::of_step(1) };
    assert_eq!(worker.reply(&cancel).await, Reply::Ok);
    let done = running.finish_from(6).await;
    assert_eq!(done.result.status, StepStatus::Cancelled);
    assert!(!runs("20773"), "something survived");
    assert_eq!(worker.reply(&cancel).await, Reply::Ok, "a second time changes nothing");
}

#[tokio::test]
async fn a_tree_that_keeps_growing_is_killed_too() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    // Each process replaces itself all the time, so no list of them is ever right.
    let command = "hop() { (sleep 0.003; hop 20787 &) & }; export -f hop\n\
                   for i in 1 2 3 4; do hop; done; echo ready; sleep 1000.20787";
    let call = json!({"tool": "shell", "command": command});
    let mut running = worker.begin(1, call, PATIENCE).await;
    running.take_output(6).await;
    worker.reply(&Request::CancelCall { id: CallId::of_step(1) }).await;
    let done = running.finish_from(6).await;
    assert_eq!(done.result.status, StepStatus::Cancelled);
    assert!(!runs("20787"), "something survived");
}

#[tokio::test]
async fn other_calls_are_left_alone() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    let waiting = json!({"tool": "shell", "command": "until [ -e go ]; do sleep 0.01; done; echo still here"});
    let other = worker.begin(1, waiting, PATIENCE).await;
    let short = json!({"tool": "shell", "command": "sleep 1000"});
    let done = worker.begin(2, short, Duration::from_millis(50)).await.finish().await;
    assert_eq!(done.result.status, StepStatus::TimedOut);
    guest.write("go", "");
    assert_eq!(other.finish().await.stdout(), "still here\n");
}

#[tokio::test]
async fn supervisors_are_gone_when_their_trees_are() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    let done = worker.shell(1, "echo $PPID").await;
    let supervisor = format!("/proc/{}", done.stdout().trim());
    eventually("it was reaped", || !std::path::Path::new(&supervisor).exists()).await;
}
