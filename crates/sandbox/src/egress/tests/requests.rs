//! Requests that try to get further than they may, or to take more than their share.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::network::{HostRule, NetworkPolicy, Verdict};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::super::dial::Resolve;
use super::super::{DirectHosts, Egress, EgressSettings, Upstream, UpstreamProxy};
use super::support::{
    Names, accept, connect, connect_until, exchange, listen, open_proxy, read_head, remember, text,
    tunnel, tunnel_in,
};

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[tokio::test]
async fn a_name_that_changes_its_mind_is_judged_each_time() {
    let (listener, here) = listen().await;
    let got = remember(listener, None);
    // First an address that may be reached, then the same server under one that may not.
    let private = SocketAddr::new([127, 0, 0, 1].into(), here.port());
    let names = Names::default().with("rebinding.example", &[here, private]);
    let (egress, log) = open_proxy(names);
    let egress = Arc::new(egress);
    let ask = b"GET http://rebinding.example/ HTTP/1.1\r\nConnection: close\r\n\r\n";
    assert!(exchange(connect(&egress), ask).await.ends_with("hi"));
    let refused = exchange(connect(&egress), ask).await;
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    assert!(text(&got).contains("host: rebinding.example"));
    let host = "rebinding.example".to_owned();
    let verdicts = log.verdicts();
    assert!(verdicts.contains(&(host.clone(), Verdict::RefusedPrivateAddress)), "{verdicts:?}");
    assert!(verdicts.contains(&(host, Verdict::Allowed)), "{verdicts:?}");
}

#[tokio::test]
async fn no_private_address_is_reached_by_any_name() {
    for target in [
        "127.0.0.1:80",
        "0.0.0.0:80",
        "10.0.0.1:80",
        "172.16.0.1:80",
        "192.168.0.1:80",
        "169.254.169.254:80",
        "100.100.100.200:80",
        "[::1]:80",
        "[::]:80",
        "[::ffff:127.0.0.1]:80",
        "[::ffff:169.254.169.254]:80",
        "[::127.0.0.1]:80",
        "[64:ff9b::7f00:1]:80",
        "[64:ff9b:1::7f00:1]:80",
        "[2002:7f00:1::]:80",
        "[fd00:ec2::254]:80",
        "[fe80::1]:80",
    ] {
        let names = Names::default().with("a.example", &[address(target)]);
        let (egress, log) = open_proxy(names);
        let egress = Arc::new(egress);
        let ask = b"CONNECT a.example:80 HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
        let answer = exchange(connect(&egress), ask).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{target}: {answer}");
        // A program that speaks SOCKS is told that the rules forbid it.
        let ask = b"\x05\x01\x00\x05\x01\x00\x03\x09a.example\x00\x50";
        let mut stream = connect(&egress);
        stream.write_all(ask).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer[..4], [5, 0, 5, 2], "{target}");
        let refused = ("a.example".to_owned(), Verdict::RefusedPrivateAddress);
        assert_eq!(log.verdicts(), [refused.clone(), refused], "{target}");
    }
}

/// The host's own proxy resolves names, so it must not be handed any that could mean its own side.
#[tokio::test]
async fn a_proxy_of_the_host_is_not_asked_for_addresses_in_disguise() {
    let (listener, here) = listen().await;
    let asked = remember(listener, None);
    // Names that are known here are judged here, and others are the proxy's to know.
    let names = Names::default()
        .with("intranet.example", &[address("10.0.0.1:443")])
        .with("known.example", &[address("198.51.99.1:443")]);
    let (egress, log) = open_proxy(names);
    go_through(&egress, here, "");
    let egress = Arc::new(egress);
    for name in [
        "intranet.example",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "127.1",
        "localhost",
        "a.localhost.",
        "127.0.0.1",
    ] {
        let ask = format!("CONNECT {name}:80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let answer = exchange(connect(&egress), ask.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{name}: {answer}");
    }
    // A name over SOCKS may have any bytes; none of them become lines of a request.
    let name = b"a\r\nX: y";
    let mut ask = b"\x05\x01\x00\x05\x01\x00\x03".to_vec();
    ask.push(name.len() as u8);
    ask.extend_from_slice(name);
    ask.extend_from_slice(b"\x00\x50");
    let mut stream = connect(&egress);
    stream.write_all(&ask).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer[..4], [5, 0, 5, 4]);
    assert_eq!(text(&asked), "");
    tunnel(&egress, "public.example:443").await;
    tunnel(&egress, "known.example:443").await;
    let asked = text(&asked);
    assert!(asked.starts_with("CONNECT public.example:443 HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("CONNECT known.example:443 HTTP/1.1\r\n"), "{asked}");
    let intranet = ("intranet.example".to_owned(), Verdict::RefusedPrivateAddress);
    assert_eq!(log.verdicts()[0], intranet);
}

/// Has a sandbox's way out go through a proxy of the host's, but for these hosts.
fn go_through(egress: &Egress, proxy: SocketAddr, direct: &str) {
    let proxy = UpstreamProxy {
        host: proxy.ip().to_string(),
        port: proxy.port(),
        credentials: Some("ada:word".into()),
    };
    let upstream = Upstream {
        http: Some(proxy.clone()),
        https: Some(proxy),
        direct: DirectHosts::parse(direct),
    };
    let private_exceptions = egress.settings().private_exceptions.clone();
    let settings = EgressSettings { upstream, private_exceptions, ..EgressSettings::default() };
    egress.set_settings(Arc::new(settings));
}

/// Many proxies give tunnels to port 443 alone, so plain requests are sent to them whole.
#[tokio::test]
async fn a_proxy_of_the_host_gets_plain_requests_whole() {
    let (listener, here) = listen().await;
    let asked = remember(listener, None);
    let (egress, _) = open_proxy(Names::default());
    go_through(&egress, here, "");
    let egress = Arc::new(egress);
    let ask = "GET http://a.example:8080/x?y HTTP/1.1\r\nHost: b.example\r\n\
               Proxy-Authorization: Basic ZXZpbA==\r\nConnection: close\r\n\r\n";
    let answer = exchange(connect(&egress), ask.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hi"), "{answer}");
    let asked = text(&asked);
    assert!(asked.starts_with("GET http://a.example:8080/x?y HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("host: a.example:8080\r\n"), "{asked}");
    assert!(asked.contains("proxy-authorization: Basic YWRhOndvcmQ=\r\n"), "{asked}");
    assert!(!asked.contains("b.example") && !asked.contains("ZXZpbA=="), "{asked}");
}

/// The list says which way is taken, and not what may be reached.
#[tokio::test]
async fn hosts_that_need_no_proxy_are_reached_directly_and_judged_all_the_same() {
    let (proxy, proxy_place) = listen().await;
    let asked = remember(proxy, None);
    let (server, here) = listen().await;
    let got = remember(server, None);
    let private = SocketAddr::new([127, 0, 0, 1].into(), here.port());
    let names =
        Names::default().with("a.mirror.example", &[here]).with("b.mirror.example", &[private]);
    let (egress, _) = open_proxy(names);
    go_through(&egress, proxy_place, ".mirror.example");
    let egress = Arc::new(egress);
    let ask = b"GET http://a.mirror.example/x HTTP/1.1\r\nConnection: close\r\n\r\n";
    let answer = exchange(connect(&egress), ask).await;
    assert!(answer.ends_with("hi"), "{answer}");
    assert!(text(&got).starts_with("GET /x HTTP/1.1\r\n") && !text(&got).contains("proxy-"));
    let ask = b"GET http://b.mirror.example/x HTTP/1.1\r\nConnection: close\r\n\r\n";
    assert!(exchange(connect(&egress), ask).await.starts_with("HTTP/1.1 403"));
    assert_eq!(text(&asked), "");
}

#[tokio::test]
async fn a_new_policy_cuts_what_it_forbids_and_nothing_else() {
    let (one, first) = listen().await;
    let (two, second) = listen().await;
    let names = Names::default().with("one.example", &[first]).with("two.example", &[second]);
    let (egress, log) = open_proxy(names);
    let egress = Arc::new(egress);
    let mut held = tunnel(&egress, "one.example:443").await;
    let mut cut = tunnel(&egress, "two.example:443").await;
    let (mut far, _other) = (accept(one).await, accept(two).await);
    egress.set_policy(NetworkPolicy::Allow(vec![HostRule::parse("one.example").unwrap()]));
    let mut rest = Vec::new();
    cut.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"");
    held.write_all(b"still here").await.unwrap();
    let mut heard = [0; 10];
    far.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"still here");
    assert_eq!(log.verdicts(), [("two.example".to_owned(), Verdict::CutByPolicy)]);
    egress.set_policy(NetworkPolicy::None);
    held.read_to_end(&mut rest).await.unwrap();
    assert_eq!(log.verdicts().len(), 2);
}

#[tokio::test]
async fn one_side_may_be_done_before_the_other() {
    let (listener, here) = listen().await;
    let (egress, _) = open_proxy(Names::default().with("a.example", &[here]));
    let mut stream = tunnel(&Arc::new(egress), "a.example:7").await;
    let mut far = accept(listener).await;
    stream.write_all(b"question").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut question = String::new();
    far.read_to_string(&mut question).await.unwrap();
    far.write_all(b"answer after the end").await.unwrap();
    drop(far);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!((question.as_str(), answer.as_str()), ("question", "answer after the end"));
}

#[tokio::test]
async fn a_head_has_a_largest_size() {
    let (egress, log) = open_proxy(Names::default());
    let egress = Arc::new(egress);
    let mut ask = b"GET http://a.example/ HTTP/1.1\r\n".to_vec();
    while ask.len() < 200 << 10 {
        ask.extend_from_slice(format!("X-{}: {}\r\n", ask.len(), "y".repeat(2000)).as_bytes());
    }
    ask.extend_from_slice(b"\r\n");
    let answer = exchange(connect(&egress), &ask).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    let many = "A: b\r\n".repeat(5000);
    let ask = format!("GET http://a.example/ HTTP/1.1\r\n{many}\r\n");
    let answer = exchange(connect(&egress), ask.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(log.verdicts(), []);
}

/// Time passes by itself here as soon as nobody has anything else to do.
#[tokio::test(start_paused = true)]
async fn who_says_nothing_is_let_go() {
    let (egress, _) = open_proxy(Names::default());
    let egress = Arc::new(egress);
    for begun in
        [&b""[..], b"GET http://a.exa", b"\x05", b"\x05\x01\x00", b"CONNECT a:1 HTTP/1.1\r\nX: "]
    {
        let mut stream = connect(&egress);
        stream.write_all(begun).await.unwrap();
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(90), stream.read_to_end(&mut rest));
        assert!(ended.await.is_ok(), "{begun:?}");
    }
}

#[tokio::test]
async fn the_server_is_asked_in_words_of_ours() {
    let (listener, here) = listen().await;
    let got = remember(listener, None);
    let (egress, _) = open_proxy(Names::default().with("a.example", &[here]));
    let egress = Arc::new(egress);
    for (ask, status) in [
        // Two lengths of one body: read as the standard says, and written anew with one.
        (
            "POST http://a.example/both HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n",
            "200",
        ),
        (
            "POST http://a.example/x HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
            "400",
        ),
        ("POST http://a.example/x HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n", "400"),
        ("GET http://a.example/x HTTP/1.1\r\nA: b\r\n folded: c\r\n\r\n", "400"),
        ("GET http://a.example/x HTTP/1.1\r\nA : b\r\n\r\n", "400"),
        ("GET https://a.example/x HTTP/1.1\r\nConnection: close\r\n\r\n", "400"),
        ("GET /x HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n", "400"),
        ("CONNECT a.example HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n", "400"),
    ] {
        let answer = exchange(connect(&egress), ask.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{ask}: {answer}");
    }
    let got = text(&got);
    assert_eq!(got.matches("HTTP/1.1").count(), 1, "{got}");
    assert!(got.starts_with("POST /both HTTP/1.1\r\n") && !got.contains("content-length"), "{got}");
    let mut stream = connect(&egress);
    let ask = b"GET http://a.example/ HTTP/1.1\r\nHost: b.example\r\nHost: c.example\r\n\
                Connection: x-hop\r\nX-Hop: 1\r\nProxy-Authorization: Basic eDp5\r\n\r\n";
    stream.write_all(ask).await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200"));
}

/// The last of a sandbox's connections are recorded, whether or not their servers are ever done.
#[tokio::test]
async fn a_way_out_that_is_closed_leaves_no_connection_and_forgets_none() {
    let (one, first) = listen().await;
    let (two, second) = listen().await;
    let names = Names::default().with("one.example", &[first]).with("two.example", &[second]);
    let (egress, log) = open_proxy(names);
    let egress = Arc::new(egress);
    let mut open = tunnel(&egress, "one.example:443").await;
    let half = tunnel(&egress, "two.example:443").await;
    let (mut far, mut silent) = (accept(one).await, accept(two).await);
    open.write_all(b"sent").await.unwrap();
    let mut heard = [0; 4];
    far.read_exact(&mut heard).await.unwrap();
    // The program is gone, and its server takes no notice.
    drop(half);
    assert_eq!(silent.read(&mut heard).await.unwrap(), 0);
    assert_eq!(log.verdicts(), []);

    egress.close().await;
    let mut verdicts = log.verdicts();
    verdicts.sort_by(|(one, _), (other, _)| one.cmp(other));
    let allowed = |host: &str| (host.to_owned(), Verdict::Allowed);
    assert_eq!(verdicts, [allowed("one.example"), allowed("two.example")]);
    assert_eq!(log.bytes_out_to("one.example"), 4);
    let mut rest = Vec::new();
    open.read_to_end(&mut rest).await.unwrap();
    for mut far in [far, silent] {
        while far.write_all(b"x").await.is_ok() {
            tokio::task::yield_now().await;
        }
    }
    let ask = b"CONNECT one.example:443 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let refused = exchange(connect(&egress), ask).await;
    assert!(refused.starts_with("HTTP/1.1 502"), "{refused}");
}

/// Nobody reads from a program whose server takes nothing, so that it is gone must be told.
#[tokio::test]
async fn whatever_a_program_does_ends_when_it_is_gone() {
    /// More than all buffers on the way hold.
    const UPLOAD: usize = 64 << 20;
    let head = format!("POST http://a.example/ HTTP/1.1\r\nContent-Length: {UPLOAD}\r\n\r\n");
    for head in [None, Some(head)] {
        let (listener, here) = listen().await;
        let (egress, log) = open_proxy(Names::default().with("a.example", &[here]));
        let gone = CancellationToken::new();
        let mut program = connect_until(&Arc::new(egress), gone.clone());
        match head {
            Some(head) => program.write_all(head.as_bytes()).await.unwrap(),
            None => program = tunnel_in(program, "a.example:80").await,
        }
        let _takes_nothing = accept(listener).await;
        let uploading = tokio::spawn(async move { program.write_all(&vec![0; UPLOAD]).await });
        gone.cancel();
        assert!(uploading.await.unwrap().is_err());
        while log.verdicts().is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(log.verdicts(), [("a.example".to_owned(), Verdict::Allowed)]);
    }
}

/// Looks nothing up, and says when it was asked to.
struct Silent(Arc<Notify>);

#[async_trait]
impl Resolve for Silent {
    async fn resolve(&self, _: &str, _: u16, _: Duration) -> io::Result<Vec<SocketAddr>> {
        self.0.notify_one();
        std::future::pending().await
    }
}

/// Its name was looked up, which somebody may have seen.
#[tokio::test]
async fn a_client_that_does_not_wait_for_its_connection_is_recorded_too() {
    for ask in [
        &b"CONNECT a.example:443 HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        b"\x05\x01\x00\x05\x01\x00\x03\x09a.example\x01\xbb",
    ] {
        let asked = Arc::new(Notify::new());
        let (egress, log) = open_proxy(Names::default());
        let egress = Egress { resolver: Box::new(Silent(asked.clone())), ..egress };
        let egress = Arc::new(egress);
        let mut stream = connect(&egress);
        stream.write_all(ask).await.unwrap();
        asked.notified().await;
        drop(stream);
        // Also where nobody notices that the client is gone.
        egress.close().await;
        assert_eq!(log.verdicts(), [("a.example".to_owned(), Verdict::NotConnected)]);
    }
}
