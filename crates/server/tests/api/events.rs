//! Histories over a real connection: in order, without gaps, resumable, verifiable.

use axum::http::StatusCode;
use bellglass_protocol::chain::Verifier;
use bellglass_protocol::event::{EndStatus, EventBody};
use bellglass_protocol::id::JobId;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _};

use crate::connection::{PATIENCE, listen};
use crate::document;
use crate::harness::{HELLO, Harness};

fn note(n: u32) -> EventBody {
    EventBody::SandboxLost { reason: format!("note {n}"), kept: None }
}

/// The numbers and lines of the events in an answer.
fn events_in(text: &str) -> Vec<(u64, String)> {
    let mut events = Vec::new();
    let mut id = None;
    for line in text.lines() {
        if let Some(number) = line.strip_prefix("id: ") {
            id = Some(number.parse().unwrap());
        } else if let Some(data) = line.strip_prefix("data: ") {
            events.push((id.take().expect("an id before the data"), data.to_owned()));
        }
        assert!(!line.starts_with("event:"), "events have no name");
    }
    events
}

fn verify(job: JobId, lines: impl IntoIterator<Item = impl AsRef<str>>) -> u64 {
    let mut verifier = Verifier::new(Some(job));
    for line in lines {
        verifier.line(line.as_ref()).unwrap();
    }
    verifier.finish().unwrap().0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_sees_every_event_once_while_they_are_written() {
    const NOTES: u32 = 1000;
    let server = Harness::new().await;
    let listening = listen(&server).await;
    let job = server.schedule(HELLO).await;
    let claim = server.claim().await;
    let path = format!("/jobs/{job}/events");
    let writing = async {
        for n in 1..=NOTES {
            server.append(claim, note(n)).await;
        }
        server.finish(claim, EndStatus::Completed).await;
    };
    let late = async {
        tokio::task::yield_now().await;
        listening.all(&path, "").await
    };
    let lines = format!("{path}?format=jsonl&follow=1");
    let ((), early, late, lines) =
        tokio::join!(writing, listening.all(&path, ""), late, listening.all(&lines, ""));
    for text in [early, late] {
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        assert!(text.contains("content-type: text/event-stream\r\n"));
        let events = events_in(&text);
        let total = u64::from(NOTES) + 3;
        assert!(events.iter().map(|(id, _)| *id).eq(1..=total), "in order and without gaps");
        assert_eq!(verify(job, events.into_iter().map(|(_, line)| line)), total);
    }
    let sealed = lines.lines().filter(|line| line.starts_with('{'));
    assert_eq!(verify(job, sealed), u64::from(NOTES) + 3);
}

#[tokio::test]
async fn a_stream_is_resumed_where_it_broke() {
    let server = Harness::new().await;
    let listening = listen(&server).await;
    let job = server.schedule(HELLO).await;
    let claim = server.claim().await;
    let path = format!("/jobs/{job}/events");

    let mut stream = listening.open(&path, "").await;
    let mut seen = String::new();
    while !seen.contains("id: 2") {
        let mut line = String::new();
        tokio::time::timeout(PATIENCE, stream.read_line(&mut line)).await.unwrap().unwrap();
        seen.push_str(&line);
    }
    drop(stream);

    for n in 1..=3 {
        server.append(claim, note(n)).await;
    }
    server.finish(claim, EndStatus::Completed).await;
    let ids = |text: String| events_in(&text).into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    assert_eq!(ids(listening.all(&path, "Last-Event-ID: 2\r\n").await), [3, 4, 5, 6]);
    assert_eq!(ids(listening.all(&format!("{path}?after=4"), "").await), [5, 6]);
    let both = listening.all(&format!("{path}?after=1"), "Last-Event-ID: 5\r\n").await;
    assert_eq!(ids(both), [6], "the header is newer than the address");
    assert_eq!(ids(listening.all(&format!("{path}?after=6"), "").await), [] as [u64; 0]);
    assert_eq!(ids(listening.all(&format!("{path}?after=999"), "").await), [] as [u64; 0]);
}

#[tokio::test]
async fn whoever_has_seen_the_end_is_told_not_to_come_again() {
    let server = Harness::new().await;
    let job = server.ended_with(b"PK".to_vec()).await;
    let path = format!("/jobs/{job}/events");
    let answer = server.get_with(&path, "last-event-id", "4").await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    let answer = server.get_with(&path, "last-event-id", "3").await;
    assert_eq!(events_in(answer.text()).len(), 1);
    let answer = server.get_with(&path, "last-event-id", "soon").await;
    assert_eq!(answer.problem(), (400, "invalid_query".into()));
}

/// Whoever waits for what lies beyond the last event sees no `finished`, but the end all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_from_beyond_the_end_ends_with_the_job() {
    let server = Harness::new().await;
    let listening = listen(&server).await;
    let job = server.schedule(HELLO).await;
    let claim = server.claim().await;
    let path = format!("/jobs/{job}/events?format=jsonl&follow=1&after=1000000");
    let mut early = listening.open(&path, "").await;
    let mut line = String::new();
    // Once the headers are there, somebody listens.
    while line != "\r\n" {
        line.clear();
        early.read_line(&mut line).await.unwrap();
    }
    server.append(claim, note(1)).await;
    server.finish(claim, EndStatus::Completed).await;
    let mut rest = String::new();
    let read = tokio::time::timeout(PATIENCE, early.read_to_string(&mut rest));
    read.await.expect("the stream ends").unwrap();
    assert!(!rest.contains("finished"), "{rest}");
    let late = listening.all(&path, "").await;
    assert!(!late.contains("finished"), "{late}");
}

#[tokio::test]
async fn the_log_is_the_exact_lines() {
    let server = Harness::new().await;
    let job = server.schedule(HELLO).await;
    let claim = server.claim().await;
    for n in 1..=450 {
        server.append(claim, note(n)).await;
    }
    let answer = server.get(&format!("/jobs/{job}/events?format=jsonl")).await;
    assert_eq!(answer.header("content-type"), "application/x-ndjson");
    assert!(answer.text().ends_with('\n'));
    assert_eq!(verify(job, answer.text().lines()), 452);
    let answer = server.get(&format!("/jobs/{job}/events?format=jsonl&after=450")).await;
    assert_eq!(answer.text().lines().count(), 2);
    let answer = server.get(&format!("/jobs/{job}/events?follow=0")).await;
    assert_eq!(events_in(answer.text()).len(), 452);
}

#[tokio::test]
async fn lines_are_as_documented() {
    let server = Harness::new().await;
    let job = server.ended_with(b"PK".to_vec()).await;
    let answer = server.get(&format!("/jobs/{job}/events?format=jsonl")).await;
    for line in answer.text().lines() {
        let event = serde_json::from_str(line).unwrap();
        assert!(document::accepts("Event", &event), "{line}");
    }
}

#[tokio::test]
async fn stopping_the_server_ends_its_streams() {
    let server = Harness::new().await;
    let mut listening = listen(&server).await;
    let job = server.schedule(HELLO).await;
    let path = format!("/jobs/{job}/events");
    let mut stream = listening.open(&path, "").await;
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    assert!(line.starts_with("HTTP/1.1 200"), "{line}");
    listening.stop.take().unwrap().send(()).unwrap();
    let mut rest = String::new();
    tokio::time::timeout(PATIENCE, stream.read_to_string(&mut rest)).await.unwrap().unwrap();
    assert_eq!(events_in(&rest).len(), 1);
    tokio::time::timeout(PATIENCE, listening.serving).await.unwrap().unwrap().unwrap();
}
