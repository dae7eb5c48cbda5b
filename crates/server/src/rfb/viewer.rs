//! A viewer of a desktop, whatever carries its bytes: a WebSocket or a connection of its own.

use std::io;
use std::pin::Pin;

use axum::extract::ws::{Message, WebSocket};
use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{Sink, SinkExt as _, StreamExt as _};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio_util::codec::{BytesCodec, Framed};

use crate::sockets;

pub(crate) struct Viewer {
    pub(super) to: Pin<Box<dyn Sink<ToViewer, Error = io::Error> + Send>>,
    pub(super) from: BoxStream<'static, io::Result<FromViewer>>,
    /// What came together with something that was read.
    pub(super) ahead: BytesMut,
}

#[derive(Debug)]
pub(crate) enum ToViewer {
    Bytes(Bytes),
    /// Asks whether the page is still there.
    Heartbeat,
    /// A word about the desktop, for pages only: no other viewer would understand it.
    Said(Said),
}

#[derive(Debug)]
pub(crate) enum FromViewer {
    Bytes(Bytes),
    Asked(Asked),
}

/// What a page asks for beside what every viewer can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub(crate) enum Asked {
    /// To have the desktop in hand.
    Take,
    Return,
    /// How long a word takes, behind the pictures that are under way.
    Ping,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub(crate) enum Said {
    Taken,
    Returned,
    Pong,
    Refused { code: String, message: String },
}

impl Viewer {
    pub(crate) fn of_socket(socket: WebSocket) -> Self {
        let (to, from) = socket.split();
        let to = to.sink_map_err(io::Error::other).with(|item| async move {
            Ok::<_, io::Error>(match item {
                ToViewer::Bytes(bytes) => Message::Binary(bytes),
                ToViewer::Heartbeat => Message::Ping(Bytes::new()),
                ToViewer::Said(said) => {
                    Message::Text(serde_json::to_string(&said).unwrap_or_default().into())
                }
            })
        });
        let from = sockets::listen(from).filter_map(async |message| match message {
            Ok(Message::Binary(bytes)) => Some(Ok(FromViewer::Bytes(bytes))),
            Ok(Message::Text(text)) => {
                let asked = serde_json::from_str(&text).map(FromViewer::Asked);
                Some(asked.map_err(io::Error::other))
            }
            Ok(Message::Close(_)) => Some(Err(io::ErrorKind::ConnectionAborted.into())),
            Ok(Message::Ping(_) | Message::Pong(_)) => None,
            Err(error) => Some(Err(error)),
        });
        Self { to: Box::pin(to), from: from.boxed(), ahead: BytesMut::new() }
    }

    pub(crate) fn of_connection(connection: TcpStream, ahead: BytesMut) -> Self {
        let (to, from) = Framed::new(connection, BytesCodec::new()).split();
        let to = to.with_flat_map(|item| {
            let bytes = match item {
                ToViewer::Bytes(bytes) => Some(Ok(bytes)),
                ToViewer::Said(_) | ToViewer::Heartbeat => None,
            };
            futures::stream::iter(bytes)
        });
        let from = from.map(|piece| piece.map(|piece| FromViewer::Bytes(piece.freeze())));
        Self { to: Box::pin(to), from: from.boxed(), ahead }
    }

    /// Says something to a page, if it is one. Nothing hangs on it.
    pub(super) async fn say(&mut self, said: Said) {
        let _ = self.to.send(ToViewer::Said(said)).await;
    }

    pub(super) async fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        self.to.send(ToViewer::Bytes(bytes)).await
    }

    /// So many bytes, and no more.
    pub(super) async fn read(&mut self, count: usize) -> io::Result<Bytes> {
        while self.ahead.len() < count {
            match self.from.next().await {
                Some(Ok(FromViewer::Bytes(bytes))) => self.ahead.extend_from_slice(&bytes),
                // There is nothing yet that could be asked for.
                Some(Ok(FromViewer::Asked(_))) => {}
                Some(Err(error)) => return Err(error),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        Ok(self.ahead.split_to(count).freeze())
    }
}
