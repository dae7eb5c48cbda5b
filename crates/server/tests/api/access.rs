//! Users: their tokens, their sessions, what each role may do, and that nobody sees another's jobs.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, StatusCode};
use bellglass_protocol::id::JobId;
use bellglass_server::{Secret, ServerSettings};
use bellglass_store::Store as _;
use futures::StreamExt as _;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::document;
use crate::harness::{Answer, HELLO, Harness, request};

pub(crate) const OPERATOR: &str = "open-sesame-open-sesame";

/// A server with a token of its own, under which users can be made.
pub(crate) async fn with_users() -> Harness {
    with_settings(ServerSettings::default()).await
}

pub(crate) async fn with_settings(settings: ServerSettings) -> Harness {
    let token = Some(Secret::new(OPERATOR));
    Harness::with(ServerSettings { token, ..settings }).await
}

/// Sends a request as whoever has this token.
pub(crate) async fn call(
    server: &Harness,
    token: &str,
    method: Method,
    path: &str,
    body: impl Into<Body>,
) -> Answer {
    let request = request(method, path)
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", "application/json");
    server.send(request.body(body.into()).unwrap()).await
}

pub(crate) async fn make_token(server: &Harness, body: Value) -> (String, String) {
    let made = call(server, OPERATOR, Method::POST, "/tokens", body.to_string()).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text());
    let made = made.json();
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    (text("token"), text("id"))
}

pub(crate) async fn token_of(server: &Harness, user: &str, role: &str) -> String {
    make_token(server, json!({ "user": user, "role": role })).await.0
}

pub(crate) async fn schedule_as(server: &Harness, token: &str) -> JobId {
    let answer = call(server, token, Method::POST, "/schedule", HELLO).await;
    assert_eq!(answer.status, StatusCode::ACCEPTED, "{}", answer.text());
    answer.json()["job_id"].as_str().unwrap().parse().unwrap()
}

async fn listed(server: &Harness, token: &str) -> Vec<String> {
    let jobs = call(server, token, Method::GET, "/jobs", "").await.json();
    let jobs = jobs["jobs"].as_array().unwrap().iter();
    jobs.map(|job| job["job_id"].as_str().unwrap().to_owned()).collect()
}

/// Logs a browser in; what it sends back from then on.
pub(crate) async fn log_in(server: &Harness, token: &str) -> String {
    let begun = server.post("/session", json!({ "token": token }).to_string()).await;
    assert_eq!(begun.status, StatusCode::NO_CONTENT, "{}", begun.text());
    let set = begun.header("set-cookie").to_owned();
    assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict"), "{set}");
    assert!(!set.contains(token), "{set}");
    set.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_token_is_made_listed_and_revoked() {
    let server = with_users().await;
    let (ada, id) = make_token(&server, json!({ "user": "ada", "name": "laptop" })).await;
    assert!(ada.starts_with("bg_") && ada.len() > 60, "{ada}");
    let list = call(&server, OPERATOR, Method::GET, "/tokens", "").await;
    assert!(!list.text().contains(&ada), "a token is shown once");
    let kept = list.json()["tokens"][0].clone();
    assert_eq!((&kept["id"], &kept["role"]), (&json!(id), &json!("user")));
    assert_eq!((&kept["user"], &kept["expired"]), (&json!("ada"), &json!(false)));

    let me = call(&server, &ada, Method::GET, "/session", "").await.json();
    assert_eq!(me, json!({ "user": "ada", "role": "user" }));
    let path = format!("/tokens/{id}");
    let revoked = call(&server, OPERATOR, Method::DELETE, &path, "").await;
    assert_eq!(revoked.status, StatusCode::NO_CONTENT);
    let again = call(&server, OPERATOR, Method::DELETE, &path, "").await;
    assert_eq!(again.problem(), (404, "token_not_found".into()));
    let refused = call(&server, &ada, Method::GET, "/jobs", "").await;
    assert_eq!(refused.problem(), (401, "unauthorized".into()));
}

#[tokio::test]
async fn a_token_that_makes_no_sense_is_not_made() {
    let server = with_users().await;
    for body in [
        json!({}),
        json!({ "user": "" }),
        json!({ "user": "a/b" }),
        json!({ "user": "plan" }),
        json!({ "user": "ada lovelace" }),
        json!({ "user": "x".repeat(65) }),
        json!({ "user": "ada", "role": "root" }),
        json!({ "user": "ada", "name": "two\nlines" }),
        json!({ "user": "ada", "expires_in": -1 }),
        json!({ "user": "ada", "sudo": true }),
    ] {
        let answer = call(&server, OPERATOR, Method::POST, "/tokens", body.to_string()).await;
        assert_eq!(answer.problem(), (422, "invalid_request".into()), "{body}");
    }
    assert!(server.store.tokens().await.unwrap().is_empty());
}

use bellglass_store::access::Access as _;

#[tokio::test]
async fn an_expired_token_lets_nobody_in_and_ends_its_session_and_streams() {
    let server = with_users().await;
    let (brief, _) = make_token(&server, json!({ "user": "ada", "expires_in": "700ms" })).await;
    let cookie = log_in(&server, &brief).await;
    let stream = request(Method::GET, "/changes").header("cookie", &cookie);
    let stream = server.router.clone().oneshot(stream.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(stream.status(), StatusCode::OK);
    // The stream ends with the token, so its end is what to wait for.
    let heard = stream.into_body().into_data_stream().collect::<Vec<_>>();
    tokio::time::timeout(Duration::from_secs(20), heard).await.expect("the stream ends");
    let by_token = call(&server, &brief, Method::GET, "/jobs", "").await;
    assert_eq!(by_token.problem(), (401, "unauthorized".into()));
    let by_cookie = server.get_with("/jobs", "cookie", &cookie).await;
    assert_eq!(by_cookie.problem(), (401, "unauthorized".into()));
    let login = server.post("/session", json!({ "token": brief }).to_string()).await;
    assert_eq!(login.problem(), (401, "unauthorized".into()));
    let list = call(&server, OPERATOR, Method::GET, "/tokens", "").await.json();
    assert_eq!(list["tokens"][0]["expired"], true);
}

#[tokio::test]
async fn revoking_a_token_ends_its_sessions_and_streams_at_once() {
    let server = with_users().await;
    let (ada, id) = make_token(&server, json!({ "user": "ada" })).await;
    let (bob, _) = make_token(&server, json!({ "user": "bob" })).await;
    let (adas, bobs) = (log_in(&server, &ada).await, log_in(&server, &bob).await);
    let job = schedule_as(&server, &ada).await;
    let stream = request(Method::GET, &format!("/jobs/{job}/events")).header("cookie", &adas);
    let stream = server.router.clone().oneshot(stream.body(Body::empty()).unwrap()).await.unwrap();
    let mut events = stream.into_body().into_data_stream();
    assert!(events.next().await.unwrap().unwrap().starts_with(b"id: 1"));
    assert_eq!(server.get_with("/jobs", "cookie", &adas).await.status, StatusCode::OK);

    call(&server, OPERATOR, Method::DELETE, &format!("/tokens/{id}"), "").await;
    let end = tokio::time::timeout(Duration::from_secs(10), events.next()).await;
    assert!(end.expect("the stream ends").is_none());
    assert_eq!(server.get_with("/jobs", "cookie", &adas).await.problem().0, 401);
    assert_eq!(server.get_with("/jobs", "cookie", &bobs).await.status, StatusCode::OK);
}

#[tokio::test]
async fn logging_out_ends_the_session_also_for_whoever_copied_the_cookie() {
    let server = with_users().await;
    let ada = token_of(&server, "ada", "user").await;
    let cookie = log_in(&server, &ada).await;
    let out = request(Method::DELETE, "/session").header("cookie", &cookie);
    let out = server.send(out.body(Body::empty()).unwrap()).await;
    assert_eq!(out.status, StatusCode::NO_CONTENT);
    assert_eq!(server.get_with("/jobs", "cookie", &cookie).await.problem().0, 401);
    assert_eq!(call(&server, &ada, Method::GET, "/jobs", "").await.status, StatusCode::OK);
    // What a cookie holds is no token.
    let secret = cookie.split_once('=').unwrap().1;
    let login = server.post("/session", json!({ "token": secret }).to_string()).await;
    assert_eq!(login.problem(), (401, "unauthorized".into()));
}

#[tokio::test]
async fn garbage_is_no_cookie() {
    let server = with_users().await;
    let ada = token_of(&server, "ada", "user").await;
    let good = log_in(&server, &ada).await;
    for bad in [
        "bellglass_session=",
        "bellglass_session=bgs_",
        "bellglass_session=.",
        "bellglass_session=9999999999.00",
        &format!("bellglass_session={ada}"),
        &good[..good.len() - 1],
        &format!("{good}0"),
        &good.replace("bellglass_session", "bellglass_share"),
        "bellglass_share=....",
        "=;;;=",
        "\u{e9}",
    ] {
        let answer = server.get_with("/jobs", "cookie", bad).await;
        assert_eq!(answer.problem(), (401, "unauthorized".into()), "{bad}");
    }
    // A second cookie of the name, which a page of another port can set, does not keep the first from
    // being found.
    let both = format!("bellglass_session=bgs_00; {good}");
    assert_eq!(server.get_with("/jobs", "cookie", &both).await.status, StatusCode::OK);
}

#[tokio::test]
async fn another_users_job_looks_like_one_that_does_not_exist() {
    let server = with_users().await;
    let ada = token_of(&server, "ada", "user").await;
    let bob = token_of(&server, "bob", "user").await;
    let admin = token_of(&server, "root", "admin").await;
    let adas = schedule_as(&server, &ada).await;
    let operators = schedule_as(&server, OPERATOR).await;
    let missing = JobId::generate();
    assert_eq!(listed(&server, &ada).await, [adas.to_string()]);
    assert!(listed(&server, &bob).await.is_empty());
    for all in [&admin, OPERATOR] {
        assert_eq!(listed(&server, all).await, [operators.to_string(), adas.to_string()]);
    }
    for path in ["/status/ID", "/status?task_id=ID", "/status?job_id=ID", "/jobs/ID/events"] {
        let get = async |job: JobId| {
            let path = path.replace("ID", &job.to_string());
            call(&server, &bob, Method::GET, &path, "").await
        };
        let (theirs, none) = (get(adas).await, get(missing).await);
        assert_eq!(theirs.problem(), (404, "job_not_found".into()), "{path}");
        let words = |answer: &Answer, job: JobId| answer.text().replace(&job.to_string(), "ID");
        assert_eq!(words(&theirs, adas), words(&none, missing), "{path}");
        let own = path.replace("ID", &adas.to_string());
        if !path.ends_with("events") {
            assert_eq!(call(&server, &ada, Method::GET, &own, "").await.status, StatusCode::OK);
        }
    }
    // An id that is written otherwise is no way around it.
    let text = adas.to_string();
    let written = format!("/jobs/%{:02x}{}", text.as_bytes()[0], &text[1..]);
    assert_eq!(call(&server, &bob, Method::GET, &written, "").await.problem().0, 400);
    for path in [format!("/jobs//{text}"), format!("/jobs/{text}/"), format!("//jobs/{text}")] {
        assert_eq!(call(&server, &bob, Method::GET, &path, "").await.problem().0, 404, "{path}");
    }
}

#[tokio::test]
async fn who_did_something_is_in_the_log() {
    let server = with_users().await;
    let ada = token_of(&server, "ada", "user").await;
    let admin = token_of(&server, "root", "admin").await;
    let job = schedule_as(&server, &ada).await;
    let network = json!({ "network": "none" }).to_string();
    call(&server, &ada, Method::PUT, &format!("/jobs/{job}/network"), network).await;
    call(&server, &admin, Method::POST, &format!("/jobs/{job}/cancel"), "").await;
    let log = server.store.events_after(job, 0, 10).await.unwrap();
    let log: Vec<Value> =
        log.iter().map(|sealed| serde_json::from_str(&sealed.line).unwrap()).collect();
    assert_eq!(log[0]["spec"]["owner"], "ada");
    assert_eq!((&log[1]["type"], &log[1]["by"]), (&json!("network.changed"), &json!("ada")));
    assert_eq!((&log[2]["type"], &log[2]["by"]), (&json!("cancel.requested"), &json!("root")));
}

#[tokio::test]
async fn memories_and_news_are_ones_own() {
    let server = with_users().await;
    let ada = token_of(&server, "ada", "user").await;
    let bob = token_of(&server, "bob", "user").await;
    let news = request(Method::GET, "/changes").header("authorization", format!("Bearer {ada}"));
    let news = server.router.clone().oneshot(news.body(Body::empty()).unwrap()).await.unwrap();
    let mut news = news.into_body().into_data_stream();
    let mut next = async || {
        let piece = tokio::time::timeout(Duration::from_secs(20), news.next()).await;
        String::from_utf8(piece.unwrap().unwrap().unwrap().to_vec()).unwrap()
    };
    assert_eq!(next().await, "data: {\"jobs\":[]}\n\n");
    let bobs = schedule_as(&server, &bob).await;
    let adas = schedule_as(&server, &ada).await;
    let heard = next().await;
    assert!(heard.contains(&adas.to_string()) && !heard.contains(&bobs.to_string()), "{heard}");

    let note = json!({ "project": "shop", "text": "It is Ada's." }).to_string();
    let kept = call(&server, &ada, Method::POST, "/memories", note.clone()).await;
    assert_eq!(kept.status, StatusCode::CREATED);
    assert_eq!(kept.json()["owner"], "ada");
    let path = format!("/memories/{}", kept.json()["id"]);
    let found = async |token: &str| {
        let list = call(&server, token, Method::GET, "/memories?project=shop", "").await.json();
        list["memories"].as_array().unwrap().len()
    };
    assert_eq!((found(&ada).await, found(&bob).await, found(OPERATOR).await), (1, 0, 1));
    let text = json!({ "text": "It is Bob's." }).to_string();
    let changed = call(&server, &bob, Method::PUT, &path, text).await;
    assert_eq!(changed.problem(), (404, "memory_not_found".into()));
    let gone = call(&server, &bob, Method::DELETE, &path, "").await;
    assert_eq!(gone.problem(), (404, "memory_not_found".into()));
    // The same text in a project of the same name is another memory.
    assert_eq!(
        call(&server, &bob, Method::POST, "/memories", note).await.status,
        StatusCode::CREATED
    );
    assert_eq!(call(&server, &ada, Method::DELETE, &path, "").await.status, StatusCode::NO_CONTENT);
    assert_eq!((found(&ada).await, found(&bob).await), (0, 1));
}

/// Every operation of the document, called by everybody there can be.
#[tokio::test]
async fn each_role_may_do_what_is_its_own_and_nothing_else() {
    let server = with_users().await;
    let owner = token_of(&server, "ada", "user").await;
    let viewer = token_of(&server, "ada", "viewer").await;
    let other = token_of(&server, "bob", "user").await;
    let admin = token_of(&server, "root", "admin").await;
    let job = schedule_as(&server, &owner).await;
    let mut seen = 0;
    for (method, template) in document::operations() {
        // These go on until their job ends or for ever; other tests are about them.
        if template == "/changes" {
            continue;
        }
        seen += 1;
        let path = template.replace("{id}", &job.to_string());
        let path = path.replace("{n}", "1").replace("{k}", "1").replace("{path}", "a.txt");
        let path = match template.as_str() {
            "/jobs/{id}/events" => format!("{path}?follow=0"),
            "/status" => format!("{path}?task_id={job}"),
            _ => path,
        };
        let status = async |token: &str| {
            let answer = call(&server, token, method.clone(), &path, "").await;
            answer.status.as_u16()
        };
        let is_public = ["/healthz", "/readyz", "/docs", "/openapi.json"].contains(&&*template)
            || (template == "/session" && method != Method::GET);
        let is_admins = template.starts_with("/tokens") || template == "/audit";
        let is_jobs = template.contains("{id}") || template == "/status";
        // Whoever may see what listens in a sandbox may call it too.
        let changes = method != Method::GET || template.ends_with("/ports");
        let at = format!("{method} {template}");

        let nobody = server
            .send(request(method.clone(), &path).body(Body::empty()).unwrap())
            .await
            .status
            .as_u16();
        if is_public {
            assert_ne!(nobody, 401, "{at}");
            continue;
        }
        assert_eq!(nobody, 401, "{at} by nobody");
        let as_viewer = status(&viewer).await;
        assert_eq!(as_viewer == 403, is_admins || changes, "{at} by a viewer: {as_viewer}");
        let as_other = status(&other).await;
        if is_admins {
            assert_eq!(as_other, 403, "{at} by a user");
        } else {
            assert!(![401, 403].contains(&as_other), "{at} by a user: {as_other}");
            if is_jobs {
                assert_eq!(as_other, 404, "{at} by another user");
            }
        }
        let as_owner = status(&owner).await;
        assert_eq!(as_owner == 403, is_admins, "{at} by its owner: {as_owner}");
        for all in [admin.as_str(), OPERATOR] {
            let as_admin = status(all).await;
            assert!(![401, 403].contains(&as_admin), "{at} by an administrator: {as_admin}");
        }
    }
    assert!(seen > 30, "{seen}");
}

#[tokio::test]
async fn without_a_token_the_local_user_is_asked_for_nothing_and_may_be_somebody_else() {
    let server = Harness::new().await;
    let mine = server.schedule(HELLO).await;
    assert_eq!(server.store.owner(mine).await.unwrap(), None);
    assert_eq!(server.get("/session").await.json(), json!({ "user": null, "role": "admin" }));
    let made = server.post("/tokens", json!({ "user": "ada" }).to_string()).await.json();
    let ada = made["token"].as_str().unwrap();
    let adas = schedule_as(&server, ada).await;
    assert_eq!(listed(&server, ada).await, [adas.to_string()]);
    assert_eq!(server.get("/jobs").await.json()["jobs"].as_array().unwrap().len(), 2);
    // A client's token for another server is not looked at, as before; one of ours that is revoked is.
    assert_eq!(call(&server, "whatever", Method::GET, "/jobs", "").await.status, StatusCode::OK);
    let path = format!("/tokens/{}", made["id"].as_str().unwrap());
    call(&server, "whatever", Method::DELETE, &path, "").await;
    assert_eq!(call(&server, ada, Method::GET, "/jobs", "").await.problem().0, 401);
}
