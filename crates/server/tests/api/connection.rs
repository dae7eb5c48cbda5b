//! A server on a real socket, and a client that speaks to it by hand.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::harness::Harness;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Listening {
    pub(crate) address: std::net::SocketAddr,
    pub(crate) stop: Option<oneshot::Sender<()>>,
    pub(crate) serving: JoinHandle<std::io::Result<()>>,
}

pub(crate) async fn listen(server: &Harness) -> Listening {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let serving = tokio::spawn(bellglass_server::serve(listener, server.app(), stopped));
    Listening { address, stop: Some(stop), serving }
}

impl Listening {
    /// Sends a GET by hand and returns what comes back, to its end.
    pub(crate) async fn open(&self, path: &str, headers: &str) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{headers}\r\n",
            self.address
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        BufReader::new(stream)
    }

    pub(crate) async fn all(&self, path: &str, headers: &str) -> String {
        let mut text = String::new();
        let mut stream = self.open(path, headers).await;
        let read = tokio::time::timeout(PATIENCE, stream.read_to_string(&mut text));
        read.await.expect("the stream ends").unwrap();
        text
    }
}
