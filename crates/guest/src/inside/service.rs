//! A program that the worker speaks to over its standard input and output, such as an MCP server.
//!
//! It lives as long as its stream. Nothing is kept for a worker that comes back: it starts another.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::step::{OutputStream, ToolError};
use bellglass_protocol::wire::{DATA_CHUNK, Frame, Reply, WireError};
use bytes::BytesMut;
use futures::{SinkExt as _, StreamExt as _};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::Guest;
use super::exchange::{Wire, answer};
use super::failure::failure;
use super::interpreters;
use super::process::Process;
use super::run_process::kill;

/// How long a program's complaints are waited for once it has closed its output.
const LAST_WORDS: Duration = Duration::from_millis(200);

pub(super) async fn run(
    guest: &Arc<Guest>,
    mut wire: Wire,
    command: Vec<String>,
    environment: BTreeMap<String, String>,
) -> Result<(), WireError> {
    let (process, stdin) = match start(guest, &command, &environment) {
        Ok(started) => started,
        Err(error) => return answer(wire, Reply::Error { error }).await,
    };
    let (stdout, stderr, mut supervisor) = process.split();
    let served = async {
        wire.send(Frame::message(&Reply::Ok)).await?;
        converse(&mut wire, stdin, stdout, stderr).await
    }
    .await;
    kill(guest, &supervisor).await;
    while supervisor.next_report().await.is_some() {}
    tokio::spawn(supervisor.reap());
    served?;
    answer(wire, Reply::End).await
}

fn start(
    guest: &Guest,
    command: &[String],
    environment: &BTreeMap<String, String>,
) -> Result<(Process, Sender), ToolError> {
    let command = interpreters::program(guest, command, environment)?;
    let no_pipe =
        |error: std::io::Error| failure("cannot_start", format!("no pipe can be made: {error}"));
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| no_pipe(error.into()))?;
    let stdin = Sender::from_owned_fd(writer).map_err(no_pipe)?;
    Ok((Process::start_with(reader, &command, &guest.confinement)?, stdin))
}

/// Passes bytes both ways until the worker is gone or the program has closed its output.
async fn converse(
    wire: &mut Wire,
    mut stdin: Sender,
    mut stdout: Receiver,
    mut stderr: Receiver,
) -> Result<(), WireError> {
    let (mut to_worker, mut from_worker) = wire.split();
    let input = async move {
        let mut is_read = true;
        while let Some(frame) = from_worker.next().await {
            match frame? {
                // A program that reads no more may still write.
                Frame::Data(piece) if is_read => is_read = stdin.write_all(&piece).await.is_ok(),
                _ => {}
            }
        }
        Ok(())
    };
    let output = async move {
        let (mut out, mut err) = (BytesMut::new(), BytesMut::new());
        let (mut stdout_is_open, mut stderr_is_open) = (true, true);
        while stdout_is_open || stderr_is_open {
            out.reserve(DATA_CHUNK);
            err.reserve(DATA_CHUNK);
            let (stream, piece) = tokio::select! {
                read = stdout.read_buf(&mut out), if stdout_is_open => match read {
                    Ok(0) | Err(_) => {
                        stdout_is_open = false;
                        continue;
                    }
                    Ok(_) => (OutputStream::Stdout, out.split().freeze()),
                },
                read = stderr.read_buf(&mut err), if stderr_is_open => match read {
                    Ok(0) | Err(_) => {
                        stderr_is_open = false;
                        continue;
                    }
                    Ok(_) => (OutputStream::Stderr, err.split().freeze()),
                },
                // Whatever still holds the other end, nobody speaks to it any more.
                () = tokio::time::sleep(LAST_WORDS), if !stdout_is_open => break,
            };
            to_worker.send(Frame::Output(stream, piece)).await?;
        }
        Ok(())
    };
    tokio::select! {
        ended = input => ended,
        ended = output => ended,
    }
}
