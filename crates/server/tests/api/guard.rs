//! Who is let in: host names, origins, tokens; and the headers on every answer.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use bellglass_server::{Secret, ServerSettings};
use tokio::net::TcpListener;

use crate::harness::{Answer, HELLO, Harness};

async fn call(server: &Harness, method: Method, headers: &[(&str, &str)]) -> Answer {
    let path = if method == Method::POST { "/schedule" } else { "/jobs" };
    let mut request = Request::builder().method(method).uri(path);
    request = request.header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    server.send(request.body(Body::from(HELLO)).unwrap()).await
}

#[tokio::test]
async fn hosts_and_origins_without_a_token() {
    let settings = ServerSettings {
        allowed_hosts: vec!["Glass.example".into(), "box.lan:9000".into()],
        ..ServerSettings::default()
    };
    let server = Harness::with(settings).await;
    type Headers<'a> = &'a [(&'a str, &'a str)];
    let cases: &[(Method, Headers, &str)] = &[
        (Method::GET, &[("host", "localhost")], ""),
        (Method::GET, &[("host", "LOCALHOST:8000")], ""),
        (Method::GET, &[("host", "127.0.0.1:8000")], ""),
        (Method::GET, &[("host", "[::1]:8000")], ""),
        (Method::GET, &[("host", "glass.example:8000")], ""),
        (Method::GET, &[("host", "box.lan:9000")], ""),
        (Method::GET, &[("host", "box.lan:9001")], "forbidden_host"),
        (Method::GET, &[], "forbidden_host"),
        (Method::GET, &[("host", "")], "forbidden_host"),
        (Method::GET, &[("host", "evil.example:8000")], "forbidden_host"),
        (Method::GET, &[("host", "localhost.evil.example")], "forbidden_host"),
        (Method::GET, &[("host", "127.0.0.1.nip.io")], "forbidden_host"),
        (Method::GET, &[("host", "x@localhost")], "forbidden_host"),
        (Method::GET, &[("host", "0.0.0.0:8000")], "forbidden_host"),
        (Method::POST, &[("host", "localhost:8000"), ("origin", "http://localhost:8000")], ""),
        (
            Method::POST,
            &[("host", "localhost:8000"), ("origin", "http://localhost:3000")],
            "forbidden_origin",
        ),
        (
            Method::POST,
            &[("host", "localhost:8000"), ("origin", "http://evil.example")],
            "forbidden_origin",
        ),
        (Method::POST, &[("host", "localhost:8000"), ("origin", "null")], "forbidden_origin"),
        (
            Method::GET,
            &[("host", "localhost:8000"), ("origin", "http://evil.example")],
            "forbidden_origin",
        ),
        (
            Method::POST,
            &[("host", "localhost:8000"), ("sec-fetch-site", "cross-site")],
            "forbidden_origin",
        ),
        (
            Method::POST,
            &[("host", "localhost:8000"), ("sec-fetch-site", "same-site")],
            "forbidden_origin",
        ),
        (Method::POST, &[("host", "localhost:8000"), ("sec-fetch-site", "same-origin")], ""),
        (Method::GET, &[("host", "localhost:8000"), ("sec-fetch-site", "cross-site")], ""),
    ];
    for (method, headers, code) in cases {
        let answer = call(&server, method.clone(), headers).await;
        if code.is_empty() {
            assert!(answer.status.is_success(), "{headers:?}: {}", answer.text());
        } else {
            assert_eq!(answer.problem(), (403, (*code).into()), "{headers:?}");
        }
    }
}

#[tokio::test]
async fn a_token_is_needed_where_there_is_one() {
    let settings =
        ServerSettings { token: Some(Secret::new("s3cret")), ..ServerSettings::default() };
    assert!(!format!("{settings:?}").contains("s3cret"));
    let server = Harness::with(settings).await;
    for (header, admitted) in [
        (Some("Bearer s3cret"), true),
        (Some("bearer s3cret"), true),
        (Some("Bearer s3cre"), false),
        (Some("Bearer s3cret2"), false),
        (Some("Bearer "), false),
        (Some("Basic czNjcmV0"), false),
        (Some("s3cret"), false),
        (None, false),
    ] {
        let headers: Vec<_> = header.map(|value| ("authorization", value)).into_iter().collect();
        let answer = call(&server, Method::POST, &headers).await;
        if admitted {
            assert_eq!(answer.status, StatusCode::ACCEPTED, "{header:?}");
        } else {
            assert_eq!(answer.problem(), (401, "unauthorized".into()), "{header:?}");
            assert!(answer.header("www-authenticate").starts_with("Bearer"));
        }
    }
    for path in ["/healthz", "/readyz"] {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        assert_eq!(server.send(request).await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn every_answer_carries_the_protective_headers() {
    let server = Harness::new().await;
    for path in ["/", "/docs", "/jobs", "/nowhere", "/status/x", "/healthz"] {
        let answer = server.get(path).await;
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header("referrer-policy"), "no-referrer", "{path}");
        assert_eq!(answer.header("cross-origin-resource-policy"), "same-origin", "{path}");
        let policy = answer.header("content-security-policy");
        assert!(policy.contains("frame-ancestors 'self'"), "{path}: {policy}");
    }
}

#[tokio::test]
async fn an_open_address_without_a_token_is_refused() {
    let server = Harness::new().await;
    for token in [None, Some(Secret::new(""))] {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let mut app = server.app();
        app.settings.token = token;
        let error = bellglass_server::serve(listener, app, std::future::pending::<()>()).await;
        assert_eq!(error.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    }
}

#[tokio::test]
async fn who_guesses_tokens_is_held_up() {
    let server = crate::access::with_users().await;
    let listening = crate::connection::listen(&server).await;
    let ask = async |token: &str| {
        let header = format!("Authorization: Bearer {token}\r\n");
        listening.all("/jobs", &header).await
    };
    let good = ask(crate::access::OPERATOR).await;
    assert!(good.starts_with("HTTP/1.1 200 "), "{good}");
    // So many that they cannot all come one after the other.
    let guesses: Vec<String> = (0..300).map(|n| format!("guess-{n}")).collect();
    let answers = futures::future::join_all(guesses.iter().map(|guess| ask(guess))).await;
    let count = |status: &str| answers.iter().filter(|it| it.starts_with(status)).count();
    let (refused, held_up) = (count("HTTP/1.1 401 "), count("HTTP/1.1 429 "));
    assert!(refused > 0 && held_up > 0, "{refused} and {held_up}");
    assert_eq!(refused + held_up, answers.len());
    let told = answers.iter().find(|it| it.starts_with("HTTP/1.1 429 ")).unwrap();
    assert!(told.contains("retry-after: 1\r\n") && told.contains("too_many_requests"), "{told}");
    // Whoever was let in before still is.
    assert!(ask(crate::access::OPERATOR).await.starts_with("HTTP/1.1 200 "));
}
