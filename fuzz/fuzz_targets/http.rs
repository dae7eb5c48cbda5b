//! What a program inside says to the proxy in HTTP: which host each request is for, and what becomes of it
//! on the way, also on a connection that was opened to put a secret in.

#![no_main]
#![allow(dead_code, reason = "the files taken in have more than is used here")]

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};

use bellglass_protocol::network::{HostRule, NetworkPolicy};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, header};
use hyper_util::rt::TokioIo;
use libfuzzer_sys::fuzz_target;
use tokio::io::AsyncWriteExt as _;

#[path = "../../crates/sandbox/src/egress/message.rs"]
mod message;
#[path = "../../crates/sandbox/src/egress/secret.rs"]
mod secret;
#[path = "../../crates/sandbox/src/egress/target.rs"]
mod target;
#[path = "../../crates/sandbox/src/egress/upstream.rs"]
mod upstream;

static SECRET: LazyLock<secret::BoundSecret> = LazyLock::new(|| secret::BoundSecret {
    variable: "TOKEN".into(),
    secret: Arc::new(secret::Secret {
        value: secret::SecretValue::new("the-real-thing").expect("a value"),
        places: Vec::new(),
        path: Some(secret::PathPrefix::parse("/v1").expect("a path")),
        header: header::AUTHORIZATION,
        format: Some("Bearer {}".into()),
    }),
});

fuzz_target!(|input: &[u8]| {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let (ours, theirs) = tokio::io::duplex(4096);
        let (mut answers, mut requests) = tokio::io::split(theirs);
        let serving = hyper::server::conn::http1::Builder::new()
            .half_close(true)
            .max_buf_size(64 << 10)
            .serve_connection(TokioIo::new(ours), service_fn(answer));
        let sending = async {
            let _ = requests.write_all(input).await;
            let _ = requests.shutdown().await;
        };
        let mut nowhere = tokio::io::sink();
        let listening = tokio::io::copy(&mut answers, &mut nowhere);
        let _ = tokio::join!(serving, sending, listening);
    });
});

async fn answer(request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    let default_port = (request.method() != Method::CONNECT).then_some(80);
    if let Some((host, port)) = target::target(request.uri(), default_port) {
        assert!(!host.is_empty() && host.len() <= 255 && port > 0);
        // It goes into a line of a request and into the log.
        assert!(host.bytes().all(|byte| byte.is_ascii_graphic()), "{host:?}");
        assert!(!host.contains(['@', '/', '?', '#', '\\']), "{host:?}");
        let only = NetworkPolicy::Allow(vec![HostRule::parse("example.com").expect("a rule")]);
        if only.allows(&host, port, &[]) {
            let plain = host.trim_matches(['[', ']']).trim_end_matches('.');
            assert!(plain.eq_ignore_ascii_case("example.com"), "{host:?}");
        }
    }
    let (head, body) = request.into_parts();
    pass_on(Request::from_parts(head.clone(), ()), default_port);
    open(Request::from_parts(head, ()));
    let _ = body.collect().await;
    Ok(Response::new(Empty::new()))
}

/// A plain request, to its server or to a proxy of the host's.
fn pass_on(request: Request<()>, default_port: Option<u16>) {
    let Some((host, port)) = target::target(request.uri(), default_port) else { return };
    let proxy = upstream::UpstreamProxy {
        host: "proxy.example".into(),
        port: 3128,
        credentials: Some("ada:word".into()),
    };
    let own = proxy.authorization().expect("it has credentials");
    for proxy in [None, Some(&proxy)] {
        let mut passed = request.clone();
        message::readdress(&mut passed, &host, port, proxy);
        let headers = passed.headers();
        for hop in [header::TE, header::TRAILER, header::TRANSFER_ENCODING, header::UPGRADE] {
            assert!(!headers.contains_key(&hop), "{hop}");
        }
        let named: Vec<_> = headers.get_all(header::HOST).iter().collect();
        let expected = if port == 80 { host.clone() } else { format!("{host}:{port}") };
        assert_eq!(named, [expected.as_str()]);
        let told: Vec<_> = headers.get_all(header::PROXY_AUTHORIZATION).iter().collect();
        match proxy {
            None => assert!(told.is_empty() && passed.uri().authority().is_none()),
            Some(_) => {
                assert_eq!(told, [own.as_str()]);
                // Whoever reads the address finds the host that was judged.
                assert_eq!(target::target(passed.uri(), Some(80)), Some((host.clone(), port)));
            }
        }
    }
}

/// A request over a connection that was opened on its way to example.com.
fn open(mut request: Request<()>) {
    if message::check(&request, "example.com", 443).is_ok() {
        assert!(request.uri().authority().is_none() && request.method() != Method::CONNECT);
        assert_eq!(request.headers().get_all(header::HOST).iter().count(), 1);
    }
    let path = request.uri().path().to_owned();
    let mut before = request.headers().clone();
    SECRET.put_into(request.headers_mut(), &path);
    let mut after = request.headers().clone();
    let is_below = (path == "/v1" || path.starts_with("/v1/"))
        && path.split('/').all(|part| part != "." && part != "..");
    if is_below {
        // Nothing but its own header gets it.
        before.remove(header::AUTHORIZATION);
        after.remove(header::AUTHORIZATION);
    }
    assert_eq!(before, after, "{path}");
}
