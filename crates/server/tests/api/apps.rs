//! Apps in sandboxes: the host names they have, who is let in there, and what passes.

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use bellglass_protocol::id::JobId;
use bellglass_server::{Secret, ServerSettings};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt as _;

use crate::access::{OPERATOR, call, log_in, make_token, schedule_as, token_of, with_users};
use crate::connection::{PATIENCE, listen};
use crate::harness::{Answer, HELLO, Harness, request};

/// A program that answers every request with what it was sent, and with headers of all kinds.
async fn mirror() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                    let mut byte = [0; 4096];
                    match stream.read(&mut byte).await {
                        Ok(0) | Err(_) => return,
                        Ok(count) => head.extend_from_slice(&byte[..count]),
                    }
                }
                let answer = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nX-Own: yes\r\n\
                              Connection: close, X-Hop\r\nX-Hop: 1\r\n\
                              Content-Security-Policy: img-src 'none'\r\n\
                              Set-Cookie: own=1; Path=/\r\n\
                              Set-Cookie: bellglass_session=forged; Path=/\r\n\r\n";
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.write_all(&head).await;
            });
        }
    });
    port
}

async fn running(server: &Harness) -> JobId {
    let job = server.schedule(HELLO).await;
    server.live.0.lock().unwrap().insert(job, Default::default());
    job
}

async fn at(server: &Harness, host: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::builder().uri(path).header("host", host);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::empty()).unwrap();
    // What an app answers stands in no document.
    let (parts, body) = server.router.clone().oneshot(request).await.unwrap().into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    Answer { status: parts.status, headers: parts.headers, body }
}

/// Where an answer leads: the host, and the rest.
fn led_to(answer: &Answer) -> (String, String) {
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text());
    let address = answer.header("location").strip_prefix("http://").unwrap();
    let (host, path) = address.split_once('/').unwrap();
    (host.to_owned(), format!("/{path}"))
}

fn cookies(answer: &Answer) -> Vec<String> {
    let set = answer.headers.get_all("set-cookie").iter();
    set.map(|cookie| cookie.to_str().unwrap().split(';').next().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn an_app_is_shown_under_a_host_name_of_its_own() {
    let server = Harness::new().await;
    let (job, port) = (running(&server).await, mirror().await);
    let opened = server.get(&format!("/jobs/{job}/ports/{port}/a/b?c=d")).await;
    let (host, entrance) = led_to(&opened);
    assert_eq!(host, format!("{job}-{port}.localhost:8000"));

    let entered = at(&server, &host, &entrance, &[("sec-fetch-site", "cross-site")]).await;
    assert_eq!(entered.status, StatusCode::SEE_OTHER);
    assert_eq!(entered.header("location"), "/a/b?c=d");
    let cookies = cookies(&entered);
    assert_eq!(cookies.len(), 2);
    // The link is good once.
    assert_eq!(at(&server, &host, &entrance, &[]).await.status, StatusCode::FORBIDDEN);

    for cookie in &cookies {
        let sent = format!("bellglass_session=s; {cookie}; own=2");
        let headers = [("cookie", sent.as_str()), ("te", "trailers"), ("x-mine", "1")];
        let shown = at(&server, &host, "/a/b?c=d", &headers).await;
        assert_eq!(shown.status, StatusCode::OK);
        let seen = shown.text().to_ascii_lowercase();
        assert!(seen.starts_with("get /a/b?c=d http/1.1\r\n"), "{seen}");
        assert!(seen.contains(&format!("host: {host}")));
        assert!(seen.contains("cookie: own=2\r\n") && seen.contains("x-mine: 1"));
        assert!(!seen.contains("bellglass") && !seen.contains("te: trailers"), "{seen}");
        assert_eq!(shown.header("x-own"), "yes");
        assert_eq!(shown.header("x-hop"), "");
        assert_eq!(self::cookies(&shown), ["own=1"]);
        let policies: Vec<_> = shown.headers.get_all("content-security-policy").iter().collect();
        let [own, ours] = policies[..] else { panic!("{policies:?}") };
        assert_eq!(own, "img-src 'none'");
        let ours = ours.to_str().unwrap();
        assert!(ours.starts_with("default-src 'self' "), "{ours}");
        assert!(ours.contains(&format!("connect-src 'self' ws://{host} ")), "{ours}");
        assert!(ours.ends_with("frame-ancestors 'self' http://localhost:8000"), "{ours}");
        assert_eq!(shown.header("referrer-policy"), "same-origin");
        // A service worker could answer in our place.
        let worker = [("cookie", sent.as_str()), ("service-worker", "script")];
        assert_eq!(at(&server, &host, "/sw.js", &worker).await.status, StatusCode::FORBIDDEN);
    }
}

#[tokio::test]
async fn an_app_sees_its_own_tokens_and_none_of_ours() {
    let server = with_users().await;
    let (ada, _) = make_token(&server, json!({ "user": "ada" })).await;
    let job = schedule_as(&server, &ada).await;
    server.live.0.lock().unwrap().insert(job, Default::default());
    let path = format!("/jobs/{job}/ports/{}/", mirror().await);
    let (host, entrance) = led_to(&call(&server, &ada, Method::GET, &path, "").await);
    let cookie = cookies(&at(&server, &host, &entrance, &[]).await).join("; ");
    for (token, is_passed_on) in
        [("the-apps-own", true), (OPERATOR, false), (&ada, false), ("bgs_0123456789", false)]
    {
        let shown = format!("Bearer {token}");
        let headers = [("cookie", cookie.as_str()), ("authorization", shown.as_str())];
        let seen = at(&server, &host, "/", &headers).await;
        assert_eq!(seen.status, StatusCode::OK, "{token}: {}", seen.text());
        assert_eq!(seen.text().contains(token), is_passed_on, "{token}: {}", seen.text());
    }
}

#[tokio::test]
async fn nobody_is_let_in_without_a_ticket_for_this_very_app() {
    let server = Harness::new().await;
    let (job, port, other) = (running(&server).await, mirror().await, mirror().await);
    let (host, entrance) = led_to(&server.get(&format!("/jobs/{job}/ports/{port}/")).await);
    let other_host = format!("{job}-{other}.localhost:8000");
    assert_eq!(at(&server, &host, "/", &[]).await.status, StatusCode::UNAUTHORIZED);
    assert_eq!(at(&server, &other_host, &entrance, &[]).await.status, StatusCode::FORBIDDEN);
    let cookie = &cookies(&at(&server, &host, &entrance, &[]).await)[0];
    let with = |more: &[(&'static str, String)]| {
        let mut headers = vec![("cookie", cookie.clone())];
        headers.extend_from_slice(more);
        headers
    };
    let cases = [
        (&host, with(&[]), StatusCode::OK),
        (&other_host, with(&[]), StatusCode::UNAUTHORIZED),
        (&host, with(&[("origin", format!("http://{host}"))]), StatusCode::OK),
        (&host, with(&[("origin", format!("http://{other_host}"))]), StatusCode::FORBIDDEN),
        (&host, with(&[("origin", "http://localhost:8000".into())]), StatusCode::FORBIDDEN),
        (&host, with(&[("x-large", "x".repeat(70_000))]), StatusCode::from_u16(431).unwrap()),
    ];
    for (host, headers, expected) in cases {
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(at(&server, host, "/", &headers).await.status, expected, "{headers:?}");
    }
}

#[tokio::test]
async fn the_api_is_never_answered_under_an_apps_name() {
    for token in [None, Some(Secret::new("0123456789abcdef"))] {
        let settings = ServerSettings { token, ..ServerSettings::default() };
        let server = Harness::with(settings).await;
        let host = format!("{}-8000.localhost:8000", JobId::generate());
        for path in ["/jobs", "/healthz", "/", "/openapi.json", "/assets/x.js", "/session"] {
            let bearer = [("authorization", "Bearer 0123456789abcdef")];
            let answer = at(&server, &host, path, &bearer).await;
            assert!(
                matches!(answer.status, StatusCode::UNAUTHORIZED | StatusCode::GONE),
                "{path}: {}",
                answer.status
            );
        }
        // What merely looks like such a name is one of the hosts that nobody knows.
        let answer = at(&server, "x-8000.localhost:8000", "/jobs", &[]).await;
        assert!(answer.status.is_client_error());
    }
}

#[tokio::test]
async fn a_token_lets_a_program_in_and_stays_outside() {
    let settings = ServerSettings {
        token: Some(Secret::new("0123456789abcdef")),
        ..ServerSettings::default()
    };
    let server = Harness::with(settings).await;
    let request = request(Method::POST, "/schedule")
        .header("content-type", "application/json")
        .header("authorization", "Bearer 0123456789abcdef");
    let scheduled = server.send(request.body(Body::from(HELLO)).unwrap()).await;
    let job: JobId = scheduled.json()["job_id"].as_str().unwrap().parse().unwrap();
    server.live.0.lock().unwrap().insert(job, Default::default());
    let host = format!("{job}-{}.localhost:8000", mirror().await);
    let shown = at(&server, &host, "/", &[("authorization", "Bearer 0123456789abcdef")]).await;
    assert_eq!(shown.status, StatusCode::OK);
    assert!(!shown.text().to_ascii_lowercase().contains("authorization"), "{}", shown.text());
    assert_eq!(at(&server, &host, "/", &[("authorization", "Bearer x")]).await.status, 401);
}

#[tokio::test]
async fn people_are_told_why_there_is_nothing_to_see() {
    let server = Harness::new().await;
    let job = running(&server).await;
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let (host, entrance) = led_to(&server.get(&format!("/jobs/{job}/ports/{free}")).await);
    let cookie = cookies(&at(&server, &host, &entrance, &[]).await)[0].clone();
    let nothing = at(&server, &host, "/", &[("cookie", &cookie)]).await;
    assert_eq!((nothing.status, nothing.header("refresh")), (StatusCode::BAD_GATEWAY, "2"));
    assert!(nothing.text().contains("Nothing listens here"));
    server.live.0.lock().unwrap().clear();
    let over = at(&server, &host, "/", &[("cookie", &cookie)]).await;
    assert_eq!(over.status, StatusCode::GONE);
    assert_eq!(server.get(&format!("/jobs/{job}/ports/80/")).await.problem().1, "not_started");
    for port in ["0", "3128", "x", "65536"] {
        let refused = server.get(&format!("/jobs/{job}/ports/{port}/")).await;
        assert_eq!(refused.problem(), (400, "invalid_port".into()), "{port}");
    }
}

#[tokio::test]
async fn a_server_with_another_name_needs_a_domain_for_apps() {
    let bearer = ("authorization", "Bearer 0123456789abcdef");
    for (sandbox_domain, leads) in
        [(None, None), (Some("apps.example.org"), Some("apps.example.org"))]
    {
        let settings = ServerSettings {
            token: Some(Secret::new("0123456789abcdef")),
            sandbox_domain: sandbox_domain.map(str::to_owned),
            ..ServerSettings::default()
        };
        let server = Harness::with(settings).await;
        let request = request(Method::POST, "/schedule").header(bearer.0, bearer.1);
        let request = request.header("content-type", "application/json");
        let scheduled = server.send(request.body(Body::from(HELLO)).unwrap()).await;
        let job: JobId = scheduled.json()["job_id"].as_str().unwrap().parse().unwrap();
        server.live.0.lock().unwrap().insert(job, Default::default());
        let path = format!("/jobs/{job}/ports/8080/");
        let opened = at(&server, "bell.example", &path, &[bearer]).await;
        match leads {
            None => {
                assert_eq!(opened.problem(), (409, "no_sandbox_domain".into()));
                assert!(opened.json()["hint"].as_str().unwrap().contains("sandbox_domain"));
            }
            Some(domain) => assert_eq!(led_to(&opened).0, format!("{job}-8080.{domain}")),
        }
    }
}

#[tokio::test]
async fn ports_are_listed_once_each_and_without_the_way_out() {
    let server = Harness::new().await;
    let job = running(&server).await;
    let listed = server.get(&format!("/jobs/{job}/ports")).await.json();
    let ports = listed["ports"].as_array().unwrap();
    assert_eq!(ports.len(), 1);
    assert_eq!(ports[0]["port"], 8000);
    assert_eq!(ports[0]["url"], format!("/jobs/{job}/ports/8000/"));
}

#[tokio::test]
async fn an_app_is_its_owners_and_ends_with_their_token() {
    let server = with_users().await;
    let (ada, id) = make_token(&server, json!({ "user": "ada" })).await;
    let bob = token_of(&server, "bob", "user").await;
    let viewer = token_of(&server, "ada", "viewer").await;
    let job = schedule_as(&server, &ada).await;
    server.live.0.lock().unwrap().insert(job, Default::default());
    let port = mirror().await;
    let host = format!("{job}-{port}.localhost:8000");

    // A program with a token of the owner's needs no ticket, and the app never sees the token.
    let as_program = async |token: &str| {
        let shown = format!("Bearer {token}");
        at(&server, &host, "/", &[("authorization", &shown)]).await
    };
    let seen = as_program(&ada).await;
    assert_eq!(seen.status, StatusCode::OK, "{}", seen.text());
    assert!(!seen.text().contains("bg_"), "{}", seen.text());
    for token in [bob.as_str(), viewer.as_str(), "bg_00"] {
        assert_eq!(as_program(token).await.status, StatusCode::UNAUTHORIZED, "{token}");
    }

    let path = format!("/jobs/{job}/ports/{port}/");
    assert_eq!(call(&server, &bob, Method::GET, &path, "").await.problem().0, 404);
    assert_eq!(call(&server, &viewer, Method::GET, &path, "").await.problem().0, 403);
    let (host, entrance) = led_to(&call(&server, &ada, Method::GET, &path, "").await);
    let cookie = cookies(&at(&server, &host, &entrance, &[]).await).join("; ");
    let as_browser = async || at(&server, &host, "/", &[("cookie", &cookie)]).await.status;
    assert_eq!(as_browser().await, StatusCode::OK);
    // A token of ours that comes beside the cookie stays outside too.
    let stray = format!("Bearer {bob}");
    let both = [("cookie", cookie.as_str()), ("authorization", stray.as_str())];
    let seen = at(&server, &host, "/", &both).await;
    assert!(seen.status == StatusCode::OK && !seen.text().contains("bg_"), "{}", seen.text());

    call(&server, OPERATOR, Method::DELETE, &format!("/tokens/{id}"), "").await;
    assert_eq!(as_browser().await, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_server_that_starts_again_knows_its_visitors() {
    let folder = tempfile::tempdir().unwrap();
    let app_key = Some(folder.path().join("app-key"));
    let mut server = Harness::with(ServerSettings { app_key, ..ServerSettings::default() }).await;
    let (job, port) = (running(&server).await, mirror().await);
    let (host, entrance) = led_to(&server.get(&format!("/jobs/{job}/ports/{port}/")).await);
    let cookie = cookies(&at(&server, &host, &entrance, &[]).await)[0].clone();
    server.router = bellglass_server::router(server.app()).unwrap();
    assert_eq!(at(&server, &host, "/", &[("cookie", &cookie)]).await.status, StatusCode::OK);
    // One that has another key does not.
    server.settings.app_key = Some(folder.path().join("another"));
    server.router = bellglass_server::router(server.app()).unwrap();
    let refused = at(&server, &host, "/", &[("cookie", &cookie)]).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn what_the_operator_opened_ends_when_they_log_out() {
    let server = with_users().await;
    let (one, other) = (log_in(&server, OPERATOR).await, log_in(&server, OPERATOR).await);
    let job = schedule_as(&server, OPERATOR).await;
    server.live.0.lock().unwrap().insert(job, Default::default());
    let path = format!("/jobs/{job}/ports/{}/", mirror().await);
    let mut passes = Vec::new();
    for session in [&one, &other] {
        let (host, entrance) = led_to(&server.get_with(&path, "cookie", session).await);
        let entered = at(&server, &host, &entrance, &[]).await;
        passes.push((host, cookies(&entered)[0].clone()));
    }
    let status = async |n: usize| {
        let (host, cookie) = &passes[n];
        at(&server, host, "/", &[("cookie", cookie)]).await.status
    };
    assert_eq!((status(0).await, status(1).await), (StatusCode::OK, StatusCode::OK));
    let out = request(Method::DELETE, "/session").header("cookie", &one);
    let out = server.send(out.body(Body::empty()).unwrap()).await;
    assert_eq!(out.status, StatusCode::NO_CONTENT);
    assert_eq!((status(0).await, status(1).await), (StatusCode::UNAUTHORIZED, StatusCode::OK));
    // Also for whoever has copied the cookie.
    assert_eq!(server.get_with("/jobs", "cookie", &one).await.problem().0, 401);
    assert_eq!(server.get_with("/jobs", "cookie", &other).await.status, StatusCode::OK);
}

/// A program that has no end: it sends back what it gets over a WebSocket, and to any other request it
/// answers the beginning of something.
async fn endless() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let head = read_head(&mut stream).await.to_ascii_lowercase();
                let answer = match head.contains("upgrade: websocket") {
                    true => {
                        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                         Upgrade: websocket\r\nSet-Cookie: own=1\r\n\
                         Set-Cookie: bellglass_session=forged\r\n\r\n"
                    }
                    false => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n",
                };
                stream.write_all(answer.as_bytes()).await.unwrap();
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    port
}

async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

#[tokio::test]
async fn what_is_open_into_an_app_ends_with_the_token() {
    let server = with_users().await;
    let (ada, id) = make_token(&server, json!({ "user": "ada" })).await;
    let job = schedule_as(&server, &ada).await;
    server.live.0.lock().unwrap().insert(job, Default::default());
    let port = endless().await;
    let path = format!("/jobs/{job}/ports/{port}/");
    let (host, entrance) = led_to(&call(&server, &ada, Method::GET, &path, "").await);
    let cookie = cookies(&at(&server, &host, &entrance, &[]).await).join("; ");

    let listening = listen(&server).await;
    let ask = async |head: String| {
        let mut stream = TcpStream::connect(listening.address).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        (stream, head)
    };
    let mut open = Vec::new();
    for shown in [format!("Cookie: {cookie}"), format!("Authorization: Bearer {ada}")] {
        let websocket = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
        let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n{shown}\r\n{websocket}\r\n");
        let (mut socket, head) = ask(head).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        assert!(head.contains("own=1") && !head.contains("bellglass_"), "{head}");
        socket.write_all(b"hello").await.unwrap();
        let mut echo = [0; 5];
        socket.read_exact(&mut echo).await.unwrap();
        assert_eq!(&echo, b"hello");
        let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n{shown}\r\n\r\n");
        let (mut stream, head) = ask(head).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let mut first = [0; 8];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"5\r\nfirst");
        open.extend([socket, stream]);
    }
    let operator = format!("Authorization: Bearer {OPERATOR}");
    let address = listening.address;
    let revoke = format!("DELETE /tokens/{id} HTTP/1.1\r\nHost: {address}\r\n{operator}\r\n\r\n");
    let (_, head) = ask(revoke).await;
    assert!(head.starts_with("HTTP/1.1 204 "), "{head}");
    for mut stream in open {
        let mut rest = Vec::new();
        let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        // Whether it is closed or broken off does not matter.
        let _ = end.expect("it ends");
    }
}
