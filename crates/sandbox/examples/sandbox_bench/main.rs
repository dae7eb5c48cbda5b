//! Drives the sandbox benchmark: reads a plan from standard input, prints what it measured as JSON.
//!
//! Both our sandboxes and the peers' commands are started from this one process, in turn, so that
//! neither pays for another language's way of starting processes. Setting up peers, and judging, is
//! left to `bench/sandbox`.

mod calls;
mod idle;
mod peer;
mod starts;
mod subject;
mod way_out;

use std::io::Read as _;

use serde::Deserialize;
use serde_json::{Value, json};
use subject::Ours;

/// What to measure, and with what. A count of nought leaves its part out.
#[derive(Deserialize)]
struct Plan {
    /// A folder for our sandboxes.
    folder: std::path::PathBuf,
    rootfs: std::path::PathBuf,
    /// Runs of each subject that count, after a few that do not.
    runs: usize,
    /// Other ways to run `echo hi` in the same root file system.
    peers: Vec<peer::Peer>,
    /// How many sandboxes start at the same moment.
    burst: usize,
    /// Sandboxes that are started one after the other, as fast as it goes.
    rate: usize,
    /// Tool calls of each kind.
    calls: usize,
    /// Other ways to run `true` in a sandbox that is there.
    execs: Vec<peer::Peer>,
    /// Sandboxes that only exist.
    idle: usize,
    /// Connections through the proxy.
    connections: usize,
}

#[tokio::main]
async fn main() -> Result<(), subject::Failure> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let plan: Plan = serde_json::from_str(&text)?;
    // A task of its own, as every job of a worker is: what waits outside of the runtime's threads
    // is woken more slowly.
    tokio::spawn(carry_out(plan)).await?
}

async fn carry_out(plan: Plan) -> Result<(), subject::Failure> {
    let mut ours = Ours::new(plan.folder, plan.rootfs)?;

    let mut found = serde_json::Map::new();
    let mut keep = |name: &str, value: Value| {
        eprintln!("sandbox: {name} measured");
        found.insert(name.into(), value);
    };
    if plan.runs > 0 {
        keep("starts", starts::in_turn(&mut ours, &plan.peers, plan.runs).await?);
    }
    if plan.burst > 0 {
        keep("burst", starts::at_once(&ours, &plan.peers, plan.burst).await?);
    }
    if plan.rate > 0 {
        keep("starts_per_second", json!(starts::rate(&ours, plan.rate).await?));
    }
    if plan.calls > 0 {
        keep("calls", calls::measure(&ours, &plan.execs, plan.calls).await?);
    }
    if plan.connections > 0 {
        keep("egress", way_out::measure(&ours, plan.connections).await?);
    }
    if plan.idle > 0 {
        keep("idle", idle::measure(&ours, plan.idle).await?);
    }
    println!("{}", Value::Object(found));
    Ok(())
}
