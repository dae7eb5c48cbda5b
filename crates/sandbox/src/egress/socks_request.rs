//! What a SOCKS 5 client asks for, read from its bytes. Everything that arrives is hostile.

use std::net::{Ipv4Addr, Ipv6Addr};

use tokio::io::{self, AsyncRead, AsyncReadExt as _};

/// What a client wants.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Connect {
        host: String,
        port: u16,
    },
    /// Something that is answered with this code.
    Unsupported(u8),
}

pub(crate) async fn read_request(client: &mut (impl AsyncRead + Unpin)) -> io::Result<Request> {
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
