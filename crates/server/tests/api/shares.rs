//! Links to one job: what they show, what they do not, and when they end.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, StatusCode};
use bellglass_protocol::chain::Verifier;
use bellglass_protocol::event::EndStatus;
use bellglass_protocol::id::JobId;
use bellglass_store::Store as _;
use futures::StreamExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::access::{OPERATOR, call, log_in, schedule_as, token_of, with_users};
use crate::document;
use crate::harness::{Harness, request};

async fn share(server: &Harness, token: &str, job: JobId, body: Value) -> Value {
    let path = format!("/jobs/{job}/share");
    let answer = call(server, token, Method::POST, &path, body.to_string()).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text());
    answer.json()
}

/// Opens a link as a browser does; what that then sends with requests for the job.
async fn open(server: &Harness, url: &str) -> Option<String> {
    let answer = server.get(url).await;
    assert_eq!(answer.status, StatusCode::SEE_OTHER, "{}", answer.text());
    assert!(answer.header("location").starts_with("/watch/"), "{}", answer.header("location"));
    let cookie = answer.headers.get("set-cookie")?.to_str().unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    assert!(cookie.contains("Path=/jobs/") && !cookie.contains("Path=/;"), "{cookie}");
    Some(cookie.split(';').next().unwrap().to_owned())
}

async fn status(server: &Harness, method: Method, path: &str, cookie: &str) -> u16 {
    let request = request(method, path).header("cookie", cookie);
    server.send(request.body(Body::empty()).unwrap()).await.status.as_u16()
}

#[tokio::test]
async fn a_link_shows_its_job_and_changes_nothing() {
    let server = with_users().await;
    let ada = token_of(&server, "ada", "user").await;
    let (job, other) = (schedule_as(&server, &ada).await, schedule_as(&server, &ada).await);
    let link = share(&server, &ada, job, json!({ "files": false })).await;
    assert_eq!((&link["files"], &link["output"]), (&json!(false), &json!(true)));
    let cookie = open(&server, link["url"].as_str().unwrap()).await.expect("it opens");
    let mut shown = Vec::new();
    for (method, template) in document::operations() {
        let is_public = ["/healthz", "/readyz", "/docs", "/openapi.json"].contains(&&*template)
            || (template == "/session" && method != Method::GET);
        if is_public || template == "/changes" {
            continue;
        }
        let path = template.replace("{n}", "1").replace("{k}", "1").replace("{path}", "a.txt");
        let path = path.replace("/events", "/events?follow=0");
        let own = path.replace("{id}", &job.to_string());
        let answer = status(&server, method.clone(), &own, &cookie).await;
        match answer {
            401 | 403 => {}
            _ => shown.push(format!("{method} {template}")),
        }
        if template.contains("{id}") {
            let path = path.replace("{id}", &other.to_string());
            let answer = status(&server, method.clone(), &path, &cookie).await;
            assert!([401, 403, 404].contains(&answer), "{method} {path}: {answer}");
        }
    }
    shown.sort();
    assert_eq!(
        shown,
        [
            "GET /jobs/{id}",
            "GET /jobs/{id}/events",
            "GET /jobs/{id}/output.zip",
            "GET /jobs/{id}/steps/{n}/attachments/{k}",
            "GET /jobs/{id}/steps/{n}/output",
            "GET /status/{id}",
        ]
    );
    let access = server.get_with(&format!("/status/{job}"), "cookie", &cookie).await.json();
    let expected = json!({ "change": false, "files": false, "output": true, "mind": false });
    assert_eq!(access["access"], expected);
    // A page of another site cannot use it, and it is no token.
    let path = format!("/jobs/{job}");
    let foreign = request(Method::GET, &path).header("cookie", &cookie);
    let foreign = foreign.header("origin", "http://evil.example").body(Body::empty()).unwrap();
    assert_eq!(server.send(foreign).await.problem(), (403, "forbidden_origin".into()));
    let text = cookie.split_once('=').unwrap().1;
    assert_eq!(call(&server, text, Method::GET, &path, "").await.problem().0, 401);
}

#[tokio::test]
async fn a_link_gives_away_no_uploaded_file_and_no_key() {
    let server = with_users().await;
    let ada = token_of(&server, "ada", "user").await;
    let spec = json!({
        "task": "count", "on_error": "continue", "priority": 0, "image": "base", "limits": {},
        "network": "registries", "isolation": "namespace", "owner": "ada",
        "files": [{ "path": "notes.txt", "content": "hush-file" }],
        "mcp": {
            "inside": { "command": ["serve", "--key=hush-argument"], "env": { "KEY": "hush-env" } },
            "outside": { "url": "https://example.com/hush-url" },
        },
    });
    let job = server.store.schedule(serde_json::from_value(spec).unwrap()).await.unwrap();
    let shown = async |cookie: &str, path: &str| {
        let path = path.replace("ID", &job.to_string());
        let answer = server.get_with(&path, "cookie", cookie).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text());
        answer.text().to_owned()
    };
    let ways = ["/jobs/ID", "/jobs/ID/events?follow=0", "/jobs/ID/events?format=jsonl"];
    let all = ["hush-file", "hush-argument", "hush-env", "hush-url"];
    let adas = log_in(&server, &ada).await;
    for (files, secret) in [(false, &all[..]), (true, &all[1..])] {
        let link = share(&server, &ada, job, json!({ "files": files })).await;
        let guest = open(&server, link["url"].as_str().unwrap()).await.expect("it opens");
        for way in ways {
            let (seen, whole) = (shown(&guest, way).await, shown(&adas, way).await);
            for word in all {
                assert!(whole.contains(word), "{word} in {way} for Ada: {whole}");
                let hidden = secret.contains(&word);
                assert_eq!(!seen.contains(word), hidden, "{word} in {way} for a guest: {seen}");
            }
            // What there is is still said.
            for word in ["notes.txt", "serve", "KEY", "outside"] {
                assert!(seen.contains(word), "{word} in {way}: {seen}");
            }
        }
    }
    // Only a line that something was taken out of can no longer be checked.
    let plain = schedule_as(&server, &ada).await;
    let link = share(&server, &ada, plain, json!({ "files": false })).await;
    let guest = open(&server, link["url"].as_str().unwrap()).await.expect("it opens");
    let path = format!("/jobs/{plain}/events?format=jsonl");
    let log = server.get_with(&path, "cookie", &guest).await;
    assert_eq!(log.text(), call(&server, &ada, Method::GET, &path, "").await.text());
    let mut verifier = Verifier::new(Some(plain));
    log.text().lines().for_each(|line| drop(verifier.line(line).unwrap()));
}

#[tokio::test]
async fn a_link_opens_its_job_for_those_who_are_logged_in_as_somebody_else() {
    let server = with_users().await;
    let ada = token_of(&server, "ada", "user").await;
    let (job, other) = (schedule_as(&server, &ada).await, schedule_as(&server, &ada).await);
    let link = share(&server, &ada, job, json!({})).await;
    let shown = open(&server, link["url"].as_str().unwrap()).await.expect("it opens");
    for role in ["user", "viewer"] {
        let bob = token_of(&server, "bob", role).await;
        let bobs = log_in(&server, &bob).await;
        let both = format!("{bobs}; {shown}");
        for path in ["/jobs/ID", "/status/ID", "/jobs/ID/events?follow=0"] {
            let path = path.replace("ID", &job.to_string());
            assert_eq!(status(&server, Method::GET, &path, &bobs).await, 404, "{path}");
            assert_eq!(status(&server, Method::GET, &path, &both).await, 200, "{path}");
        }
        let access = server.get_with(&format!("/status/{job}"), "cookie", &both).await.json();
        let expected = json!({ "change": false, "files": true, "output": true, "mind": false });
        assert_eq!(access["access"], expected);
        // It gives no more than it does to anybody, and what is Bob's own stays as it is.
        let cancel = format!("/jobs/{job}/cancel");
        assert_eq!(status(&server, Method::POST, &cancel, &both).await, 403);
        let elsewhere = format!("/jobs/{other}");
        assert_eq!(status(&server, Method::GET, &elsewhere, &both).await, 404);
        let foreign = request(Method::GET, &format!("/jobs/{job}")).header("cookie", &both);
        let foreign = foreign.header("origin", "http://evil.example").body(Body::empty()).unwrap();
        assert_eq!(server.send(foreign).await.problem(), (403, "forbidden_origin".into()));
        let me = server.get_with("/session", "cookie", &both).await.json();
        assert_eq!(me, json!({ "user": "bob", "role": role }));
    }
    call(&server, &ada, Method::DELETE, &format!("/jobs/{job}/share"), "").await;
    let bobs = log_in(&server, &token_of(&server, "bob", "user").await).await;
    let both = format!("{bobs}; {shown}");
    assert_eq!(status(&server, Method::GET, &format!("/jobs/{job}"), &both).await, 404);
}

#[tokio::test]
async fn a_link_ends_with_its_time_and_so_does_what_it_shows() {
    let server = with_users().await;
    let job = schedule_as(&server, OPERATOR).await;
    let link = share(&server, OPERATOR, job, json!({ "expires_in": 1 })).await;
    let url = link["url"].as_str().unwrap();
    let cookie = open(&server, url).await.expect("it opens");
    let stream = request(Method::GET, &format!("/jobs/{job}/events")).header("cookie", &cookie);
    let stream = server.router.clone().oneshot(stream.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(stream.status(), StatusCode::OK);
    let heard = stream.into_body().into_data_stream().collect::<Vec<_>>();
    tokio::time::timeout(Duration::from_secs(20), heard).await.expect("the stream ends");
    assert_eq!(open(&server, url).await, None);
    assert_eq!(status(&server, Method::GET, &format!("/jobs/{job}"), &cookie).await, 401);
}

#[tokio::test]
async fn links_are_taken_back_all_at_once() {
    let server = with_users().await;
    let job = schedule_as(&server, OPERATOR).await;
    let path = format!("/jobs/{job}/share");
    let first = share(&server, OPERATOR, job, json!({})).await;
    // Without a body, too.
    let plain = request(Method::POST, &path).header("authorization", format!("Bearer {OPERATOR}"));
    let second = server.send(plain.body(Body::empty()).unwrap()).await;
    assert_eq!(second.status, StatusCode::CREATED, "{}", second.text());
    let urls = [first, second.json()].map(|link| link["url"].as_str().unwrap().to_owned());
    let mut cookies = Vec::new();
    for url in &urls {
        cookies.push(open(&server, url).await.expect("it opens"));
    }
    let stream = request(Method::GET, &format!("/jobs/{job}/events")).header("cookie", &cookies[0]);
    let stream = server.router.clone().oneshot(stream.body(Body::empty()).unwrap()).await.unwrap();
    let mut events = stream.into_body().into_data_stream();
    assert!(events.next().await.is_some());

    let gone = call(&server, OPERATOR, Method::DELETE, &path, "").await;
    assert_eq!(gone.status, StatusCode::NO_CONTENT);
    let end = tokio::time::timeout(Duration::from_secs(10), events.next()).await;
    assert!(end.expect("the stream ends").is_none());
    for (url, cookie) in urls.iter().zip(&cookies) {
        assert_eq!(open(&server, url).await, None);
        assert_eq!(status(&server, Method::GET, &format!("/jobs/{job}"), cookie).await, 401);
    }
    let new = share(&server, OPERATOR, job, json!({})).await;
    assert!(open(&server, new["url"].as_str().unwrap()).await.is_some());
    for cookie in &cookies {
        let old = status(&server, Method::GET, &format!("/jobs/{job}"), cookie).await;
        assert_eq!(old, 401, "an old link stays closed");
    }
}

#[tokio::test]
async fn nobody_can_make_up_a_link() {
    let server = with_users().await;
    let (job, other) = (schedule_as(&server, OPERATOR).await, schedule_as(&server, OPERATOR).await);
    let link = share(&server, OPERATOR, job, json!({ "output": false })).await;
    share(&server, OPERATOR, other, json!({})).await;
    let text = link["url"].as_str().unwrap().strip_prefix("/share/").unwrap();
    let parts: Vec<&str> = text.split('.').collect();
    let [id, until, letters, seal] = parts[..] else { panic!("{text}") };
    let later = until.parse::<i64>().unwrap() + 1;
    for (forged, at) in [
        (format!("{other}.{until}.{letters}.{seal}"), other),
        (format!("{id}.{later}.{letters}.{seal}"), job),
        (format!("{id}.{until}.efo.{seal}"), job),
        (format!("{id}.{until}.{letters}.{}", "0".repeat(64)), job),
        (format!("{id}.{until}.{letters}."), job),
        (format!("{}.{until}.{letters}.{seal}", JobId::generate()), job),
    ] {
        assert_eq!(open(&server, &format!("/share/{forged}")).await, None, "{forged}");
        let cookie = format!("bellglass_share={forged}");
        assert_eq!(status(&server, Method::GET, &format!("/jobs/{at}"), &cookie).await, 401);
    }
    for garbage in ["x", "...", "a.b.c.d", "%00", "%ff"] {
        let answer = server.get(&format!("/share/{garbage}")).await;
        assert!(answer.status.is_client_error(), "{garbage}: {}", answer.status);
        assert!(!answer.headers.contains_key("set-cookie"));
    }
}

#[tokio::test]
async fn only_whoever_may_change_a_job_shares_it() {
    let server = with_users().await;
    let ada = token_of(&server, "ada", "user").await;
    let viewer = token_of(&server, "ada", "viewer").await;
    let bob = token_of(&server, "bob", "user").await;
    let job = schedule_as(&server, &ada).await;
    let path = format!("/jobs/{job}/share");
    let as_viewer = call(&server, &viewer, Method::POST, &path, "{}").await;
    assert_eq!(as_viewer.problem(), (403, "forbidden".into()));
    let as_bob = call(&server, &bob, Method::POST, &path, "{}").await;
    assert_eq!(as_bob.problem(), (404, "job_not_found".into()));
    let unknown = format!("/jobs/{}/share", JobId::generate());
    for method in [Method::POST, Method::DELETE] {
        let answer = call(&server, OPERATOR, method, &unknown, "").await;
        assert_eq!(answer.problem(), (404, "job_not_found".into()));
    }
    for wrong in [r#"{"expires_in": 0}"#, r#"{"admin": true}"#, "[]", "7"] {
        let answer = call(&server, &ada, Method::POST, &path, wrong).await;
        assert_eq!(answer.problem().0, 422, "{wrong}");
    }
    // It shows what was made, when the job is over, too.
    let claim = server.claim().await;
    server.store_result(claim, b"zip".to_vec()).await;
    server.finish(claim, EndStatus::Completed).await;
    let link = share(&server, &ada, job, json!({})).await;
    let cookie = open(&server, link["url"].as_str().unwrap()).await.unwrap();
    let zip = format!("/jobs/{job}/output.zip");
    assert_eq!(status(&server, Method::GET, &zip, &cookie).await, 200);
    let closed = share(&server, &ada, job, json!({ "output": false })).await;
    let cookie = open(&server, closed["url"].as_str().unwrap()).await.unwrap();
    assert_eq!(status(&server, Method::GET, &zip, &cookie).await, 403);
}
