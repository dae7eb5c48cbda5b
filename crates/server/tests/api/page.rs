//! The page and what it asks of the server beside the API: its files, the offer, news of jobs, sessions.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use bellglass_server::{Secret, ServerSettings};
use futures::StreamExt as _;
use tower::ServiceExt as _;

use crate::harness::{Answer, HELLO, Harness, request};

const TOKEN: &str = "open-sesame-open-sesame";

async fn with_token() -> Harness {
    let token = Some(Secret::new(TOKEN));
    Harness::with(ServerSettings { token, ..ServerSettings::default() }).await
}

async fn log_in(server: &Harness, body: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::post("/session").header("host", "glass.example");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    server.send(request.body(Body::from(body.to_owned())).unwrap()).await
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[tokio::test]
async fn the_page_is_the_same_at_each_of_its_addresses_and_is_kept_by_its_tag() {
    let server = Harness::new().await;
    let page = server.get("/").await;
    assert_eq!(page.status, StatusCode::OK);
    assert_eq!(page.header("cache-control"), "no-cache");
    let other = server.get("/watch/anything").await;
    assert_eq!(other.text(), page.text());
    // A server that was built without the page says in its place how to get it.
    let Some(tag) = page.headers.get("etag") else {
        assert!(page.text().contains("make page"), "{}", page.text());
        return;
    };
    let again = server.get_with("/", "if-none-match", tag.to_str().unwrap()).await;
    assert_eq!(again.status, StatusCode::NOT_MODIFIED);
    let text = page.text();
    let assets: Vec<&str> = text.split('"').filter(|part| part.starts_with("/assets/")).collect();
    assert!(assets.len() >= 3, "{assets:?}");
    for path in assets {
        let asset = server.get_with(path, "accept-encoding", "gzip").await;
        assert_eq!(asset.status, StatusCode::OK, "{path}");
        assert_eq!(asset.header("content-encoding"), "gzip", "{path}");
        assert!(asset.header("cache-control").contains("immutable"), "{path}");
        assert!(asset.header("content-security-policy").contains("require-trusted-types-for"));
        let plain = server.get(path).await;
        assert!(!plain.headers.contains_key("content-encoding") && plain.status == StatusCode::OK);
    }
}

#[tokio::test]
async fn files_that_the_page_does_not_have_are_not_found() {
    let server = Harness::new().await;
    for path in ["/assets/x.js", "/assets/..%2findex.html", "/assets/%2e%2e/x", "/watch/a/b"] {
        assert_eq!(server.get(path).await.problem(), (404, "not_found".into()), "{path}");
    }
}

#[tokio::test]
async fn the_offer_says_what_a_job_may_ask_for() {
    let server = Harness::new().await;
    let offer = server.get("/offer").await.json();
    assert_eq!(offer["images"], serde_json::json!(["base"]));
    assert_eq!(offer["tasks"]["available"], false);
    assert!(offer["tasks"]["why_not"].as_str().unwrap().contains("OPENAI_API_KEY"));
    assert_eq!(offer["apps"], true);
    assert!(offer["tools"].as_array().unwrap().contains(&"shell".into()));
    assert!(offer["limits"]["memory"].as_u64() <= offer["max_limits"]["memory"].as_u64());
}

#[tokio::test]
async fn listeners_hear_which_jobs_have_news() {
    let server = Harness::new().await;
    let request = request(Method::GET, "/changes").body(Body::empty()).unwrap();
    let response = server.router.clone().oneshot(request).await.unwrap();
    let mut news = response.into_body().into_data_stream();
    let mut next = async || {
        let piece = tokio::time::timeout(Duration::from_secs(20), news.next()).await;
        String::from_utf8(piece.unwrap().unwrap().unwrap().to_vec()).unwrap()
    };
    assert_eq!(next().await, "data: {\"jobs\":[]}\n\n", "the first says: look at all");
    let job = server.schedule(HELLO).await;
    let heard = next().await;
    assert!(heard.contains(&job.to_string()) && heard.contains("scheduled"), "{heard}");
}

#[tokio::test]
async fn a_token_becomes_a_cookie_that_lets_in_and_can_be_given_back() {
    let server = with_token().await;
    let body = format!("{{\"token\": \"{TOKEN}\"}}");
    let begun = log_in(&server, &body, &[JSON]).await;
    assert_eq!(begun.status, StatusCode::NO_CONTENT, "{}", begun.text());
    let set = begun.header("set-cookie").to_owned();
    assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict"), "{set}");
    let cookie = set.split(';').next().unwrap().to_owned();

    let call = |method: Method, path: &'static str, headers: Vec<(&'static str, String)>| {
        let server = &server;
        async move {
            let mut request = Request::builder().method(method).uri(path);
            request = request.header("host", "glass.example").header(JSON.0, JSON.1);
            for (name, value) in headers {
                request = request.header(name, value);
            }
            server.send(request.body(Body::from(HELLO)).unwrap()).await
        }
    };
    let own = ("cookie", cookie.clone());
    assert_eq!(call(Method::GET, "/jobs", vec![own.clone()]).await.status, StatusCode::OK);
    let from = |origin: &str| vec![own.clone(), ("origin", origin.to_owned())];
    let scheduled = call(Method::POST, "/schedule", from("http://glass.example")).await;
    assert_eq!(scheduled.status, StatusCode::ACCEPTED);
    for origin in ["http://evil.example", "http://glass.example:3000", "null"] {
        let refused = call(Method::POST, "/schedule", from(origin)).await;
        assert_eq!(refused.problem(), (403, "forbidden_origin".into()), "{origin}");
    }
    // A wrong token is wrong, whatever cookie comes with it.
    let both = vec![own.clone(), ("authorization", "Bearer wrong".to_owned())];
    assert_eq!(call(Method::GET, "/jobs", both).await.status, StatusCode::UNAUTHORIZED);

    let ended = call(Method::DELETE, "/session", vec![own]).await;
    assert!(ended.header("set-cookie").contains("bellglass_session=; Path=/; Max-Age=0"));
}

#[tokio::test]
async fn no_other_way_gets_a_cookie() {
    let server = with_token().await;
    let right = format!("{{\"token\": \"{TOKEN}\"}}");
    for (body, headers, problem) in [
        ("{\"token\": \"wrong\"}", &[JSON][..], (401, "unauthorized")),
        ("{\"token\": \"\"}", &[JSON], (401, "unauthorized")),
        ("{\"tok\": \"s3cret-s3cret\"}", &[JSON], (422, "invalid_request")),
        ("s3cret-s3cret", &[JSON], (400, "invalid_json")),
        (&right, &[], (415, "unsupported_media_type")),
        (&right, &[JSON, ("origin", "http://evil.example")], (403, "forbidden_origin")),
        (&right, &[JSON, ("sec-fetch-site", "cross-site")], (403, "forbidden_origin")),
    ] {
        let answer = log_in(&server, body, headers).await;
        assert_eq!(answer.problem(), (problem.0, problem.1.into()), "{body}");
        assert!(!answer.headers.contains_key("set-cookie"), "{body}");
        assert!(!answer.text().contains("s3cret"), "{}", answer.text());
    }
    for path in ["/", "/watch/x", "/docs"] {
        let answer = server.send(Request::get(path).body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, StatusCode::OK, "{path} holds nothing of anybody's");
    }
    for path in ["/jobs", "/offer", "/changes", "/assetsx", "/watch"] {
        let answer = server.send(Request::get(path).body(Body::empty()).unwrap()).await;
        assert_eq!(answer.problem(), (401, "unauthorized".into()), "{path}");
    }
}
