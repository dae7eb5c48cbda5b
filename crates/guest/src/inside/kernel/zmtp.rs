//! ZMTP 3.0, the wire of ZeroMQ, as far as a client of a Jupyter kernel needs it: one connection of
//! a DEALER or SUB socket without security, on a stream that is local to the sandbox.
//!
//! Knows nothing of what the messages mean. Lengths come from inside and are bounded here.

use std::io;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf,
};

/// The largest frame, and all frames of a message together. A kernel prints into one frame whatever
/// a program prints at once.
const MOST_BYTES: usize = 256 << 20;
/// Parts of one message.
const MOST_PARTS: usize = 64;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Any stream that a kernel can be reached by.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Dealer,
    Subscriber,
}

/// The half of a connection that messages come from. Reading may be cancelled and taken up again.
pub(super) struct Receiver {
    stream: ReadHalf<Box<dyn Stream>>,
    buffer: BytesMut,
    parts: Vec<Bytes>,
}

pub(super) struct Sender {
    stream: WriteHalf<Box<dyn Stream>>,
}

/// Greets the other side, and subscribes to everything where that is the kind of socket.
pub(super) async fn connect(
    mut stream: Box<dyn Stream>,
    kind: Kind,
) -> io::Result<(Sender, Receiver)> {
    let mut greeting = [0u8; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).await?;
    let mut theirs = [0u8; 64];
    stream.read_exact(&mut theirs).await?;
    if theirs[0] != 0xff || theirs[9] != 0x7f || theirs[10] < 3 {
        return Err(io::Error::other("a greeting that is not ZMTP 3"));
    }
    let name: &[u8] = match kind {
        Kind::Dealer => b"DEALER",
        Kind::Subscriber => b"SUB",
    };
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend_from_slice(&(name.len() as u32).to_be_bytes());
    ready.extend_from_slice(name);
    let (reading, writing) = tokio::io::split(stream);
    let mut sender = Sender { stream: writing };
    sender.frame(COMMAND, &ready).await?;
    let mut receiver = Receiver { stream: reading, buffer: BytesMut::new(), parts: Vec::new() };
    match receiver.frame().await? {
        (flags, body) if flags & COMMAND != 0 && body.starts_with(b"\x05READY") => {}
        _ => return Err(io::Error::other("no READY came")),
    }
    if matches!(kind, Kind::Subscriber) {
        sender.frame(0, &[1]).await?;
    }
    Ok((sender, receiver))
}

impl Sender {
    /// One whose other side was greeted already.
    #[cfg(test)]
    pub(super) fn over(stream: impl Stream + 'static) -> Self {
        let stream: Box<dyn Stream> = Box::new(stream);
        Self { stream: tokio::io::split(stream).1 }
    }

    pub(super) async fn send(&mut self, parts: &[Bytes]) -> io::Result<()> {
        for (index, part) in parts.iter().enumerate() {
            let more = if index + 1 < parts.len() { MORE } else { 0 };
            self.frame(more, part).await?;
        }
        self.stream.flush().await
    }

    async fn frame(&mut self, flags: u8, body: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(9 + body.len());
        match u8::try_from(body.len()) {
            Ok(short) => bytes.extend_from_slice(&[flags, short]),
            Err(_) => {
                bytes.push(flags | LONG);
                bytes.extend_from_slice(&(body.len() as u64).to_be_bytes());
            }
        }
        bytes.extend_from_slice(body);
        self.stream.write_all(&bytes).await
    }
}

impl Receiver {
    /// The next message. What a cancelled call had read is kept.
    pub(super) async fn receive(&mut self) -> io::Result<Vec<Bytes>> {
        loop {
            let (flags, body) = self.frame().await?;
            if flags & COMMAND != 0 {
                continue;
            }
            let bytes: usize = self.parts.iter().map(Bytes::len).sum();
            if self.parts.len() == MOST_PARTS || bytes + body.len() > MOST_BYTES {
                return Err(io::Error::other("a message that is too large"));
            }
            self.parts.push(body);
            if flags & MORE == 0 {
                return Ok(std::mem::take(&mut self.parts));
            }
        }
    }

    async fn frame(&mut self) -> io::Result<(u8, Bytes)> {
        loop {
            if let Some(frame) = self.buffered_frame()? {
                return Ok(frame);
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn buffered_frame(&mut self) -> io::Result<Option<(u8, Bytes)>> {
        let Some(flags) = self.buffer.first().copied() else { return Ok(None) };
        let (header, length) = if flags & LONG == 0 {
            let Some(length) = self.buffer.get(1) else { return Ok(None) };
            (2, u64::from(*length))
        } else {
            let Some(length) = self.buffer.get(1..9) else { return Ok(None) };
            (9, length.try_into().map(u64::from_be_bytes).unwrap_or(u64::MAX))
        };
        if length > MOST_BYTES as u64 {
            return Err(io::Error::other("a frame that is too large"));
        }
        let length = length as usize;
        if self.buffer.len() < header + length {
            self.buffer.reserve((header + length - self.buffer.len()).min(1 << 20));
            return Ok(None);
        }
        self.buffer.advance(header);
        Ok(Some((flags, self.buffer.split_to(length).freeze())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other side, as a kernel plays it.
    async fn peer(mut stream: tokio::io::DuplexStream, then: Vec<u8>) -> Vec<u8> {
        let mut greeting = [0u8; 64];
        stream.read_exact(&mut greeting).await.unwrap();
        greeting[11] = 1;
        stream.write_all(&greeting).await.unwrap();
        stream.write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB").await.unwrap();
        for byte in then {
            stream.write_all(&[byte]).await.unwrap();
        }
        let mut said = vec![0; 2 + 0x19];
        stream.read_exact(&mut said).await.unwrap();
        let mut rest = vec![0; 3];
        stream.read_exact(&mut rest).await.unwrap();
        rest
    }

    #[tokio::test]
    async fn messages_come_whole_and_a_subscriber_subscribes() {
        let (ours, theirs) = tokio::io::duplex(100);
        // A short part, a command in between, and a long part.
        let mut sent = b"\x01\x02ab\x04\x05\x04PING\x02\0\0\0\0\0\0\x01\0".to_vec();
        sent.extend(vec![7; 256]);
        let other = tokio::spawn(peer(theirs, sent));
        let (_sender, mut receiver) = connect(Box::new(ours), Kind::Subscriber).await.unwrap();
        let message = receiver.receive().await.unwrap();
        assert_eq!(message, [Bytes::from_static(b"ab"), vec![7u8; 256].into()]);
        assert_eq!(other.await.unwrap(), b"\0\x01\x01");
    }

    #[tokio::test]
    async fn a_lying_length_is_refused() {
        let (ours, theirs) = tokio::io::duplex(100);
        tokio::spawn(peer(theirs, b"\x02\xff\xff\xff\xff\xff\xff\xff\xff".to_vec()));
        let (_sender, mut receiver) = connect(Box::new(ours), Kind::Subscriber).await.unwrap();
        assert!(receiver.receive().await.unwrap_err().to_string().contains("too large"));
    }
}
