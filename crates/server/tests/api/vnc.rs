//! Ports of desktops: what a server that starts again makes of those that it gave, and whose password opens
//! which.

use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

use bellglass_protocol::id::JobId;
use bellglass_server::{Secret, ServerSettings, VncSettings};
use bellglass_store::Store as _;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::access::{OPERATOR, token_of, with_settings};
use crate::connection::{Listening, listen};
use crate::harness::Harness;

/// A server that is about to start, with room for what it has written down.
async fn with_ports(folder: &tempfile::TempDir, ports: RangeInclusive<u16>) -> Harness {
    let password = Some(Secret::new("sesame"));
    let vnc = VncSettings { ports, password, record: folder.path().join("vnc-ports.json") };
    with_settings(ServerSettings { vnc: Some(vnc), ..ServerSettings::default() }).await
}

async fn schedule_for(server: &Harness, owner: Option<&str>) -> JobId {
    let spec = json!({
        "steps": [{ "tool": "shell", "command": "true" }], "on_error": "continue", "priority": 0, "image": "base", "limits": {},
        "network": "none", "isolation": "namespace", "owner": owner,
    });
    server.store.schedule(serde_json::from_value(spec).unwrap()).await.unwrap()
}

/// Starts a server that gave these ports before it was stopped.
async fn start_again(server: &Harness, given: &[(JobId, u16)]) -> Listening {
    let ports: serde_json::Map<String, Value> =
        given.iter().map(|(job, port)| (job.to_string(), (*port).into())).collect();
    let record = &server.settings.vnc.as_ref().unwrap().record;
    std::fs::write(record, json!({ "key": "key", "ports": ports }).to_string()).unwrap();
    listen(server).await
}

async fn status(server: &Listening, token: &str, job: JobId) -> Value {
    let authorization = format!("Authorization: Bearer {token}\r\n");
    let answer = server.all(&format!("/status/{job}"), &authorization).await;
    let (_, body) = answer.split_once("\r\n\r\n").expect("headers and a body");
    serde_json::from_str(body).unwrap_or_else(|_| panic!("{answer}"))
}

#[tokio::test]
async fn a_port_that_is_somebody_elses_by_now_is_not_announced() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = taken.local_addr().unwrap().port();

    let server = with_ports(&folder, port..=port).await;
    let job = schedule_for(&server, None).await;
    let started = start_again(&server, &[(job, port)]).await;
    let without = status(&started, OPERATOR, job).await;
    assert_eq!((&without["vnc_port"], &without["vnc_password"]), (&Value::Null, &Value::Null));

    let server = with_ports(&folder, port..=port.saturating_add(100)).await;
    let job = schedule_for(&server, None).await;
    let started = start_again(&server, &[(job, port)]).await;
    let with = status(&started, OPERATOR, job).await;
    let other = u16::try_from(with["vnc_port"].as_u64().expect("another port")).unwrap();
    assert_ne!(other, port);
    TcpStream::connect((Ipv4Addr::LOCALHOST, other)).await.expect("it is ours");
    let kept = std::fs::read(folder.path().join("vnc-ports.json")).unwrap();
    let kept: Value = serde_json::from_slice(&kept).unwrap();
    assert_eq!(kept["ports"], json!({ job.to_string(): other }));
}

#[tokio::test]
async fn the_operators_password_opens_no_users_desktop() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_ports(&folder, 20_000..=60_000).await;
    let ada = token_of(&server, "ada", "user").await;
    let mut given = Vec::new();
    let mut held = Vec::new();
    for owner in [None, None, Some("ada"), Some("ada"), Some("bob")] {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        given.push((schedule_for(&server, owner).await, free.local_addr().unwrap().port()));
        held.push(free);
    }
    drop(held);
    let started = start_again(&server, &given).await;
    let mut passwords = Vec::new();
    for (job, _) in &given {
        let shown = status(&started, OPERATOR, *job).await;
        passwords.push(shown["vnc_password"].as_str().expect("it has one").to_owned());
    }
    assert_eq!(passwords[..2], ["sesame", "sesame"]);
    let [one, other, bobs] = &passwords[2..] else { panic!("{passwords:?}") };
    assert!(one != other && other != bobs && one != bobs, "{passwords:?}");
    assert!(!passwords[2..].contains(&"sesame".into()), "{passwords:?}");
    // Ada is shown her own, by which she knows no other.
    let hers = status(&started, &ada, given[2].0).await;
    assert_eq!(hers["vnc_password"], one.as_str());
}
