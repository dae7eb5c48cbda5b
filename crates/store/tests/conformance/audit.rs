//! The audit log: what was done to the server as a whole stands in one chain, with who did it.

use std::sync::Arc;

use bellglass_protocol::audit::{AuditEntry, AuditVerifier};
use bellglass_store::access::{Role, ShareKey, Token, TokenHash};
use bellglass_store::{NewMemory, Store};
use jiff::Timestamp;

use crate::support::steps_job;

fn token(id: &str, parent: Option<&str>) -> Token {
    Token {
        id: id.into(),
        parent: parent.map(str::to_owned),
        user: "anna".into(),
        role: Role::User,
        name: "laptop".into(),
        created_at: Timestamp::UNIX_EPOCH,
        expires_at: parent.map(|_| Timestamp::MAX),
    }
}

/// The whole audit log, proven.
async fn audit(store: &dyn Store) -> Vec<AuditEntry> {
    let end = store.end_of_audit().await.unwrap();
    let (mut verifier, mut entries, mut after) = (AuditVerifier::default(), Vec::new(), 0);
    loop {
        // Small pages, so that there are several.
        let page = store.audit_after(after, 2).await.unwrap();
        if page.is_empty() {
            break;
        }
        after += page.len() as u64;
        for line in page {
            entries.push(verifier.line(&line).unwrap());
        }
    }
    assert_eq!(verifier.finish(), (end.seq, end.hash));
    entries
}

pub(crate) async fn changes_of_the_server_are_in_one_chain(store: Arc<dyn Store>) {
    let store = &*store;
    assert_eq!(audit(store).await, []);
    store.add_token(token("a", None), TokenHash([1; 32]), "root").await.unwrap();
    store.add_token(token("s", Some("a")), TokenHash([2; 32]), "anna").await.unwrap();
    // A session of a token that is gone is not begun, so nothing is said of it.
    store.add_token(token("t", Some("x")), TokenHash([3; 32]), "anna").await.unwrap();
    assert!(store.revoke_token("a", "root").await.unwrap());
    assert!(!store.revoke_token("a", "root").await.unwrap());
    let job = store.schedule(steps_job("true")).await.unwrap();
    store.keep_share_key(job, ShareKey([4; 32]), "anna").await.unwrap();
    store.keep_share_key(job, ShareKey([5; 32]), "bob").await.unwrap();
    store.drop_share_key(job, "anna").await.unwrap();
    store.drop_share_key(job, "anna").await.unwrap();
    let new = |job| NewMemory {
        owner: Some("anna".into()),
        project: "shop".into(),
        text: format!("left by {job:?}"),
        job,
        vector: None,
    };
    let memory = store.add_memory(new(None)).await.unwrap().unwrap().id;
    assert!(store.add_memory(new(Some(job))).await.unwrap().is_some());
    store.edit_memory(memory, "other".into(), None, "anna").await.unwrap().unwrap();
    store.delete_memory(memory, "bob").await.unwrap().unwrap();
    assert!(store.delete_memory(memory, "bob").await.unwrap().is_none());
    store.request_cancel(job, "anna").await.unwrap();
    let log = store.end_of_log(job).await.unwrap();
    assert!(store.forget_job(job).await.unwrap());
    assert!(!store.forget_job(job).await.unwrap());

    let entries = audit(store).await;
    let said: Vec<String> = entries
        .iter()
        .map(|entry| {
            let deed = serde_json::to_value(&entry.deed).unwrap();
            format!("{} {}", entry.by, deed["type"].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        said,
        [
            "root token.created",
            "anna session.begun",
            "root token.revoked",
            "anna link.made",
            "bob link.made",
            "anna links.revoked",
            "anna memory.added",
            "anna memory.edited",
            "bob memory.deleted",
            "retention job.forgotten",
        ]
    );
    let forgotten = serde_json::to_value(&entries.last().unwrap().deed).unwrap();
    assert_eq!(forgotten["events"], log.seq);
    assert_eq!(forgotten["last_hash"], log.hash.as_str());
}
