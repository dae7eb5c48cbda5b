//! How a connection to a desktop begins (RFC 6143, section 7.1 to 7.3), at both of our ends: we are a
//! viewer to the sandbox's VNC server, and a VNC server to the viewer.

use std::io;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::password::{CHALLENGE, VncPassword};
use super::viewer::Viewer;

const VERSION: &[u8; 12] = b"RFB 003.008\n";

/// No password is asked for; one is.
const NONE: u8 = 1;
const VNC_AUTHENTICATION: u8 = 2;

/// The longest name of a desktop that is taken from a sandbox.
const LONGEST_NAME: u32 = 4096;

/// How long either side may take to say something, where no person is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a person may take to type a password.
const TYPING: Duration = Duration::from_secs(300);

/// How long a wrong password is thought about, so that not many can be tried.
const AFTER_WRONG_PASSWORD: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("the connection broke")]
    Io(#[from] io::Error),
    #[error("it took too long")]
    Late(#[from] tokio::time::error::Elapsed),
    #[error("the other side speaks no RFB that is known here")]
    NotRfb,
    #[error("the password is wrong")]
    WrongPassword,
}

/// Greets the VNC server of a sandbox. Returns what it says about its desktop.
pub(super) async fn with_server<S>(stream: &mut S) -> Result<Bytes, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    timeout(PATIENCE, greet_server(stream)).await?
}

async fn greet_server<S>(stream: &mut S) -> Result<Bytes, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut version = [0; 12];
    stream.read_exact(&mut version).await?;
    if !version.starts_with(b"RFB 003.") {
        return Err(HandshakeError::NotRfb);
    }
    stream.write_all(VERSION).await?;
    let count = stream.read_u8().await?;
    let mut types = vec![0; usize::from(count)];
    stream.read_exact(&mut types).await?;
    if !types.contains(&NONE) {
        return Err(HandshakeError::NotRfb);
    }
    stream.write_all(&[NONE]).await?;
    if stream.read_u32().await? != 0 {
        return Err(HandshakeError::NotRfb);
    }
    // Others may watch too.
    stream.write_all(&[1]).await?;
    let mut said = BytesMut::zeroed(20);
    stream.read_exact(&mut said).await?;
    let length = stream.read_u32().await?;
    if length > LONGEST_NAME {
        return Err(HandshakeError::NotRfb);
    }
    let mut name = vec![0; length as usize];
    stream.read_exact(&mut name).await?;
    said.put_u32(length);
    said.put_slice(&name);
    Ok(said.freeze())
}

/// Greets a viewer, who has to know the password if there is one. What is missing then is to say what
/// the desktop is like.
pub(super) async fn with_viewer(
    viewer: &mut Viewer,
    password: Option<&VncPassword>,
) -> Result<(), HandshakeError> {
    viewer.send(Bytes::from_static(VERSION)).await?;
    let version = timeout(PATIENCE, viewer.read(12)).await??;
    let minor = match &version[..] {
        b"RFB 003.003\n" | b"RFB 003.005\n" => 3,
        b"RFB 003.007\n" => 7,
        version if version.starts_with(b"RFB 00") => 8,
        _ => return Err(HandshakeError::NotRfb),
    };
    let security = if password.is_some() { VNC_AUTHENTICATION } else { NONE };
    if minor == 3 {
        viewer.send(vec![0, 0, 0, security].into()).await?;
    } else {
        viewer.send(vec![1, security].into()).await?;
        let chosen = timeout(PATIENCE, viewer.read(1)).await??;
        if chosen[..] != [security] {
            return Err(HandshakeError::NotRfb);
        }
    }
    if let Some(password) = password {
        let mut challenge = [0; CHALLENGE];
        getrandom::fill(&mut challenge).expect("the system has random numbers");
        viewer.send(challenge.to_vec().into()).await?;
        let answer = timeout(TYPING, viewer.read(CHALLENGE)).await??;
        if !password.answers(&challenge, &answer) {
            tokio::time::sleep(AFTER_WRONG_PASSWORD).await;
            viewer.send(refusal(minor)).await?;
            return Err(HandshakeError::WrongPassword);
        }
    }
    if password.is_some() || minor == 8 {
        viewer.send(vec![0; 4].into()).await?;
    }
    timeout(PATIENCE, viewer.read(1)).await??;
    Ok(())
}

fn refusal(minor: u8) -> Bytes {
    const WHY: &[u8] = b"the password is wrong; the job's status shows it";
    let mut said = BytesMut::new();
    said.put_u32(1);
    if minor == 8 {
        said.put_u32(WHY.len() as u32);
        said.put_slice(WHY);
    }
    said.freeze()
}
