//! Passes the wire's bytes through gVisor's kernel, and ends when that kernel does.

use std::io;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::time::Duration;

use rustix::process::{Pid, WaitOptions, wait};
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};

use super::{DOOR_OUTSIDE, WIRE};
use crate::launch::privileges;

/// Stays until gVisor's kernel, which is process `kernel`, is gone.
pub(crate) fn keep(listener: StdUnixListener, kernel: Pid) -> ! {
    // Whatever goes wrong from here on, the end of this process is the end of the sandbox.
    let _ = privileges::drop_all().map_err(io::Error::other).and_then(|()| {
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = UnixListener::from_std(listener)?;
            tokio::select! {
                ended = end_of(kernel) => ended,
                never = pass_connections(listener) => never,
            }
        })
    });
    std::process::exit(1)
}

/// Takes every dead process away until it is the kernel's turn.
async fn end_of(kernel: Pid) -> io::Result<()> {
    let mut deaths = signal(SignalKind::child())?;
    loop {
        while let Ok(Some((pid, _))) = wait(WaitOptions::NOHANG) {
            if pid == kernel {
                return Ok(());
            }
        }
        deaths.recv().await;
    }
}

async fn pass_connections(listener: UnixListener) -> io::Result<()> {
    loop {
        match listener.accept().await {
            Ok((outside, _)) => {
                tokio::spawn(async move {
                    // A connection that breaks concerns nobody but the worker that made it.
                    let _ = pass(outside).await;
                });
            }
            // Out of descriptors, most likely. Others will end and give theirs back.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn pass(mut outside: UnixStream) -> io::Result<()> {
    const ROOM: usize = 64 << 10;
    let mut inside = UnixStream::connect(format!("{DOOR_OUTSIDE}/{WIRE}")).await?;
    tokio::io::copy_bidirectional_with_sizes(&mut outside, &mut inside, ROOM, ROOM).await.map(drop)
}
