//! Bytes both ways between a client and a server. One of them may be done before the other, but not for ever.

use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use super::ByteStream;
use super::counted::Counts;

/// How long one side may be silent once the other is done. A server that never closes would else keep its
/// connection, and the client's place in the sandbox.
const LINGER: Duration = Duration::from_secs(60);

/// Passes bytes until both sides are done, one is done and the other silent, or one of them breaks off. `counts`
/// are those of the way to the server, by whatever it is wrapped in.
pub(super) async fn tunnel(client: impl ByteStream, server: impl ByteStream, counts: &Counts) {
    let (from_client, to_client) = tokio::io::split(client);
    let (from_server, to_server) = tokio::io::split(server);
    let mut outwards = pin!(pass(from_client, to_server));
    let mut inwards = pin!(pass(from_server, to_client));
    tokio::select! {
        passed = &mut outwards => if passed.is_ok() {
            linger(inwards, &counts.read).await;
        },
        passed = &mut inwards => if passed.is_ok() {
            linger(outwards, &counts.written).await;
        },
    }
}

/// Passes all bytes one way, and the end after them.
async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    tokio::io::copy(&mut from, &mut to).await?;
    to.shutdown().await
}

/// Passes what is left one way for as long as something comes.
async fn linger(mut passing: Pin<&mut impl Future<Output = io::Result<()>>>, passed: &AtomicU64) {
    loop {
        let before = passed.load(Ordering::Relaxed);
        let is_over = tokio::time::timeout(LINGER, &mut passing).await.is_ok();
        if is_over || passed.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt as _, DuplexStream};
    use tokio::task::JoinHandle;

    use super::super::counted::Counted;
    use super::*;

    fn joined() -> (DuplexStream, DuplexStream, JoinHandle<()>) {
        let (client, inner) = tokio::io::duplex(64);
        let (server, outer) = tokio::io::duplex(64);
        let counts = Arc::new(Counts::default());
        let outer = Counted::new(outer, counts.clone());
        (client, server, tokio::spawn(async move { tunnel(inner, outer, &counts).await }))
    }

    /// Time passes by itself here as soon as nobody has anything else to do.
    #[tokio::test(start_paused = true)]
    async fn whoever_is_left_alone_may_speak_but_not_be_silent_for_ever() {
        for is_client_done in [true, false] {
            let (client, server, over) = joined();
            let (mut done, mut left) =
                if is_client_done { (client, server) } else { (server, client) };
            done.shutdown().await.unwrap();
            let mut byte = [0];
            for n in 0..5 {
                tokio::time::sleep(LINGER * 2 / 3).await;
                left.write_all(&[n]).await.unwrap();
                done.read_exact(&mut byte).await.unwrap();
                assert_eq!(byte, [n]);
            }
            over.await.unwrap();
            assert_eq!(left.read(&mut byte).await.unwrap(), 0);
            assert!(left.write_all(b"x").await.is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_that_nobody_has_left_may_be_silent() {
        let (mut client, mut server, over) = joined();
        tokio::time::sleep(LINGER * 100).await;
        client.write_all(b"x").await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'x');
        drop((client, server));
        over.await.unwrap();
    }
}
