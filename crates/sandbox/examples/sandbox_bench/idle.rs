//! What a sandbox costs that only exists.

use std::fs;
use std::path::{Path, PathBuf};

use futures::StreamExt as _;
use serde_json::{Value, json};

use crate::subject::{Failure, Ours};

/// Starts so many, looks at the memory, and ends them. All figures are bytes for one sandbox.
pub(crate) async fn measure(ours: &Ours, count: usize) -> Result<Value, Failure> {
    let before = available_memory()?;
    let started = futures::stream::iter(0..count).map(|_| ours.start()).buffer_unordered(8);
    let started: Vec<_> = started.collect().await;
    let errors: Vec<String> =
        started.iter().filter_map(|start| start.as_ref().err()).map(ToString::to_string).collect();
    let after = available_memory()?;
    let guests = guests()?;
    let shares: Vec<u64> = guests.iter().filter_map(|pid| proportional_share(*pid)).collect();
    let charged: Vec<u64> = memory_groups(ours)?.iter().filter_map(|group| usage(group)).collect();
    for sandbox in started.iter().flatten() {
        sandbox.destroy().await?;
    }
    let running = count - errors.len();
    Ok(json!({
        "count": count,
        "running": running,
        "errors": errors,
        // Processes, files, page tables and kernel structures, as the kernel charges them.
        "charged": average(&charged),
        // What the host has less: our side of the wire too, but whatever else happened meanwhile.
        "host_memory": before.saturating_sub(after) / running.max(1) as u64,
        "guest_memory": average(&shares),
    }))
}

fn average(bytes: &[u64]) -> Option<u64> {
    (!bytes.is_empty()).then(|| bytes.iter().sum::<u64>() / bytes.len() as u64)
}

/// The control groups of all our sandboxes, by their records.
fn memory_groups(ours: &Ours) -> Result<Vec<PathBuf>, Failure> {
    let records =
        fs::read_dir(&ours.folder)?.flatten().map(|each| each.path().join("sandbox.json"));
    let groups = records.filter_map(|record| {
        let record: Value = serde_json::from_slice(&fs::read(record).ok()?).ok()?;
        serde_json::from_value::<Vec<PathBuf>>(record["groups"].clone()).ok()
    });
    Ok(groups.flatten().collect())
}

/// What is charged to a group, if it counts memory.
fn usage(group: &Path) -> Option<u64> {
    let files = ["memory.usage_in_bytes", "memory.current"];
    let text = files.iter().find_map(|file| fs::read_to_string(group.join(file)).ok())?;
    text.trim().parse().ok()
}

fn available_memory() -> Result<u64, Failure> {
    let text = fs::read_to_string("/proc/meminfo")?;
    kilobytes(&text, "MemAvailable:").ok_or_else(|| "/proc/meminfo has no MemAvailable".into())
}

/// The guests that this process started.
fn guests() -> Result<Vec<u32>, Failure> {
    let own = std::process::id().to_string();
    let is_ours = |folder: &Path| {
        let stat = fs::read_to_string(folder.join("stat")).unwrap_or_default();
        let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.nth(1) == Some(&own)
    };
    let entries = fs::read_dir("/proc")?.flatten().map(|entry| entry.path());
    let pid = |folder: PathBuf| folder.file_name()?.to_str()?.parse().ok();
    Ok(entries.filter(|folder| is_ours(folder)).filter_map(pid).collect())
}

/// Memory of a process, with what it shares divided among those who share it.
fn proportional_share(pid: u32) -> Option<u64> {
    kilobytes(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?, "Pss:")
}

pub(crate) fn kilobytes(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}
