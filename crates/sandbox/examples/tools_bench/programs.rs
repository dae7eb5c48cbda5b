//! Commands in a shell, and text that is searched for in files.

use std::collections::BTreeSet;

use serde_json::json;

use crate::peer::{Speaker, figure};
use crate::screen::others;
use crate::subject::{Failure, Hands, OURS, Ours};
use crate::{Plan, Times};

pub(crate) async fn measure(ours: &Ours, plan: &Plan, times: &mut Times) -> Result<(), Failure> {
    let hands = ours.start().await?;
    shell(&hands, plan, times).await?;
    search(&hands, plan, times).await?;
    hands.destroy().await
}

async fn shell(hands: &Hands, plan: &Plan, times: &mut Times) -> Result<(), Failure> {
    let command = || json!({ "tool": "shell", "command": "true" });
    let in_session = || json!({ "tool": "shell", "session": "bench", "command": "true" });
    hands.call(in_session()).await?;
    let speakers = plan.speakers.get("shell").into_iter().flatten();
    let mut speakers = speakers.map(Speaker::start).collect::<Result<Vec<_>, _>>()?;
    for _ in 0..plan.runs {
        times.add("shell", OURS, hands.call(command()).await?.time);
        times.add("session", OURS, hands.call(in_session()).await?.time);
        others(plan, "shell", times)?;
        for speaker in &mut speakers {
            let answer = tokio::task::block_in_place(|| speaker.ask("true"))?;
            times.add_ms("shell", &speaker.name, figure(&answer, "process")?);
            times.add_ms("session", &speaker.name, figure(&answer, "session")?);
        }
    }
    speakers.into_iter().try_for_each(Speaker::end)
}

async fn search(hands: &Hands, plan: &Plan, times: &mut Times) -> Result<(), Failure> {
    let copy = format!("cp -r {} tree", plan.tree);
    hands.call(json!({ "tool": "shell", "command": copy, "timeout": 60 })).await?;
    let call = || json!({ "tool": "search_files", "pattern": plan.pattern, "path": "tree" });
    let ours = hands.call(call()).await?.text;
    // Whoever finds something else has done something else.
    for peer in plan.commands.get("search").into_iter().flatten() {
        let (_, theirs) = tokio::task::block_in_place(|| peer.run())?;
        let (ours, theirs) = (places(&ours), places(&String::from_utf8_lossy(&theirs)));
        if ours != theirs || ours.is_empty() {
            let (a, b) = (ours.len(), theirs.len());
            let odd: Vec<_> = ours.symmetric_difference(&theirs).take(3).collect();
            return Err(format!("{} found {b} lines and we {a}: {odd:?}", peer.name).into());
        }
    }
    for _ in 0..plan.runs {
        let done = hands.call(call()).await?;
        times.add("search", OURS, done.time);
        times.add("search", "inside", done.inside);
        others(plan, "search", times)?;
    }
    Ok(())
}

/// File and line of each match.
fn places(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| {
            let (file, rest) = line.split_once(':')?;
            let (number, _) = rest.split_once(':')?;
            Some(format!("{}:{number}", file.trim_start_matches("./").trim_start_matches("tree/")))
        })
        .collect()
}
