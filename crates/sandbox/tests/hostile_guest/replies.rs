//! Replies that are out of turn, too many, too long, or never come.

use std::time::Duration;

use bellglass_protocol::step::{OutputStream, ToolError};
use bellglass_protocol::wire::{
    DATA_CHUNK, Entry, EntryKind, Frame, MAX_ERROR_MESSAGE, Reply, Request, WireError,
};
use bellglass_sandbox::client::ClientError;
use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};

use crate::fake::{Exchange, behave, greeting, own_memory, say, success, welcome};
use crate::frames::{call, sandbox_with};

fn entry(path: String) -> Reply {
    let entry = Entry { path, kind: EntryKind::File, mode: 0o644, bytes: 1, modified: 0 };
    Reply::Entry { entry }
}

#[tokio::test]
async fn replies_out_of_turn() {
    let replies = [
        welcome(),
        Reply::Done { result: success() },
        Reply::Ok,
        Reply::File { bytes: u64::MAX },
        entry("a".into()),
        Reply::EntryEnd { error: None },
        Reply::End,
    ];
    for reply in replies {
        let shown = format!("{reply:?}");
        let answering = greeting(move |_, mut exchange: Exchange| {
            let reply = reply.clone();
            async move {
                let _ = say(&mut exchange, &reply).await;
            }
        });
        let sandbox = sandbox_with(answering).await;
        let guest = sandbox.guest();
        let out_of_turn = |error: &ClientError| {
            matches!(error, ClientError::Wire(WireError::OutOfTurn { .. } | WireError::EndedEarly))
        };
        // Each request has replies that fit it, and all others are errors.
        let mut errors = Vec::new();
        errors.extend(call(guest).await.err());
        errors.extend(guest.delete_file("x").await.err());
        errors.extend(guest.list_folder("").await.err());
        errors.extend(guest.read_file("x").await.err());
        errors.extend(guest.pack().await.unwrap().next().await.err());
        assert!(errors.len() >= 3 && errors.iter().all(out_of_turn), "{shown}: {errors:?}");
    }
}

#[tokio::test]
async fn answers_that_come_twice() {
    let twice = greeting(|request, mut exchange: Exchange| async move {
        for _ in 0..2 {
            let _ = say(&mut exchange, &Reply::Done { result: success() }).await;
        }
        behave(request, exchange).await;
    });
    let sandbox = sandbox_with(twice).await;
    for _ in 0..20 {
        assert!(call(sandbox.guest()).await.is_ok());
    }
}

#[tokio::test]
async fn answers_that_never_come() {
    let silent = greeting(|_, exchange: Exchange| async move {
        let _exchange = exchange;
        std::future::pending().await
    });
    let sandbox = sandbox_with(silent).await;
    let guest = sandbox.guest().clone().with_patience(Duration::from_millis(50));
    assert!(matches!(guest.delete_file("x").await, Err(ClientError::Silent)));
    assert!(matches!(guest.list_folder("").await, Err(ClientError::Silent)));
    assert!(matches!(guest.read_file("x").await.err(), Some(ClientError::Silent)));
    assert!(matches!(guest.pack().await.unwrap().next().await, Err(ClientError::Silent)));
    // Nor does it take what it is sent.
    let endless = futures::stream::repeat_with(|| Ok(Bytes::from(vec![0; DATA_CHUNK])));
    let sent = guest.write_file("x", false, endless).await;
    assert!(matches!(sent, Err(ClientError::Silent)), "{sent:?}");
}

#[tokio::test]
async fn output_without_end() {
    const PIECES: usize = 4096;
    let loud = greeting(|_, mut exchange: Exchange| async move {
        let piece = Bytes::from(vec![b'x'; DATA_CHUNK]);
        for _ in 0..PIECES {
            if exchange.send(Frame::Output(OutputStream::Stdout, piece.clone())).await.is_err() {
                return;
            }
        }
        let _ = say(&mut exchange, &Reply::Done { result: success() }).await;
        // A stream that is dropped is reset, with what is on its way.
        while exchange.next().await.is_some() {}
    });
    let sandbox = sandbox_with(loud).await;
    let before = own_memory();
    // A quarter of a gigabyte passes through, and none of it stays.
    assert!(call(sandbox.guest()).await.is_ok());
    assert!(own_memory() < before + (32 << 20));
}

#[tokio::test]
async fn folders_without_end() {
    // Many names, and long ones.
    for length in [1, 4096, 900_000] {
        let listing = greeting(move |_, mut exchange: Exchange| async move {
            let name = "n".repeat(length);
            while say(&mut exchange, &entry(name.clone())).await.is_ok() {}
        });
        let sandbox = sandbox_with(listing).await;
        let before = own_memory();
        match sandbox.guest().list_folder("").await {
            Ok(entries) => assert!(entries.len() <= 10_000),
            Err(error) => assert!(matches!(error, ClientError::Wire(_)), "{error}"),
        }
        assert!(own_memory() < before + (64 << 20), "{length}");
    }
}

#[tokio::test]
async fn files_without_end() {
    let endless = greeting(|request, mut exchange: Exchange| async move {
        let first = match request {
            Request::ReadFile { .. } => Reply::File { bytes: 1 },
            _ => entry("a".into()),
        };
        let _ = say(&mut exchange, &first).await;
        let piece = Bytes::from(vec![0; DATA_CHUNK]);
        while exchange.send(Frame::Data(piece.clone())).await.is_ok() {}
    });
    let sandbox = sandbox_with(endless).await;
    let before = own_memory();
    let (_, mut data) = sandbox.guest().read_file("x").await.unwrap();
    let mut packing = sandbox.guest().pack().await.unwrap();
    for _ in 0..2000 {
        data.next().await.unwrap().unwrap();
        packing.next().await.unwrap().unwrap();
    }
    // Nobody reads any more, and the guest is held back.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(own_memory() < before + (32 << 20));
}

#[tokio::test]
async fn errors_of_a_megabyte() {
    let complaining = greeting(|_, mut exchange: Exchange| async move {
        let error = ToolError { code: "c".repeat(1000), message: "m".repeat(900_000) };
        let _ = say(&mut exchange, &Reply::Error { error }).await;
    });
    let sandbox = sandbox_with(complaining).await;
    let error = sandbox.guest().delete_file("x").await.unwrap_err();
    assert!(error.to_string().len() <= MAX_ERROR_MESSAGE, "{}", error.to_string().len());
}
