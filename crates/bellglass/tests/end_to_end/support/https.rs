//! A server with TLS on the host's loopback, vouched for by an authority of its own.
//!
//! It listens on 127.0.0.2, because programs leave 127.0.0.1 out of their proxies by themselves.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

pub(crate) const ADDRESS: &str = "127.0.0.2";

/// Vouches for hosts of one test.
pub(crate) struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    folder: TempDir,
}

impl TestAuthority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "an authority of this test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        let folder = tempfile::tempdir().unwrap();
        // The host's own authorities stay, as on a host whose operator added one.
        let usual = std::env::var("SSL_CERT_FILE");
        let usual = usual.unwrap_or_else(|_| "/etc/ssl/certs/ca-certificates.crt".into());
        let usual = std::fs::read_to_string(usual).unwrap_or_default();
        std::fs::write(folder.path().join("bundle.crt"), format!("{usual}\n{certificate}"))
            .unwrap();
        Self { issuer: Issuer::new(params, key), folder }
    }

    /// All that a host trusts which trusts this authority.
    pub(crate) fn bundle(&self) -> PathBuf {
        self.folder.path().join("bundle.crt")
    }

    /// The environment of a server on such a host.
    pub(crate) fn environment(&self) -> (&'static str, String) {
        ("SSL_CERT_FILE", self.bundle().display().to_string())
    }
}

/// Says hello, or serves the files of a folder, and remembers what it was asked.
pub(crate) struct HttpsHost {
    pub(crate) port: u16,
    asked: Arc<Mutex<Vec<String>>>,
}

impl HttpsHost {
    pub(crate) async fn start(authority: &TestAuthority, files: Option<&Path>) -> Self {
        let mut params = CertificateParams::new([ADDRESS.to_owned()]).unwrap();
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &authority.issuer).unwrap();
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind((ADDRESS, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (remembered, files) = (asked.clone(), files.map(Path::to_path_buf));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, remembered) = (acceptor.clone(), remembered.clone());
                let files = files.clone();
                tokio::spawn(async move {
                    if let Ok(mut stream) = acceptor.accept(stream).await {
                        let mut head = Vec::new();
                        while !head.ends_with(b"\r\n\r\n") {
                            match stream.read_u8().await {
                                Ok(byte) => head.push(byte),
                                Err(_) => return,
                            }
                        }
                        let head = String::from_utf8_lossy(&head).into_owned();
                        let answer = answer(&head, files.as_deref());
                        remembered.lock().unwrap().push(head);
                        let _ = stream.write_all(&answer).await;
                        let _ = stream.shutdown().await;
                    }
                });
            }
        });
        Self { port, asked }
    }

    /// Where the server is, without a path.
    pub(crate) fn url(&self) -> String {
        format!("https://{ADDRESS}:{}", self.port)
    }

    /// As policies and secrets name it.
    pub(crate) fn place(&self) -> String {
        format!("{ADDRESS}:{}", self.port)
    }

    /// The heads of all requests so far.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn answer(head: &str, files: Option<&Path>) -> Vec<u8> {
    let path = head.split(' ').nth(1).unwrap_or("/").split('?').next().unwrap_or_default();
    let (status, body) = match files {
        None => ("200 OK", b"hello\n".to_vec()),
        Some(folder) => match std::fs::read(folder.join(path.trim_start_matches('/'))) {
            Ok(content) => ("200 OK", content),
            Err(_) => ("404 Not Found", Vec::new()),
        },
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    [head.into_bytes(), body].concat()
}
