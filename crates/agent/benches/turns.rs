//! What a turn costs in a short and in a long conversation: `cargo bench -p bellglass-agent`.
//!
//! Measured is all that the loop does between two answers of a model: hearing of the answer, of its
//! step and its result, and making the next request. Sending that request grows with the
//! conversation, because providers want all of it each time; it is not measured here.

use std::time::{Duration, Instant};

use bellglass_agent::{Effect, Mind, TaskMind};
use bellglass_protocol::event::{Event, EventBody};
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::Budget;
use bellglass_protocol::model::{AnswerBlock, ModelAnswer, StopCause, Usage};
use bellglass_protocol::step::{StepOutcome, StepStatus};
use bellglass_protocol::tool::{Shell, ToolCall};
use jiff::Timestamp;

/// Turns over which a cost is averaged.
const WINDOW: u64 = 10;

fn main() {
    let mut mind = TaskMind::new(100_000_000, Budget::default(), Vec::new());
    let job = JobId::generate();
    let mut seq = 0;
    let mut hear = |mind: &mut TaskMind, body| {
        seq += 1;
        mind.take_in(&Event { seq, at: Timestamp::UNIX_EPOCH, job, body });
    };
    let mut costs = Vec::new();
    let mut spent = Duration::ZERO;
    for turn in 1..=10_000 {
        let (answer, call) = answer(turn);
        let started = Instant::now();
        hear(&mut mind, answer);
        hear(&mut mind, EventBody::StepStarted { n: turn as u32, call });
        hear(&mut mind, finished(turn));
        let effect = mind.next(Timestamp::UNIX_EPOCH);
        spent += started.elapsed();
        let Effect::Ask(request) = effect else { panic!("{effect:?}") };
        if turn % WINDOW == 0 {
            if [10, 1_000, 10_000].contains(&turn) {
                costs.push((turn, spent / WINDOW as u32, request.messages.len()));
            }
            spent = Duration::ZERO;
        }
    }
    let first = costs[0].1.as_secs_f64();
    for (turn, cost, messages) in costs {
        let ratio = cost.as_secs_f64() / first;
        println!(
            "turn {turn:>6}: {cost:>10.1?} a turn, {ratio:>5.2} times the first, {messages} messages"
        );
    }
}

fn answer(turn: u64) -> (EventBody, ToolCall) {
    let command = format!("sed -n {turn},{}p src/main.rs", turn + 50);
    let arguments = serde_json::json!({ "command": command }).to_string();
    let blocks = vec![
        AnswerBlock::Text { text: format!("Now I look at part {turn} of the program.") },
        AnswerBlock::ToolCall { id: format!("c{turn}"), name: "shell".into(), arguments },
    ];
    let answer = ModelAnswer {
        model: "local/x".into(),
        blocks,
        stop: StopCause::ToolCalls,
        usage: Usage::default(),
        cost_usd: None,
        duration_ms: 1,
    };
    let call = Shell { command, ..Default::default() };
    (EventBody::ModelAnswered { answer: Box::new(answer) }, ToolCall::Shell(call))
}

fn finished(turn: u64) -> EventBody {
    let output = format!("fn part_{turn}() -> u64 {{ {turn} }}\n").repeat(40);
    let outcome = StepOutcome {
        status: StepStatus::Succeeded,
        exit_code: Some(0),
        signal: None,
        stdout: String::new(),
        stderr: String::new(),
        output_bytes: output.len() as u64,
        output,
        dropped_bytes: 0,
        unkept_bytes: 0,
        full_output: None,
        attachments: Vec::new(),
        error: None,
        duration_ms: 5,
    };
    EventBody::StepFinished { n: turn as u32, outcome: Box::new(outcome) }
}
