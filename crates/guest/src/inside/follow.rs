//! One worker's view of a call: output from where it left off, then the result.

use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::mux::MuxStream;
use bellglass_protocol::wire::{Frame, FrameCodec, Receipt, Reply, WireError};
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt, StreamExt};
use tokio_util::codec::Framed;

use super::calls::Call;
use super::failure::failure;
use super::output::Piece;

/// How long a worker that has its result may take to say that it does.
const LAST_RECEIPTS: Duration = Duration::from_secs(5);

type Wire = Framed<MuxStream, FrameCodec>;

/// Tells a call's output from `received` on, and its end.
pub(super) async fn follow(wire: Wire, call: Arc<Call>, received: u64) -> Result<(), WireError> {
    let (mut sink, mut source) = wire.split();
    if let Err(error) = call.output.confirm(received) {
        sink.send(Frame::message(&Reply::Error { error })).await?;
        return sink.close().await;
    }
    // Receipts are taken while output is sent: each may wait for the other.
    tokio::select! {
        told = tell(&mut sink, &call, received) => told?,
        broken = take_receipts(&mut source, &call) => return broken,
    }
    sink.close().await?;
    let _ = tokio::time::timeout(LAST_RECEIPTS, async {
        while let Some(Ok(frame)) = source.next().await {
            let _ = take_receipt(&call, &frame);
        }
    })
    .await;
    Ok(())
}

async fn tell(
    sink: &mut SplitSink<Wire, Frame>,
    call: &Call,
    received: u64,
) -> Result<(), WireError> {
    let mut cursor = received;
    let mut output = call.output.subscribe();
    let mut result = call.result();
    loop {
        // The result is looked at first: nothing is written after it.
        let finished = result.borrow_and_update().clone();
        match call.output.piece_at(cursor) {
            Piece::Bytes(stream, bytes) => {
                cursor += bytes.len() as u64;
                sink.send(Frame::Output(stream, bytes)).await?;
                continue;
            }
            Piece::Released => {
                // Another connection confirmed it, so this one is not the worker's latest.
                let error = failure("output_released", "this output was confirmed and dropped");
                return sink.send(Frame::message(&Reply::Error { error })).await;
            }
            Piece::NotYet => {}
        }
        if let Some(result) = finished {
            return sink.send(Frame::message(&Reply::Done { result })).await;
        }
        tokio::select! {
            _ = output.changed() => {}
            _ = result.changed() => {}
        }
    }
}

/// Returns only when something other than a receipt comes.
async fn take_receipts(source: &mut SplitStream<Wire>, call: &Call) -> Result<(), WireError> {
    while let Some(frame) = source.next().await {
        take_receipt(call, &frame?)?;
    }
    // The worker has nothing more to say; it may still listen.
    std::future::pending().await
}

fn take_receipt(call: &Call, frame: &Frame) -> Result<(), WireError> {
    match receipt(frame)? {
        // A number beyond the output confirms nothing.
        Receipt::Received { bytes } => drop(call.output.confirm(bytes)),
        Receipt::EndOfData | Receipt::Resized { .. } => {}
    }
    Ok(())
}

pub(super) fn receipt(frame: &Frame) -> Result<Receipt, WireError> {
    match frame {
        Frame::Message(text) => Ok(serde_json::from_slice(text)?),
        Frame::Output(..) => Err(WireError::OutOfTurn { expected: "a receipt", got: "output" }),
        Frame::Data(_) => Err(WireError::OutOfTurn { expected: "a receipt", got: "data" }),
    }
}
