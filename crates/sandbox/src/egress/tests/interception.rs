//! TLS connections that are opened for a secret, and those that are not.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::super::authority::provider;
use super::super::{Authority, BoundSecret, Egress, PathPrefix, Place, Secret, SecretValue};
use super::support::{
    Names, accept, certified, exchange, listen, open_proxy, read_head, remember, text, tunnel,
};

const VALUE: &str = "the-real-thing";

/// A proxy that has a secret for `api.example`, and what its sandbox trusts.
struct Setting {
    egress: Arc<Egress>,
    authority: Arc<Authority>,
    _folder: TempDir,
}

fn setting(egress: Egress, port: u16, trusted: &str) -> Setting {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::kept_in(&folder.path().join("authority"), "a test").unwrap();
    let authority = Arc::new(authority);
    let secret = Secret {
        value: SecretValue::new(VALUE).unwrap(),
        places: vec![Place::parse(&format!("api.example:{port}")).unwrap()],
        path: Some(PathPrefix::parse("/v1").unwrap()),
        header: hyper::header::AUTHORIZATION,
        format: Some("Bearer {}".into()),
    };
    let secrets = vec![BoundSecret { variable: "TOKEN".into(), secret: Arc::new(secret) }];
    let egress = Arc::new(egress.with_secrets(secrets, authority.clone(), trusted));
    Setting { egress, authority, _folder: folder }
}

/// A client in the sandbox that asks the proxy for one host and the server for another.
async fn client(
    egress: &Arc<Egress>,
    place: &str,
    server_name: &str,
    trusted: &str,
) -> std::io::Result<TlsStream<DuplexStream>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(trusted.as_bytes()).flatten());
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(server_name.to_owned()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tunnel(egress, place).await).await
}

#[tokio::test]
async fn requests_that_could_be_read_in_two_ways_never_reach_the_host() {
    let (listener, here) = listen().await;
    let host = certified("api.example");
    let got = remember(listener, Some(host.acceptor));
    let (egress, _) = open_proxy(Names::default().with("api.example", &[here]));
    let setting = setting(egress, here.port(), &host.authority);
    let place = format!("api.example:{}", here.port());
    let trusted = setting.authority.certificate();
    let port = here.port();
    for request in [
        format!("GET /v1/a HTTP/1.1\r\nHost: other.example:{port}\r\n\r\n"),
        format!("GET /v1/b HTTP/1.1\r\nHost: {place}\r\nHost: {place}\r\n\r\n"),
        format!("GET /v1/c HTTP/1.1\r\nHost: {place}\r\nHost: other.example\r\n\r\n"),
        "GET /v1/d HTTP/1.1\r\n\r\n".to_owned(),
        "GET /v1/e HTTP/1.1\r\nHost: api.example\r\n\r\n".to_owned(),
        format!("GET https://other.example/v1/f HTTP/1.1\r\nHost: {place}\r\n\r\n"),
        format!("GET https://{place}/v1/g HTTP/1.1\r\nHost: {place}\r\n\r\n"),
        format!("CONNECT other.example:443 HTTP/1.1\r\nHost: {place}\r\n\r\n"),
        format!("TRACE /v1/t HTTP/1.1\r\nHost: {place}\r\n\r\n"),
        format!("TRACK /v1/t HTTP/1.1\r\nHost: {place}\r\n\r\n"),
        format!("GET /v1/h HTTP/1.1\r\nHost: {place}\r\nA: b\r\n c\r\n\r\n"),
        format!("GET /v1/i HTTP/1.1\r\nHost : {place}\r\n\r\n"),
        format!(
            "POST /v1/j HTTP/1.1\r\nHost: {place}\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab"
        ),
        format!("POST /v1/k HTTP/1.1\r\nHost: {place}\r\nTransfer-Encoding: xchunked\r\n\r\n"),
    ] {
        let mut stream = client(&setting.egress, &place, "api.example", trusted).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 400"), "{request}: {head}");
    }
    assert_eq!(text(&got), "");
}

#[tokio::test]
async fn a_host_that_is_called_a_hop_is_still_named() {
    let (listener, here) = listen().await;
    let host = certified("api.example");
    let got = remember(listener, Some(host.acceptor));
    let (egress, _) = open_proxy(Names::default().with("api.example", &[here]));
    let setting = setting(egress, here.port(), &host.authority);
    let place = format!("api.example:{}", here.port());
    let trusted = setting.authority.certificate();
    let stream = client(&setting.egress, &place, "api.example", trusted).await.unwrap();
    let request = format!("GET /v1/x HTTP/1.1\r\nHost: {place}\r\nConnection: host, close\r\n\r\n");
    let answer = exchange(stream, request.as_bytes()).await;
    assert!(answer.ends_with("hi"), "{answer}");
    assert!(text(&got).contains(&format!("host: {place}\r\n")), "{}", text(&got));
}

#[tokio::test]
async fn a_body_with_two_lengths_is_written_anew_with_one() {
    let (listener, here) = listen().await;
    let host = certified("api.example");
    let got = remember(listener, Some(host.acceptor));
    let (egress, _) = open_proxy(Names::default().with("api.example", &[here]));
    let setting = setting(egress, here.port(), &host.authority);
    let place = format!("api.example:{}", here.port());
    let trusted = setting.authority.certificate();
    let stream = client(&setting.egress, &place, "api.example", trusted).await.unwrap();
    let request = format!(
        "POST /v1/x HTTP/1.1\r\nHost: {place}\r\nContent-Length: 5\r\n\
         Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/smuggled HTTP/1.1\r\nHost: {place}\r\n\r\n"
    );
    let answer = exchange(stream, request.as_bytes()).await;
    assert!(answer.ends_with("hi"), "{answer}");
    let got = text(&got);
    assert!(got.contains(&format!("authorization: Bearer {VALUE}\r\n")), "{got}");
    assert!(!got.contains("content-length") && !got.contains("smuggled"), "{got}");
}

#[tokio::test]
async fn a_client_that_asks_the_server_for_another_host_is_let_go() {
    let (listener, here) = listen().await;
    let host = certified("api.example");
    let got = remember(listener, Some(host.acceptor));
    let (egress, _) = open_proxy(Names::default().with("api.example", &[here]));
    let setting = setting(egress, here.port(), &host.authority);
    let place = format!("api.example:{}", here.port());
    let trusted = setting.authority.certificate();
    assert!(client(&setting.egress, &place, "other.example", trusted).await.is_err());
    // One that speaks no TLS at all gets no further.
    let plain = tunnel(&setting.egress, &place).await;
    let answer = exchange(plain, b"GET /v1/x HTTP/1.1\r\nHost: api.example\r\n\r\n").await;
    assert!(!answer.contains("200"), "{answer}");
    assert_eq!(text(&got), "");
}

#[tokio::test]
async fn a_host_that_nobody_vouches_for_gets_no_secret() {
    let (listener, here) = listen().await;
    // It has a certificate, but of an authority that this host does not trust.
    let impostor = certified("api.example");
    let got = remember(listener, Some(impostor.acceptor));
    let (egress, _) = open_proxy(Names::default().with("api.example", &[here]));
    let trusted_here = certified("api.example").authority;
    let setting = setting(egress, here.port(), &trusted_here);
    let place = format!("api.example:{}", here.port());
    let trusted = setting.authority.certificate();
    let mut stream = client(&setting.egress, &place, "api.example", trusted).await.unwrap();
    let request = format!("GET /v1/x HTTP/1.1\r\nHost: {place}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 502"), "{head}");
    assert_eq!(text(&got), "");
}

#[tokio::test]
async fn connections_to_other_hosts_and_ports_are_not_opened() {
    let (listener, here) = listen().await;
    let host = certified("other.example");
    let got = remember(listener, Some(host.acceptor));
    let names = Names::default().with("other.example", &[here]).with("api.example", &[here]);
    let (egress, _) = open_proxy(names);
    // The secret is for the same name under another port.
    let setting = setting(egress, here.port().wrapping_add(1).max(1), &host.authority);
    let place = format!("other.example:{}", here.port());
    // The client trusts the host's own authority and not the job's: it would notice.
    let mut stream =
        client(&setting.egress, &place, "other.example", &host.authority).await.unwrap();
    let request = "GET /v1/x HTTP/1.1\r\nHost: api.example\r\n\
                   Authorization: Bearer bellglass-TOKEN-placeholder\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200"));
    assert_eq!(text(&got), request);
    let place = format!("api.example:{}", here.port());
    let trusted = setting.authority.certificate();
    assert!(client(&setting.egress, &place, "api.example", trusted).await.is_err());
}

#[tokio::test]
async fn a_protocol_that_takes_over_passes_as_it_is() {
    let (listener, here) = listen().await;
    let host = certified("api.example");
    let (egress, _) = open_proxy(Names::default().with("api.example", &[here]));
    let setting = setting(egress, here.port(), &host.authority);
    let acceptor = host.acceptor;
    let server = tokio::spawn(async move {
        let mut stream = acceptor.accept(accept(listener).await).await.unwrap();
        let head = read_head(&mut stream).await;
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                      Upgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n\x01first";
        stream.write_all(switch.as_bytes()).await.unwrap();
        let mut heard = [0; 6];
        stream.read_exact(&mut heard).await.unwrap();
        stream.shutdown().await.unwrap();
        (head, heard)
    });
    let place = format!("api.example:{}", here.port());
    let trusted = setting.authority.certificate();
    let mut stream = client(&setting.egress, &place, "api.example", trusted).await.unwrap();
    let request = format!(
        "GET /v1/live HTTP/1.1\r\nHost: {place}\r\nConnection: keep-alive, Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Key: y\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let head = read_head(&mut stream).await;
    assert!(head.starts_with("HTTP/1.1 101") && head.contains("upgrade: websocket"), "{head}");
    let mut first = [0; 6];
    stream.read_exact(&mut first).await.unwrap();
    assert_eq!(&first, b"\x01first");
    stream.write_all(b"\x02reply").await.unwrap();
    let (head, heard) = server.await.unwrap();
    assert_eq!(&heard, b"\x02reply");
    assert!(head.contains("upgrade: websocket\r\n"), "{head}");
    assert!(head.contains("sec-websocket-key: y\r\n"), "{head}");
    assert!(head.contains(&format!("authorization: Bearer {VALUE}\r\n")), "{head}");
}

/// A body arrives in pieces as it is written, both ways, and a connection serves many requests.
#[tokio::test]
async fn bodies_stream_and_connections_are_kept() {
    let (listener, here) = listen().await;
    let host = certified("api.example");
    let (egress, log) = open_proxy(Names::default().with("api.example", &[here]));
    let setting = setting(egress, here.port(), &host.authority);
    let acceptor = host.acceptor;
    let server = tokio::spawn(async move {
        let mut stream = acceptor.accept(accept(listener).await).await.unwrap();
        let mut heads = Vec::new();
        for _ in 0..2 {
            heads.push(read_head(&mut stream).await);
            let mut piece = [0; 12];
            // The first chunk comes although the client has not written the second.
            stream.read_exact(&mut piece[..8]).await.unwrap();
            assert_eq!(&piece[..8], b"3\r\none\r\n");
            let begin = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n";
            stream.write_all(begin).await.unwrap();
            stream.read_exact(&mut piece[..8]).await.unwrap();
            assert_eq!(&piece[..8], b"3\r\ntwo\r\n");
            stream.read_exact(&mut piece[..5]).await.unwrap();
            stream.write_all(b"3\r\ntwo\r\n0\r\n\r\n").await.unwrap();
        }
        heads
    });
    let place = format!("api.example:{}", here.port());
    let trusted = setting.authority.certificate();
    let mut stream = client(&setting.egress, &place, "api.example", trusted).await.unwrap();
    for path in ["/v1/one", "/v2/two"] {
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: {place}\r\nTransfer-Encoding: chunked\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(b"3\r\none\r\n").await.unwrap();
        assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200"));
        let mut piece = [0; 13];
        stream.read_exact(&mut piece[..8]).await.unwrap();
        assert_eq!(&piece[..8], b"3\r\none\r\n");
        stream.write_all(b"3\r\ntwo\r\n0\r\n\r\n").await.unwrap();
        stream.read_exact(&mut piece).await.unwrap();
        assert_eq!(&piece, b"3\r\ntwo\r\n0\r\n\r\n");
    }
    let heads = server.await.unwrap();
    assert!(heads[0].contains(&format!("authorization: Bearer {VALUE}\r\n")), "{}", heads[0]);
    assert!(!heads[1].contains("authorization"), "{}", heads[1]);
    // The server has closed, so the client's connection ends too, and then the log hears of it.
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert_eq!(rest, b"");
    drop(stream);
    assert_eq!(log.verdicts().len(), 1);
}
