//! Tokens, owners, what users have used, and keys of share links.

use std::sync::Arc;
use std::time::Duration;

use bellglass_protocol::event::EndStatus;
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::JobSpec;
use bellglass_store::access::{Role, ShareKey, Token, TokenHash, Usage};
use bellglass_store::{JobFilter, MemoryQuery, NewMemory, Store, StoreError, Whose};
use jiff::{SignedDuration, Timestamp};

use crate::support::{finished, steps_job, worker};

fn moment(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn token(id: &str, parent: Option<&str>, expires_at: Option<Timestamp>) -> Token {
    Token {
        id: id.into(),
        parent: parent.map(Into::into),
        user: "ada".into(),
        role: Role::User,
        name: "laptop".into(),
        created_at: moment(0),
        expires_at,
    }
}

fn owned(owner: &str) -> JobSpec {
    JobSpec { owner: Some(owner.into()), ..steps_job("true") }
}

pub(crate) async fn tokens_hold_until_they_run_out_or_are_revoked(store: Arc<dyn Store>) {
    let hash = |n| TokenHash([n; 32]);
    let forever = token("a", None, None);
    let brief = token("b", None, Some(moment(10)));
    store.add_token(forever.clone(), hash(1), "ada").await.unwrap();
    store.add_token(brief.clone(), hash(2), "ada").await.unwrap();
    let find = async |n, now| store.find_token(&hash(n), moment(now)).await.unwrap();
    assert_eq!(find(1, 1_000_000).await, Some(forever.clone()));
    assert_eq!(find(2, 9).await, Some(brief.clone()));
    assert_eq!(find(2, 10).await, None, "its time is over");
    assert_eq!(find(3, 0).await, None);
    assert_eq!(store.tokens().await.unwrap(), [forever, brief]);

    // Sessions go with the token that they were begun with, and are not listed.
    let day = Some(moment(86_400));
    store.add_token(token("s", Some("a"), day), hash(4), "ada").await.unwrap();
    assert!(find(4, 0).await.is_some());
    assert_eq!(store.tokens().await.unwrap().len(), 2);
    assert!(store.revoke_token("a", "ada").await.unwrap());
    assert!(!store.revoke_token("a", "ada").await.unwrap(), "it is gone already");
    assert_eq!((find(1, 0).await, find(4, 0).await), (None, None));
    // Whoever logs in while the token is revoked gets nothing.
    store.add_token(token("t", Some("a"), day), hash(5), "ada").await.unwrap();
    assert_eq!(find(5, 0).await, None);
}

pub(crate) async fn jobs_are_listed_by_whose_they_are(store: Arc<dyn Store>) {
    let adas = store.schedule(owned("ada")).await.unwrap();
    let bobs = store.schedule(owned("bob")).await.unwrap();
    let nobodys = store.schedule(steps_job("true")).await.unwrap();
    assert_eq!(store.owner(adas).await.unwrap().as_deref(), Some("ada"));
    assert_eq!(store.owner(nobodys).await.unwrap(), None);
    let unknown = store.owner(JobId::generate()).await;
    assert!(matches!(unknown, Err(StoreError::NotFound(_))), "{unknown:?}");
    // Other hands do not make it another's.
    store.claim_next_job(&worker("w"), Duration::from_secs(60)).await.unwrap().unwrap();
    assert_eq!(store.owner(adas).await.unwrap().as_deref(), Some("ada"));

    let listed = async |owner: Option<&str>| {
        let owner = owner.map(Into::into);
        let filter = JobFilter { owner, limit: 10, ..JobFilter::default() };
        let page = store.jobs(&filter).await.unwrap();
        page.jobs.into_iter().map(|job| (job.id, job.owner)).collect::<Vec<_>>()
    };
    assert_eq!(listed(Some("bob")).await, [(bobs, Some("bob".into()))]);
    assert_eq!(listed(Some("")).await, []);
    assert_eq!(listed(None).await.len(), 3);
}

pub(crate) async fn what_a_user_has_used_is_counted(store: Arc<dyn Store>) {
    let (hour, now) = (SignedDuration::from_hours(1), Timestamp::now());
    let usage = async |owner, since, now| store.usage(owner, since, now).await.unwrap();
    assert_eq!(usage("ada", now - hour, now).await, Usage::default());
    for owner in ["ada", "ada", "bob"] {
        store.schedule(owned(owner)).await.unwrap();
    }
    let used = usage("ada", now - hour, Timestamp::now()).await;
    assert_eq!((used.unfinished, used.scheduled, used.running_ms), (2, 2, 0));

    let claimed = store.claim_next_job(&worker("w"), Duration::from_secs(60)).await;
    let claimed = claimed.unwrap().unwrap();
    let started = claimed.view.started_at.unwrap();
    // It runs, so its time is counted up to now, and only the part of it that was asked for.
    let used = usage("ada", started - hour, started + hour).await;
    assert_eq!(used.running_ms, 3_600_000);
    let used = usage("ada", started + hour / 2, started + hour).await;
    assert_eq!((used.unfinished, used.scheduled, used.running_ms), (2, 0, 1_800_000));

    let end = vec![finished(EndStatus::Completed)];
    store.append(claimed.view.job_id, claimed.generation, end).await.unwrap();
    let used = usage("ada", started - hour, started + hour).await;
    assert_eq!((used.unfinished, used.scheduled), (1, 2));
    assert!(used.running_ms < 3_600_000, "{used:?}");
    let later = usage("ada", started + hour, started + hour * 2).await;
    assert_eq!((later.unfinished, later.scheduled, later.running_ms), (1, 0, 0));
}

pub(crate) async fn a_share_key_is_kept_until_it_is_dropped(store: Arc<dyn Store>) {
    let job = store.schedule(owned("ada")).await.unwrap();
    let (one, other) = (ShareKey([1; 32]), ShareKey([2; 32]));
    assert_eq!(store.share_key(job).await.unwrap(), None);
    assert_eq!(store.keep_share_key(job, one.clone(), "ada").await.unwrap(), one);
    assert_eq!(
        store.keep_share_key(job, other.clone(), "ada").await.unwrap(),
        one,
        "the first stays"
    );
    store.drop_share_key(job, "ada").await.unwrap();
    assert_eq!(store.share_key(job).await.unwrap(), None);
    assert_eq!(store.keep_share_key(job, other.clone(), "ada").await.unwrap(), other);
    let unknown = store.keep_share_key(JobId::generate(), one, "ada").await;
    assert!(matches!(unknown, Err(StoreError::NotFound(_))), "{unknown:?}");
}

pub(crate) async fn projects_of_one_name_are_told_apart_by_whose_they_are(store: Arc<dyn Store>) {
    let text = "Tests run with make.";
    for owner in [None, Some("ada"), Some("bob")] {
        let (owner, project) = (owner.map(Into::into), "shop".to_owned());
        let new = NewMemory { owner, project, text: text.into(), job: None, vector: None };
        assert!(store.add_memory(new).await.unwrap().is_some());
    }
    for words in [None, Some("tests".to_owned())] {
        let owners = async |whose: Whose, project: Option<&str>| {
            let (project, words) = (project.map(Into::into), words.clone());
            let query = MemoryQuery { whose, project, words, vector: None, limit: 10 };
            let found = store.memories(&query).await.unwrap();
            assert!(found.iter().all(|memory| memory.project == "shop"));
            let mut owners: Vec<_> = found.into_iter().map(|memory| memory.owner).collect();
            owners.sort();
            owners
        };
        let ada = Some("ada".to_owned());
        assert_eq!(owners(Whose::Of(ada.clone()), Some("shop")).await, std::slice::from_ref(&ada));
        assert_eq!(owners(Whose::Of(ada.clone()), None).await, std::slice::from_ref(&ada));
        assert_eq!(owners(Whose::Of(None), None).await, [None]);
        assert_eq!(owners(Whose::Of(Some("a".into())), None).await, []);
        assert_eq!(owners(Whose::Anybodys, Some("shop")).await.len(), 3);
        assert_eq!(owners(Whose::Anybodys, Some("ada/shop")).await, []);
    }
    let all = MemoryQuery { limit: 1, ..MemoryQuery::default() };
    let newest = store.memories(&all).await.unwrap().remove(0);
    assert_eq!(store.memory(newest.id).await.unwrap(), Some(newest));
    assert_eq!(store.memory(-1).await.unwrap(), None);
}
