//! What a program inside says to the proxy in SOCKS 5.

#![no_main]

use bellglass_protocol::network::{HostRule, NetworkPolicy};
use libfuzzer_sys::fuzz_target;

#[path = "../../crates/sandbox/src/egress/socks_request.rs"]
mod socks_request;

use socks_request::{Request, read_request};

fuzz_target!(|input: &[u8]| {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let mut rest = input;
    let read = runtime.block_on(read_request(&mut rest));
    // No more is taken than the longest request has, whatever is behind it.
    assert!(input.len() - rest.len() <= 4 + 1 + 255 + 2);
    let Ok(Request::Connect { host, port }) = read else { return };
    assert!(host.len() <= 3 * 255);
    let rules = ["example.com:443", "*.example.org", "192.0.2.1"];
    let rules: Vec<_> = rules.iter().map(|rule| HostRule::parse(rule).expect("a rule")).collect();
    if NetworkPolicy::Allow(rules).allows(&host, port, &[]) {
        let plain = host.to_ascii_lowercase();
        let plain = plain.trim_matches(['[', ']']).trim_end_matches('.');
        assert!(
            plain == "example.com" && port == 443
                || plain.ends_with(".example.org")
                || plain == "192.0.2.1",
            "{host:?}"
        );
    }
});
