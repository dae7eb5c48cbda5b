//! Programs that are spoken to over their standard input and output.

mod support;

use std::collections::BTreeMap;

use bellglass_protocol::step::OutputStream;
use bellglass_protocol::wire::{Frame, Reply, Request};
use support::{PATIENCE, TestGuest};

fn service(command: &[&str]) -> Request {
    Request::StartService {
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        environment: BTreeMap::from([("GREETING".into(), "hello".into())]),
    }
}

#[tokio::test]
async fn a_service_answers_until_its_stream_ends() {
    let guest = TestGuest::start();
    let client = guest.connect().await;
    let program = "echo $GREETING >&2; echo $$ > pid; while read -r line; do echo got $line; done";
    let mut wire = client.ask(&service(&["bash", "-c", program])).await;
    let mut said = BTreeMap::<&str, String>::new();
    assert!(matches!(wire.reply().await, Reply::Ok));
    for word in ["one", "two"] {
        wire.data(format!("{word}\n").as_bytes()).await;
        while !said.get("stdout").is_some_and(|text| text.contains(word)) {
            let frame = wire.frame().await;
            let Some(Frame::Output(stream, piece)) = frame else { panic!("{frame:?}") };
            let stream = if stream == OutputStream::Stdout { "stdout" } else { "stderr" };
            said.entry(stream).or_default().push_str(std::str::from_utf8(&piece).unwrap());
        }
    }
    assert_eq!(said["stdout"], "got one\ngot two\n");
    assert_eq!(said.get("stderr").map(String::as_str), Some("hello\n"));
    let pid = std::fs::read_to_string(guest.workspace().join("pid")).unwrap();
    let process = std::path::PathBuf::from(format!("/proc/{}", pid.trim()));
    assert!(process.exists());
    drop(wire);
    let gone = async {
        while process.exists() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the service goes with its stream");
}

#[tokio::test]
async fn a_service_that_ends_says_so() {
    let guest = TestGuest::start();
    let client = guest.connect().await;
    let mut wire = client.ask(&service(&["no-such-program"])).await;
    let mut frames = Vec::new();
    while let Some(frame) = wire.frame().await {
        frames.push(frame);
    }
    let Some(Frame::Message(last)) = frames.last() else { panic!("{frames:?}") };
    assert!(matches!(Reply::parse(last).unwrap(), Reply::End));
    let words = frames.iter().any(|frame| match frame {
        Frame::Output(OutputStream::Stderr, piece) => {
            String::from_utf8_lossy(piece).contains("no-such-program")
        }
        _ => false,
    });
    assert!(words, "{frames:?}");
}
