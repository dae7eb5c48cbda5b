//! SOCKS 5: a greeting, one CONNECT, then bytes.

use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::network::Verdict;
use tokio::io::{self, AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

use super::dial::dial;
use super::socks_request::{Request, read_request};
use super::upstream::Purpose;
use super::{Client, Egress};

/// The first byte that a SOCKS 5 client sends. No HTTP request begins with it.
pub(super) const VERSION: u8 = 5;

const NO_AUTHENTICATION: u8 = 0;
const NOTHING_ACCEPTABLE: u8 = 0xff;

/// How long a client may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn serve(egress: &Arc<Egress>, mut client: Client, gone: &CancellationToken) {
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
    match dial(egress, &host, port, Purpose::Tunnel, gone).await {
        Ok(dialed) => {
            let replied = dialed.record.until_cut(reply(&mut client, 0)).await;
            if replied.is_some_and(|said| said.is_ok()) {
                egress.join(client, dialed).await;
            }
        }
        Err(verdict) => drop(reply(&mut client, reply_code(verdict)).await),
    }
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
