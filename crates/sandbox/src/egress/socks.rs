//! SOCKS 5: a greeting, one CONNECT, then bytes.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::network::Verdict;
use tokio::io::{self, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

use super::dial::dial;
use super::{Client, Egress};

/// The first byte that a SOCKS 5 client sends. No HTTP request begins with it.
pub(super) const VERSION: u8 = 5;

const NO_AUTHENTICATION: u8 = 0;
const NOTHING_ACCEPTABLE: u8 = 0xff;

/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn serve(egress: &Arc<Egress>, mut client: Client) {
    let asked = tokio::time::timeout(PATIENCE, async {
        if !greet(&mut client).await? {
            return Ok(None);
        }
        read_request(&mut client).await.map(Some)
    });
    let Ok(Ok(Some(request))) = asked.await else { return };
    let (host, port) = match request {
        Request::Connect { host, port } => (host, port),
        Request::Unsupported(code) => return drop(reply(&mut client, code).await),
    };
    match dial(egress, &host, port).await {
        Ok(dialed) => {
            if reply(&mut client, 0).await.is_ok() {
                egress.join(client, dialed).await;
            }
        }
        Err(verdict) => drop(reply(&mut client, reply_code(verdict)).await),
    }
}

/// What a client wants.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Connect {
        host: String,
        port: u16,
    },
    /// Something that is answered with this code.
    Unsupported(u8),
}

async fn greet(client: &mut Client) -> io::Result<bool> {
    let [version, count] = [client.read_u8().await?, client.read_u8().await?];
    let mut methods = vec![0; count.into()];
    client.read_exact(&mut methods).await?;
    let fits = version == VERSION && methods.contains(&NO_AUTHENTICATION);
    let method = if fits { NO_AUTHENTICATION } else { NOTHING_ACCEPTABLE };
    client.write_all(&[VERSION, method]).await?;
    client.flush().await?;
    Ok(fits)
}

async fn read_request(client: &mut (impl AsyncRead + Unpin)) -> io::Result<Request> {
    const CONNECT: u8 = 1;
    const COMMAND_NOT_SUPPORTED: u8 = 7;
    const ADDRESS_NOT_SUPPORTED: u8 = 8;
    let mut head = [0; 4];
    client.read_exact(&mut head).await?;
    let [_, command, _, kind] = head;
    let host = match kind {
        1 => {
            let mut octets = [0; 4];
            client.read_exact(&mut octets).await?;
            Ipv4Addr::from(octets).to_string()
        }
        3 => {
            let mut name = vec![0; client.read_u8().await?.into()];
            client.read_exact(&mut name).await?;
            String::from_utf8_lossy(&name).into_owned()
        }
        4 => {
            let mut octets = [0; 16];
            client.read_exact(&mut octets).await?;
            Ipv6Addr::from(octets).to_string()
        }
        _ => return Ok(Request::Unsupported(ADDRESS_NOT_SUPPORTED)),
    };
    let port = client.read_u16().await?;
    Ok(if command == CONNECT {
        Request::Connect { host, port }
    } else {
        Request::Unsupported(COMMAND_NOT_SUPPORTED)
    })
}

async fn reply(client: &mut Client, code: u8) -> io::Result<()> {
    // The bound address that the protocol has room for concerns nobody.
    client.write_all(&[VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    client.flush().await
}

fn reply_code(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Allowed => 0,
        Verdict::RefusedByPolicy | Verdict::CutByPolicy | Verdict::RefusedPrivateAddress => 2,
        Verdict::NotResolved => 4,
        Verdict::NotConnected => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: &[u8]) -> io::Result<Request> {
        read_request(&mut &bytes[..]).await
    }

    #[tokio::test]
    async fn requests_read_as_the_protocol_says() {
        let name = b"\x05\x01\x00\x03\x0bexample.com\x01\xbb";
        let expected = Request::Connect { host: "example.com".into(), port: 443 };
        assert_eq!(read(name).await.unwrap(), expected);
        let expected = Request::Connect { host: "1.2.3.4".into(), port: 80 };
        assert_eq!(read(b"\x05\x01\x00\x01\x01\x02\x03\x04\x00\x50").await.unwrap(), expected);
        assert_eq!(read(b"\x05\x02\x00\x01\0\0\0\0\0\0").await.unwrap(), Request::Unsupported(7));
        assert_eq!(read(b"\x05\x01\x00\x09").await.unwrap(), Request::Unsupported(8));
        for cut in 0..name.len() {
            assert!(read(&name[..cut]).await.is_err(), "{cut}");
        }
    }
}
