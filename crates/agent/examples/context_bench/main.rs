//! What a conversation costs as it grows: called by `bench/context/measure.py`, prints JSON.
//!
//!     context_bench turns STEPS STEPS …      what a turn costs after so many steps
//!     context_bench history TOKENS READABLE  a history of so many tokens, with a model that reads so many
//!
//! Measured is all that the loop does between two answers of a model: hearing of the answer, of its
//! step and its result, and making the next request. Sending that request grows with the
//! conversation, because providers want all of it each time; it is not measured here.

mod made_up;

use std::time::{Duration, Instant};

use bellglass_agent::context::Context;
use bellglass_agent::model::Message;
use bellglass_agent::tokens::count;
use bellglass_agent::{Effect, Mind as _, TaskMind};
use bellglass_protocol::event::EventBody;
use bellglass_protocol::job::Budget;
use bellglass_protocol::model::Summary;
use jiff::Timestamp;
use made_up::Log;
use serde_json::{Value, json};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Vec<u64> = arguments.iter().skip(1).map(|text| number(text)).collect();
    let figures = match (arguments.first().map(String::as_str), numbers.as_slice()) {
        (Some("turns"), steps) if !steps.is_empty() => turns(steps),
        (Some("history"), [tokens, readable]) => history(*tokens, *readable),
        _ => panic!("say `turns STEPS …` or `history TOKENS READABLE`"),
    };
    println!("{figures}");
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("{text} is not a number"))
}

/// Turns around each point over which the median is taken.
const WINDOW: u64 = 5;

/// Ours beside somebody who puts the conversation together anew and counts it at every turn.
fn turns(steps: &[u64]) -> Value {
    let mut mind = TaskMind::new(1_000_000_000, Budget::default(), Vec::new());
    let mut log = Log::default();
    log.begin(&mut mind);
    let last = steps.iter().max().copied().unwrap_or_default() + WINDOW;
    let (mut ours, mut anew) = (Vec::new(), Vec::new());
    for turn in 1..=last {
        let events = Log::turn(turn);
        let started = Instant::now();
        log.hear(&mut mind, events);
        let effect = mind.next(Timestamp::UNIX_EPOCH);
        let cost = started.elapsed();
        assert!(matches!(effect, Effect::Ask(_)), "{effect:?}");
        drop(effect);
        ours.push(cost);
        if steps.contains(&turn) {
            anew.push((0..3).map(|_| put_together_anew(mind.context())).min().unwrap_or_default());
        }
    }
    let points = steps.iter().zip(anew).map(|(turn, anew)| {
        let window = turn.saturating_sub(WINDOW) as usize..(turn + WINDOW) as usize;
        let mut costs = ours[window].to_vec();
        costs.sort_unstable();
        json!({
            "steps": turn,
            "ours_us": micros(costs[costs.len() / 2]),
            "anew_us": micros(anew),
        })
    });
    json!({ "points": points.collect::<Vec<_>>(), "tokens": mind.context().tokens() })
}

fn put_together_anew(context: &Context) -> Duration {
    let started = Instant::now();
    let mut tokens = 0;
    let mut copy = Vec::new();
    for message in context.messages().iter() {
        tokens += match message {
            Message::User(text) => count(text),
            Message::Assistant(blocks) => {
                count(&serde_json::to_string(&**blocks).unwrap_or_default())
            }
            Message::ToolResults(results) => results.iter().map(|result| count(&result.text)).sum(),
        };
        copy.push(message.clone());
    }
    assert!(tokens > 0 && !copy.is_empty());
    started.elapsed()
}

/// Works through a long history, made smaller again and again as it would be in a job.
fn history(tokens: u64, readable: u64) -> Value {
    let mut mind = TaskMind::new(readable, Budget::default(), Vec::new());
    let mut log = Log::default();
    log.begin(&mut mind);
    let memory_before = peak_memory();
    let (mut heard, mut turn, mut compactions, mut largest) = (0, 0, 0_u64, 0);
    let mut longest = Duration::ZERO;
    let started = Instant::now();
    while heard < tokens {
        turn += 1;
        let before = mind.context().tokens();
        log.hear(&mut mind, Log::turn(turn));
        heard += mind.context().tokens() - before;
        largest = largest.max(mind.context().tokens());
        match mind.next(Timestamp::UNIX_EPOCH) {
            Effect::Ask(_) => {}
            Effect::Compact { draft, request } => {
                let began = Instant::now();
                // The conversation is kept as it was before.
                let kept = serde_json::to_vec_pretty(&mind.context().to_json());
                assert!(kept.is_ok_and(|kept| !kept.is_empty()));
                let text = "The engineer looked at many parts of the program.".repeat(40);
                let summary = Summary { through: 0, text, usage: None, cost_usd: None };
                let compaction = draft.complete(request.map(|_| summary)).expect("it shrinks");
                assert!(compaction.tokens_after * 10 <= compaction.tokens_before * 9);
                let compaction = Box::new(compaction);
                log.hear(&mut mind, vec![EventBody::ContextCompacted { compaction }]);
                compactions += 1;
                longest = longest.max(began.elapsed());
                assert!(mind.context().tokens() <= readable);
            }
            other => panic!("{other:?}"),
        }
    }
    json!({
        "tokens": heard,
        "readable": readable,
        "turns": turn,
        "compactions": compactions,
        "largest_context": largest,
        "seconds": (started.elapsed().as_secs_f64() * 100.0).round() / 100.0,
        "longest_compaction_ms": micros(longest) / 1000.0,
        "memory_mib": (peak_memory() - memory_before) / 1024.0,
    })
}

fn micros(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e7).round() / 10.0
}

/// The most memory that this process has ever had, in KiB.
fn peak_memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").parse().expect("the kernel says how much memory there was")
}
