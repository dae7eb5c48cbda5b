//! A call happens at most once, its output is held for a worker that is gone, and nothing is lost.

mod support;

use std::time::Duration;

use bellglass_protocol::id::CallId;
use bellglass_protocol::step::StepStatus;
use bellglass_protocol::wire::{OUTPUT_WINDOW, Reply, Request};
use futures::StreamExt;
use serde_json::{Value, json};
use support::{PATIENCE, TestGuest, call_request, eventually, succeeded};

fn shell(command: &str) -> Value {
    json!({"tool": "shell", "command": command})
}

#[tokio::test]
async fn joining_a_running_call_runs_it_once() {
    let guest = TestGuest::start();
    let command =
        shell("echo x >> count; echo first; until [ -e go ]; do sleep 0.01; done; echo last");
    let first = guest.connect().await;
    let mut early = first.begin(1, command.clone(), PATIENCE).await;
    assert_eq!(early.take_output(6).await, b"first\n");
    first.die();

    let second = guest.connect().await;
    let third = guest.connect().await;
    let joined = second.ask(&call_request(1, command.clone(), PATIENCE, 0)).await;
    let also = third.ask(&call_request(1, command.clone(), PATIENCE, 0)).await;
    guest.write("go", "");
    // Only one of the two confirms, so that the other misses nothing.
    let joined = joined.finish().await;
    succeeded(&joined);
    assert_eq!(joined.stdout(), "first\nlast\n");
    drop(also);
    assert_eq!(guest.read("count"), "x\n");
}

#[tokio::test]
async fn a_result_is_replayed_until_it_is_forgotten() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    let command = shell("echo x >> count; echo hello; exit 3");
    // Nothing is confirmed here, so all of it can be had again.
    let mut first = worker.begin(1, command.clone(), PATIENCE).await;
    first.take_output(6).await;
    let Reply::Done { result } = first.reply().await else { panic!() };
    drop(worker);

    let worker = guest.connect().await;
    let again = worker.begin(1, command.clone(), PATIENCE).await.finish().await;
    assert_eq!(again.result, result);
    assert_eq!(again.stdout(), "hello\n");
    let rest =
        worker.ask(&call_request(1, command.clone(), PATIENCE, 6)).await.finish_from(6).await;
    assert_eq!((rest.result, rest.stdout.len()), (result, 0));
    assert_eq!(guest.read("count"), "x\n");

    let forget = Request::ForgetCall { id: CallId::of_step(1) };
    assert_eq!(worker.reply(&forget).await, Reply::Ok);
    assert_eq!(worker.reply(&forget).await, Reply::Ok);
    let error = worker.begin(1, command, PATIENCE).await.error().await;
    assert_eq!(error.code, "call_forgotten");
    assert_eq!(guest.read("count"), "x\n");
}

#[tokio::test]
async fn wrong_claims_about_a_call_are_refused() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    succeeded(&worker.call(1, shell("echo hello")).await);
    let refused = async |step, command: &str, received| {
        let request = call_request(step, shell(command), PATIENCE, received);
        worker.ask(&request).await.error().await.code
    };
    assert_eq!(refused(1, "echo hello", 7).await, "received_too_much");
    assert_eq!(refused(1, "echo hello", 0).await, "output_released");
    assert_eq!(refused(1, "echo other", 6).await, "call_differs");
    let unknown = Request::CancelCall { id: CallId::of_step(9) };
    assert!(
        matches!(worker.reply(&unknown).await, Reply::Error { error } if error.code == "unknown_call")
    );

    let running = worker.begin(2, shell("sleep 1000"), PATIENCE).await;
    let forget = Request::ForgetCall { id: CallId::of_step(2) };
    assert!(
        matches!(worker.reply(&forget).await, Reply::Error { error } if error.code == "call_running")
    );
    let cancel = Request::CancelCall { id: CallId::of_step(2) };
    assert_eq!(worker.reply(&cancel).await, Reply::Ok);
    assert_eq!(running.finish().await.result.status, StepStatus::Cancelled);
}

#[tokio::test]
async fn output_larger_than_the_window_arrives_whole_and_in_order() {
    let guest = TestGuest::start();
    let done = guest.connect().await.shell(1, "seq 1 700000; echo end >&2").await;
    succeeded(&done);
    let mut expected = String::new();
    for n in 1..=700_000 {
        expected.push_str(&format!("{n}\n"));
    }
    assert!(expected.len() > 4 * OUTPUT_WINDOW);
    assert!(done.stdout() == expected, "the output is not what was written");
    assert_eq!(done.result.output_bytes as usize, expected.len() + 4);
}

#[tokio::test]
async fn a_worker_that_confirms_nothing_stops_the_process_and_not_the_guest() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    let command = shell("head -c 3000000 /dev/zero; touch wrote-all");
    let mut call = worker.begin(1, command.clone(), PATIENCE).await;
    let taken = call.take_output(OUTPUT_WINDOW).await;
    assert_eq!(taken.len(), OUTPUT_WINDOW, "the guest holds the window and no more");
    let more = tokio::time::timeout(Duration::from_millis(200), call.wire.next()).await;
    assert!(more.is_err(), "nothing comes before the window moves");
    assert!(!guest.workspace().join("wrote-all").exists());
    worker.die();

    // A worker that comes later finds everything from where the first left off.
    let worker = guest.connect().await;
    let start = OUTPUT_WINDOW as u64 / 2;
    let call = worker.ask(&call_request(1, command, PATIENCE, start)).await;
    let done = call.finish_from(start).await;
    succeeded(&done);
    assert_eq!(done.stdout.len() as u64, 3_000_000 - start);
    assert_eq!(done.result.output_bytes, 3_000_000);
}

#[tokio::test]
async fn endless_output_ends_with_its_time() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    let call = worker.begin(1, shell("yes"), Duration::from_millis(300)).await;
    let done = call.finish().await;
    assert_eq!(done.result.status, StepStatus::TimedOut);
    assert_eq!(done.result.output_bytes, done.stdout.len() as u64);
    assert!(!done.stdout.is_empty());

    // Nobody takes this one's output, and it ends in time all the same.
    let mut call = worker.begin(2, shell("yes >&2"), Duration::from_millis(300)).await;
    let taken = call.take_output(OUTPUT_WINDOW).await.len() as u64;
    let done = call_after(&mut call, taken).await;
    assert!(matches!(done, Reply::Done { result } if result.status == StepStatus::TimedOut));
}

async fn call_after(call: &mut support::Exchange, mut taken: u64) -> Reply {
    use bellglass_protocol::wire::Frame;
    call.confirm(taken).await;
    loop {
        match call.frame().await.unwrap() {
            Frame::Output(_, piece) => {
                taken += piece.len() as u64;
                call.confirm(taken).await;
            }
            Frame::Message(text) => return serde_json::from_slice(&text).unwrap(),
            Frame::Data(_) => panic!("data in a call"),
        }
    }
}

#[tokio::test]
async fn a_call_goes_on_while_no_worker_is_there() {
    let guest = TestGuest::start();
    let command = shell("until [ -e go ]; do sleep 0.01; done; echo done; touch finished");
    let worker = guest.connect().await;
    let _call = worker.begin(1, command.clone(), PATIENCE).await;
    // An exchange that was answered shows that the call's request was taken before.
    worker.reply(&Request::Hello { protocol: 1 }).await;
    worker.die();
    guest.write("go", "");
    eventually("it went on alone", || guest.workspace().join("finished").exists()).await;
    let done = guest.connect().await.call(1, command).await;
    assert_eq!(done.stdout(), "done\n");
}

#[tokio::test]
async fn garbage_does_not_hurt_the_guest() {
    use tokio::io::AsyncWriteExt;
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    for garbage in [
        &[9, 0, 0, 0, 0][..],
        &[0, 0xff, 0xff, 0xff, 0xff],
        b"\0\0\0\0\x02{}",
        b"\0\0\0\0\x01\xff",
        b"\x03\0\0\0\x01x",
        b"\x01\0\0\0\0",
        b"",
    ] {
        let mut exchange = worker.open().await;
        let stream = exchange.wire.get_mut();
        stream.write_all(garbage).await.unwrap();
        stream.flush().await.unwrap();
        if !garbage.is_empty() {
            assert_eq!(exchange.error().await.code, "bad_request", "{garbage:?}");
        }
    }
    // Garbage in the middle of a call ends that exchange only.
    let mut call = worker.begin(1, shell("sleep 0.3; echo x"), PATIENCE).await;
    call.data(b"what?").await;
    while call.wire.next().await.is_some_and(|frame| frame.is_ok()) {}
    assert_eq!(worker.call(1, shell("sleep 0.3; echo x")).await.stdout(), "x\n");
    // Garbage below the streams ends that connection only.
    let mut raw = tokio::net::UnixStream::connect(guest.outside().join("wire")).await.unwrap();
    raw.write_all(&[0xff; 4096]).await.unwrap();
    assert_eq!(guest.connect().await.shell(2, "echo well").await.stdout(), "well\n");
    assert_eq!(worker.shell(3, "echo well").await.stdout(), "well\n");
}
