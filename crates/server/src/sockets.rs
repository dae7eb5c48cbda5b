//! What all WebSockets of ours have in common: how large a message may be, and that who is gone is
//! noticed.

use std::io;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use futures::stream::{SplitStream, Stream};
use tokio_stream::StreamExt as _;

/// The longest message that a page may send.
const LARGEST_MESSAGE: usize = 1 << 20;

/// What is made ready for each page to read into.
const READ_BUFFER: usize = 4 << 10;

/// How often a page is asked whether it is there, and how long it may be silent.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(20);
pub(crate) const SILENCE: Duration = Duration::from_secs(65);

/// The same upgrade with our bounds.
pub(crate) fn bounded(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade
        .max_message_size(LARGEST_MESSAGE)
        .max_frame_size(LARGEST_MESSAGE)
        // What pages send is short, and there may be many of them.
        .read_buffer_size(READ_BUFFER)
        // Pictures are large already when they come; they are sent as they are.
        .write_buffer_size(0)
}

/// What comes over a socket; an error once nothing has come for too long, not even an answer to a
/// heartbeat.
pub(crate) fn listen(
    from: SplitStream<WebSocket>,
) -> impl Stream<Item = io::Result<Message>> + Send + 'static {
    from.timeout(SILENCE).map(|message| match message {
        Ok(message) => message.map_err(io::Error::other),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    })
}
