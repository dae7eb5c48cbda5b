//! How sandboxes begin and end, and that nothing of them stays.

use std::collections::HashSet;
use std::time::Duration;

use bellglass_protocol::id::CallId;
use bellglass_sandbox::{Sandbox, SandboxOrder};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::fixture::{Fixture, PATIENCE, assert_no_trace_of, call, processes_of, shell};

pub(crate) async fn a_stopped_sandbox_is_gone(fixture: &Fixture) {
    let order = fixture.order();
    let sandbox = fixture.start_with(&order).await;
    let busy = "setsid sh -c 'while :; do :; done' >/dev/null 2>&1 & echo on";
    assert_eq!(shell(&sandbox, 1, busy).await.stdout, "on\n");
    assert!(!processes_of(order.name.as_str()).is_empty());
    sandbox.destroy().await.unwrap();
    assert_no_trace_of(&order.name);
    sandbox.destroy().await.expect("stopping twice is fine");
}

pub(crate) async fn a_failed_start_leaves_nothing(fixture: &Fixture) {
    let rootfs = fixture.order().rootfs.join("etc");
    let order = SandboxOrder { rootfs, ..fixture.order() };
    let failed = Sandbox::start(&*fixture.backend, &order, "base").await.err();
    assert!(failed.is_some(), "that folder is no image");
    assert_no_trace_of(&order.name);
    assert!(fixture.backend.find(&order.name).await.unwrap().is_none());
}

pub(crate) async fn a_sandbox_outlives_who_started_it(fixture: &Fixture) {
    let order = fixture.order();
    let sandbox = fixture.start_with(&order).await;
    let (guest, id) = (sandbox.guest().clone(), CallId::of_step(1));
    let tool = json!({ "tool": "shell", "command":
        "echo once >> count; until [ -e go ]; do sleep 0.02; done; cat count" });
    let running = tokio::spawn({
        let tool = serde_json::from_value(tool.clone()).unwrap();
        async move { guest.call(&id, &tool, PATIENCE, 0, &mut Nowhere).await }
    });
    // Once the file is there the call runs, and whoever drives it may die.
    while shell(&sandbox, 2, "until [ -e count ]; do sleep 0.02; done").await.result.exit_code
        != Some(0)
    {}
    running.abort();
    drop(sandbox);

    let successor = fixture.successor();
    let found = Sandbox::find(&*successor, &order.name, "base").await.unwrap();
    let found = found.expect("it runs on");
    assert_eq!(found.report().backend, fixture.backend.name());
    assert_eq!(shell(&found, 3, "touch go").await.result.exit_code, Some(0));
    assert_eq!(call(&found, 1, tool).await.stdout, "once\n", "the same call, not another");
    found.destroy().await.unwrap();
    assert_no_trace_of(&order.name);
    assert!(successor.find(&order.name).await.unwrap().is_none());
}

/// Takes output of a call whose output is of no interest.
struct Nowhere;

#[async_trait::async_trait]
impl bellglass_sandbox::client::OutputSink for Nowhere {
    async fn output(
        &mut self,
        _: bellglass_protocol::step::OutputStream,
        _: bytes::Bytes,
    ) -> std::io::Result<()> {
        Ok(())
    }
}

pub(crate) async fn a_killed_sandbox_is_noticed_and_removed(fixture: &Fixture) {
    let order = fixture.order();
    let sandbox = fixture.start_with(&order).await;
    // Whichever of its own processes is hit, all end: the last of them here is the most inner one. What
    // waits for a command is none of them.
    let is_own = |pid: &i32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim() != "supervisor"
    };
    let victim = processes_of(order.name.as_str()).into_iter().filter(is_own).max().unwrap();
    kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
    tokio::time::timeout(PATIENCE, sandbox.gone()).await.expect("its end is noticed");
    assert!(fixture.backend.find(&order.name).await.unwrap().is_none());
    sandbox.destroy().await.unwrap();
    assert_no_trace_of(&order.name);
}

pub(crate) async fn a_removed_sandbox_is_gone(fixture: &Fixture) {
    let order = fixture.order();
    drop(fixture.start_with(&order).await);
    let successor = fixture.successor();
    successor.remove(&order.name).await.unwrap();
    assert_no_trace_of(&order.name);
    successor.remove(&order.name).await.expect("what is gone can be removed");
}

pub(crate) async fn a_sweep_removes_all_but_what_is_kept(fixture: &Fixture) {
    let (kept, swept) = (fixture.order(), fixture.order());
    drop((fixture.start_with(&kept).await, fixture.start_with(&swept).await));
    let successor = fixture.successor();
    let keep = HashSet::from([kept.name.clone()]);
    assert_eq!(successor.sweep(&keep).await.unwrap(), 1);
    assert_no_trace_of(&swept.name);
    let found = Sandbox::find(&*successor, &kept.name, "base").await.unwrap().unwrap();
    assert_eq!(shell(&found, 1, "echo alive").await.stdout, "alive\n");
    drop(found);
    assert_eq!(successor.sweep(&HashSet::new()).await.unwrap(), 1);
    assert_no_trace_of(&kept.name);
}

pub(crate) async fn a_sandbox_left_alone_ends_itself(fixture: &Fixture) {
    let orphaned_after = Some(Duration::from_secs(1));
    let order = SandboxOrder { orphaned_after, ..fixture.order() };
    drop(fixture.start_with(&order).await);
    let until_gone = async {
        while !processes_of(order.name.as_str()).is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, until_gone).await.expect("it ends by itself");
    assert_eq!(fixture.successor().sweep(&HashSet::new()).await.unwrap(), 1);
    assert_no_trace_of(&order.name);
}
