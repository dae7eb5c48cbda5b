//! What a program inside says to the proxy in HTTP: which host each request is for.

#![no_main]

use std::convert::Infallible;

use bellglass_protocol::network::{HostRule, NetworkPolicy};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use libfuzzer_sys::fuzz_target;
use tokio::io::AsyncWriteExt as _;

#[path = "../../crates/sandbox/src/egress/target.rs"]
mod target;

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
    let _ = request.into_body().collect().await;
    Ok(Response::new(Empty::new()))
}
