//! Drives the benchmark of the tools: reads a plan from standard input, prints what it measured as JSON.
//!
//! Our tools are used as the worker uses them: a call over the wire, from the request to its result on
//! this side. The peers take their turns in between. Setting them up, and judging, is left to
//! `bench/tools`.

mod desktops;
mod kernels;
mod peer;
mod programs;
mod screen;
mod subject;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use subject::{Failure, Ours};

/// What to measure, and with what.
#[derive(Deserialize)]
struct Plan {
    /// A folder for our sandboxes.
    folder: PathBuf,
    rootfs: PathBuf,
    /// Rounds of what takes moments, and of what starts something.
    runs: usize,
    starts: usize,
    /// Texts that are typed and read back.
    texts: usize,
    /// A text of a hundred characters, of which the keyboard has only some, and one that it has.
    any_text: String,
    plain_text: String,
    /// What is searched for in `tree`, a folder of the image.
    pattern: String,
    tree: String,
    /// A program for kernels in the sandbox that speaks as `peer::Speaker` says: its source.
    kernel_client: String,
    /// Where our first picture is put, for the peers' screen to show the same.
    picture: PathBuf,
    /// Run when that picture is there.
    show_picture: Vec<String>,
    /// Others by what they do: command lines.
    commands: BTreeMap<String, Vec<peer::Command>>,
    /// Others that stay: command lines of programs that speak.
    speakers: BTreeMap<String, Vec<peer::Command>>,
}

/// Milliseconds of each run, by what was done and by whom.
#[derive(Default)]
struct Times(BTreeMap<String, BTreeMap<String, Vec<f64>>>);

impl Times {
    fn add(&mut self, what: &str, who: &str, time: Duration) {
        self.add_ms(what, who, time.as_secs_f64() * 1000.0);
    }

    fn add_ms(&mut self, what: &str, who: &str, ms: f64) {
        self.0.entry(what.into()).or_default().entry(who.into()).or_default().push(ms);
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let plan: Plan = serde_json::from_str(&text)?;
    let ours = Ours::new(plan.folder.clone(), plan.rootfs.clone())?;
    let mut times = Times::default();
    let mut found = serde_json::Map::new();
    let said = |what: &str| eprintln!("tools: {what} measured");

    found.insert("texts".into(), screen::measure(&ours, &plan, &mut times).await?);
    said("screen");
    programs::measure(&ours, &plan, &mut times).await?;
    said("shell and search");
    kernels::measure(&ours, &plan, &mut times).await?;
    said("kernels");
    desktops::measure(&ours, &plan, &mut times).await?;
    said("desktops");
    found.insert("times".into(), serde_json::to_value(times.0)?);
    println!("{}", Value::Object(found));
    Ok(())
}
