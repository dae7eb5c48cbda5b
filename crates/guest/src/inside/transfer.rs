//! File data between the worker and the workspace: reading happens in a thread, frames wait here.

use std::io::Write;
use std::sync::Arc;

use bellglass_protocol::checkpoint::{Change, CheckpointNumber};
use bellglass_protocol::step::ToolError;
use bellglass_protocol::wire::{DATA_CHUNK, Frame, Receipt, Reply, WireError};
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tokio::sync::mpsc;

use super::Guest;
use super::exchange::{Wire, answer, ok_or};
use super::failure::{failure, path_io_failure};
use super::files::checkpoint::Wanted;
use super::files::delete::delete;
use super::files::pack::Packing;
use super::files::replace::Replacement;
use super::files::restore::{Piece, Restoration};
use super::files::send::{list_entries, send_file};
use super::follow::receipt;
use super::kill::kill_all_tools;

/// Frames between the thread that reads and the wire: enough that neither waits for the other.
const FRAMES_AHEAD: usize = 16;

/// Where a thread puts the frames that it makes.
pub(super) struct Frames(mpsc::Sender<Frame>);

/// The worker is gone, so there is nobody to make frames for.
pub(super) struct Unwanted;

impl Frames {
    pub(super) fn reply(&self, reply: &Reply) -> Result<(), Unwanted> {
        self.put(Frame::message(reply))
    }

    pub(super) fn data(&self, bytes: Bytes) -> Result<(), Unwanted> {
        self.put(Frame::Data(bytes))
    }

    fn put(&self, frame: Frame) -> Result<(), Unwanted> {
        self.0.blocking_send(frame).map_err(|_| Unwanted)
    }
}

pub(super) async fn read_file(
    guest: &Arc<Guest>,
    wire: Wire,
    path: String,
) -> Result<(), WireError> {
    send_frames(guest, wire, move |guest, frames| send_file(&guest.workspace, &path, frames)).await
}

/// Sends what is in memory as a file is sent.
pub(super) async fn send_content(mut wire: Wire, mut content: Bytes) -> Result<(), WireError> {
    wire.send(Frame::message(&Reply::File { bytes: content.len() as u64 })).await?;
    while !content.is_empty() {
        let piece = content.split_to(content.len().min(DATA_CHUNK));
        wire.send(Frame::Data(piece)).await?;
    }
    answer(wire, Reply::End).await
}

pub(super) async fn list_folder(
    guest: &Arc<Guest>,
    wire: Wire,
    path: String,
) -> Result<(), WireError> {
    send_frames(guest, wire, move |guest, frames| list_entries(&guest.workspace, &path, frames))
        .await
}

pub(super) async fn pack(guest: &Arc<Guest>, wire: Wire) -> Result<(), WireError> {
    send_frames(guest, wire, |guest, frames| {
        // The job is over. What still runs would change files while they are sent.
        kill_all_tools();
        Packing::new(frames).whole(&guest.workspace)
    })
    .await
}

pub(super) async fn checkpoint(
    guest: &Arc<Guest>,
    wire: Wire,
    wanted: Wanted,
) -> Result<(), WireError> {
    send_frames(guest, wire, move |guest, frames| {
        guest.checkpoints.send(&guest.workspace, wanted, frames)
    })
    .await
}

pub(super) async fn restore(
    guest: &Arc<Guest>,
    mut wire: Wire,
    number: CheckpointNumber,
) -> Result<(), WireError> {
    let (sender, mut pieces) = mpsc::channel::<Piece>(FRAMES_AHEAD);
    let (whole_sender, whole) = tokio::sync::oneshot::channel::<()>();
    let guest = guest.clone();
    let making = tokio::spawn(in_thread(move || {
        let mut restoration = Restoration::begin(&guest.workspace)?;
        while let Some(piece) = pieces.blocking_recv() {
            restoration.take(piece)?;
        }
        whole.blocking_recv().map_err(|_| failure("ended_early", "the data did not come whole"))?;
        restoration.finish(&guest.checkpoints, number)
    }));
    loop {
        let piece = match wire.next().await {
            Some(Ok(Frame::Data(piece))) => Piece::Data(piece),
            Some(Ok(frame)) => match change(&frame) {
                Some(change) => Piece::Change(change),
                None => match receipt(&frame)? {
                    Receipt::EndOfData => break,
                    Receipt::Received { .. } | Receipt::Resized { .. } => continue,
                },
            },
            Some(Err(error)) => return Err(error),
            None => return Err(WireError::EndedEarly),
        };
        // Whoever failed no longer takes anything; the reason comes below.
        drop(sender.send(piece).await);
    }
    let _ = whole_sender.send(());
    drop(sender);
    let done = making.await.unwrap_or_else(|_| Err(broken()));
    answer(wire, ok_or(done)).await
}

async fn send_frames(
    guest: &Arc<Guest>,
    mut wire: Wire,
    make: impl FnOnce(&Guest, &Frames) -> Result<(), Unwanted> + Send + 'static,
) -> Result<(), WireError> {
    let (sender, mut frames) = mpsc::channel(FRAMES_AHEAD);
    let guest = guest.clone();
    tokio::task::spawn_blocking(move || drop(make(&guest, &Frames(sender))));
    while let Some(frame) = frames.recv().await {
        wire.feed(frame).await?;
        // Many small frames go out together; the last one never waits.
        if frames.is_empty() {
            wire.flush().await?;
        }
    }
    wire.close().await
}

pub(super) async fn delete_file(
    guest: &Arc<Guest>,
    wire: Wire,
    path: String,
) -> Result<(), WireError> {
    let guest = guest.clone();
    let done = in_thread(move || delete(&guest.workspace, &path, false)).await;
    answer(wire, ok_or(done)).await
}

pub(super) async fn write_file(
    guest: &Arc<Guest>,
    mut wire: Wire,
    path: String,
    executable: bool,
) -> Result<(), WireError> {
    let (sender, mut pieces) = mpsc::channel::<Bytes>(FRAMES_AHEAD);
    let (whole_sender, whole) = tokio::sync::oneshot::channel::<()>();
    let guest = guest.clone();
    let writing = tokio::spawn(in_thread(move || {
        let mut file = Replacement::begin(&guest.workspace, &path)?;
        while let Some(piece) = pieces.blocking_recv() {
            file.write_all(&piece).map_err(|error| path_io_failure(&path, &error))?;
        }
        // The channel also closes when the worker goes away in the middle; then the old file stays.
        whole.blocking_recv().map_err(|_| failure("ended_early", "the data did not come whole"))?;
        file.commit(executable)
    }));
    loop {
        match wire.next().await {
            // A writer that failed no longer takes data; its reason comes below.
            Some(Ok(Frame::Data(piece))) => drop(sender.send(piece).await),
            Some(Ok(frame)) => match receipt(&frame)? {
                Receipt::EndOfData => break,
                Receipt::Received { .. } | Receipt::Resized { .. } => {}
            },
            Some(Err(error)) => return Err(error),
            None => return Err(WireError::EndedEarly),
        }
    }
    let _ = whole_sender.send(());
    drop(sender);
    let done = writing.await.unwrap_or_else(|_| Err(broken()));
    answer(wire, ok_or(done)).await
}

fn change(frame: &Frame) -> Option<Change> {
    match frame {
        Frame::Message(text) => serde_json::from_slice(text).ok(),
        Frame::Data(_) | Frame::Output(..) => None,
    }
}

async fn in_thread(
    work: impl FnOnce() -> Result<(), ToolError> + Send + 'static,
) -> Result<(), ToolError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(broken()))
}

fn broken() -> ToolError {
    failure("internal_error", "the transfer itself broke; try again")
}
