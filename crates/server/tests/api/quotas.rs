//! What one user may use: the refusal says what to do, and nothing is scheduled by it.

use axum::http::{Method, StatusCode};
use bellglass_protocol::event::EndStatus;
use bellglass_protocol::quantity::Seconds;
use bellglass_server::{Quotas, ServerSettings};
use bellglass_store::Store as _;

use crate::access::{OPERATOR, call, schedule_as, token_of, with_settings};
use crate::harness::{Answer, HELLO, Harness};

fn unlimited() -> Quotas {
    let running_time_per_day = Some(Seconds::whole(86_400));
    Quotas { jobs_at_once: 0, jobs_per_day: 0, requests_per_second: 0, running_time_per_day }
}

async fn with(quotas: Quotas) -> Harness {
    with_settings(ServerSettings { quotas, ..ServerSettings::default() }).await
}

async fn refused(server: &Harness, token: &str) -> Answer {
    let before = server.job_count().await;
    let answer = call(server, token, Method::POST, "/schedule", HELLO).await;
    assert_eq!(answer.problem(), (429, "quota_exceeded".into()), "{}", answer.text());
    assert_eq!(server.job_count().await, before, "nothing is scheduled");
    let hint = answer.json()["hint"].as_str().unwrap().to_owned();
    assert!(hint.contains("Nothing was scheduled"), "{hint}");
    answer
}

fn retry_after(answer: &Answer) -> u64 {
    answer.header("retry-after").parse().unwrap()
}

#[tokio::test]
async fn jobs_at_once() {
    let server = with(Quotas { jobs_at_once: 2, ..unlimited() }).await;
    let ada = token_of(&server, "ada", "user").await;
    // Another token of the same user is the same user.
    let again = token_of(&server, "ada", "user").await;
    let bob = token_of(&server, "bob", "user").await;
    schedule_as(&server, &ada).await;
    schedule_as(&server, &again).await;
    let answer = refused(&server, &ada).await;
    assert!(answer.json()["detail"].as_str().unwrap().contains("2 jobs"), "{}", answer.text());
    assert!(retry_after(&answer) > 0);
    refused(&server, &again).await;
    schedule_as(&server, &bob).await;
    for _ in 0..3 {
        schedule_as(&server, OPERATOR).await;
    }
    let claim = server.claim().await;
    refused(&server, &ada).await;
    server.finish(claim, EndStatus::Completed).await;
    schedule_as(&server, &ada).await;
    refused(&server, &ada).await;
}

#[tokio::test]
async fn requests_that_come_together_do_not_share_one_place() {
    let server = with(Quotas { jobs_at_once: 3, ..unlimited() }).await;
    let ada = token_of(&server, "ada", "user").await;
    let together = (0..12).map(|_| call(&server, &ada, Method::POST, "/schedule", HELLO));
    let answers = futures::future::join_all(together).await;
    let accepted = answers.iter().filter(|answer| answer.status == StatusCode::ACCEPTED).count();
    assert_eq!((accepted, server.job_count().await), (3, 3));
}

#[tokio::test]
async fn jobs_in_a_day_count_although_they_have_ended() {
    let server = with(Quotas { jobs_per_day: 1, ..unlimited() }).await;
    let ada = token_of(&server, "ada", "user").await;
    schedule_as(&server, &ada).await;
    let claim = server.claim().await;
    server.finish(claim, EndStatus::Completed).await;
    let wait = retry_after(&refused(&server, &ada).await);
    assert!((1..=86_400).contains(&wait), "{wait}");
    schedule_as(&server, &token_of(&server, "root", "admin").await).await;
}

#[tokio::test]
async fn running_time_in_a_day() {
    let running_time_per_day = Some(Seconds::parse("1ms").unwrap());
    let server = with(Quotas { running_time_per_day, ..unlimited() }).await;
    let ada = token_of(&server, "ada", "user").await;
    schedule_as(&server, &ada).await;
    let (job, _) = server.claim().await;
    // Time goes by while the job runs; how much is asked of the server itself.
    let used = async || call(&server, &ada, Method::POST, "/schedule", HELLO).await;
    let mut answer = used().await;
    while answer.status == StatusCode::ACCEPTED {
        answer = used().await;
    }
    assert_eq!(answer.problem(), (429, "quota_exceeded".into()), "{job}");
    assert!(answer.json()["detail"].as_str().unwrap().contains("have run"), "{}", answer.text());
}

#[tokio::test]
async fn jobs_share_what_is_left_of_a_days_time() {
    let running_time_per_day = Some(Seconds::whole(60));
    let server = with(Quotas { running_time_per_day, ..unlimited() }).await;
    let ada = token_of(&server, "ada", "user").await;
    let time = async |token: &str| {
        let job = schedule_as(&server, token).await;
        server.store.job(job).await.unwrap().spec.limits.time.get()
    };
    assert_eq!([time(&ada).await, time(&ada).await, time(&ada).await], [60.0, 30.0, 20.0]);
    assert_eq!(time(OPERATOR).await, 3600.0);
    let short = r#"{"steps":[{"tool":"shell","command":"true"}],"limits":{"time":2}}"#;
    let short = call(&server, &ada, Method::POST, "/schedule", short).await.json();
    let short = short["job_id"].as_str().unwrap().parse().unwrap();
    assert_eq!(server.store.job(short).await.unwrap().spec.limits.time.get(), 2.0);
}

#[tokio::test]
async fn requests_in_a_second() {
    let server = with(Quotas { requests_per_second: 5, ..unlimited() }).await;
    let ada = token_of(&server, "ada", "user").await;
    let bob = token_of(&server, "bob", "user").await;
    let together = (0..60).map(|_| call(&server, &ada, Method::GET, "/jobs", ""));
    let answers = futures::future::join_all(together).await;
    let refused = answers.iter().find(|answer| answer.status != StatusCode::OK).expect("too many");
    assert_eq!(refused.problem(), (429, "too_many_requests".into()));
    assert_eq!(refused.header("retry-after"), "1");
    assert!(answers.iter().filter(|answer| answer.status == StatusCode::OK).count() >= 10);
    assert_eq!(call(&server, &bob, Method::GET, "/jobs", "").await.status, StatusCode::OK);
    let unlimited = (0..60).map(|_| call(&server, OPERATOR, Method::GET, "/jobs", ""));
    let answers = futures::future::join_all(unlimited).await;
    assert!(answers.iter().all(|answer| answer.status == StatusCode::OK));
}
