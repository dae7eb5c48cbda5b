//! A desktop's VNC server that greets, and a viewer of one that greets and speaks.

#![no_main]
#![allow(dead_code, reason = "the files taken in have more than is used here")]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/server/src/rfb/handshake.rs"]
mod handshake;
#[path = "../../crates/server/src/rfb/messages.rs"]
mod messages;

/// A viewer whose words are the input.
mod viewer {
    use std::io;

    use bytes::Bytes;

    pub struct Viewer(pub Bytes);

    impl Viewer {
        pub async fn send(&mut self, _: Bytes) -> io::Result<()> {
            Ok(())
        }

        pub async fn read(&mut self, length: usize) -> io::Result<Bytes> {
            match length <= self.0.len() {
                true => Ok(self.0.split_to(length)),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }
}

/// A password that every answer knows: who does not is told after a while, which is not waited for here.
mod password {
    pub const CHALLENGE: usize = 16;

    pub struct VncPassword;

    impl VncPassword {
        pub fn answers(&self, _: &[u8], _: &[u8]) -> bool {
            true
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(async {
        let mut server = Server(rest);
        if let Ok(said) = handshake::with_server(&mut server).await {
            assert!((24..=24 + 4096).contains(&said.len()));
        }
        let mut viewer = viewer::Viewer(bytes::Bytes::copy_from_slice(rest));
        let password = (first % 2 == 1).then_some(password::VncPassword);
        if handshake::with_viewer(&mut viewer, password.as_ref()).await.is_ok() {
            speak(&viewer.0, usize::from(*first).max(1));
        }
    });
    speak(rest, usize::from(*first).max(1));
});

/// Whatever a viewer says is told apart alike, in whatever pieces it comes.
fn speak(bytes: &[u8], at_once: usize) {
    let read = |at_once: usize| {
        let (mut messages, mut found) = (messages::ViewerMessages::default(), Vec::new());
        for piece in bytes.chunks(at_once) {
            messages.push(piece);
            loop {
                match messages.next() {
                    Ok(Some(message)) => found.push(message),
                    Ok(None) => break,
                    Err(error) => return (found, Some(error)),
                }
            }
        }
        (found, None)
    };
    let (found, error) = read(at_once);
    for message in &found {
        assert!(!message.bytes.is_empty() && message.bytes.len() <= bytes.len());
    }
    assert_eq!((found, error), read(bytes.len().max(1)));
}

/// Says the input, and hears whatever it is told.
struct Server<'a>(&'a [u8]);

impl tokio::io::AsyncRead for Server<'_> {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::pin::Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl tokio::io::AsyncWrite for Server<'_> {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        std::task::Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn poll_shutdown(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}
