//! Logs and what they fold into.

use super::*;
use crate::job::{DEFAULT_IMAGE, IsolationLevel, Limits, OnError, Priority};
use crate::model::{ModelAnswer, StopCause};
use crate::network::NetworkPolicy;
use crate::step::OutputStream;
use crate::tool::{Shell, ToolCall};
use crate::unknown::UnknownRecord;

fn call() -> ToolCall {
    let command = "x".repeat(100);
    ToolCall::Shell(Shell { command, ..Default::default() })
}

fn scheduled() -> EventBody {
    let spec = JobSpec {
        name: None,
        work: Work::Steps(vec![call(), call()]),
        on_error: OnError::Continue,
        priority: Priority(0),
        image: DEFAULT_IMAGE.into(),
        limits: Limits::default(),
        network: NetworkPolicy::None,
        isolation: IsolationLevel::Namespace,
        nested_sandboxing: false,
        desktop: None,
        secrets: Default::default(),
        files: Vec::new(),
        model: None,
        budget: Default::default(),
        plan: Default::default(),
        mcp: Default::default(),
        approve: Vec::new(),
        project: None,
        fork: None,
        owner: None,
    };
    EventBody::Scheduled { spec: Box::new(spec) }
}

fn claimed() -> EventBody {
    EventBody::Claimed { worker: WorkerId::new("w"), generation: Generation(1) }
}

fn finished(n: u32, status: StepStatus) -> EventBody {
    let text = "y".repeat(100);
    let error = ToolError { code: "bad".into(), message: text.clone() };
    let outcome = StepOutcome {
        status,
        exit_code: Some(0),
        signal: None,
        stdout: text.clone(),
        stderr: text.clone(),
        output: text,
        output_bytes: 200,
        dropped_bytes: 0,
        unkept_bytes: 0,
        full_output: None,
        attachments: Vec::new(),
        error: Some(error),
        duration_ms: 1,
    };
    EventBody::StepFinished { n, outcome: Box::new(outcome) }
}

fn answered() -> EventBody {
    let answer = ModelAnswer {
        model: "local/x".into(),
        blocks: Vec::new(),
        stop: StopCause::Finished,
        usage: Default::default(),
        cost_usd: None,
        duration_ms: 1,
    };
    EventBody::ModelAnswered { answer: Box::new(answer), heard: None }
}

fn released() -> EventBody {
    EventBody::Released { generation: Generation(1) }
}

fn lost() -> EventBody {
    EventBody::SandboxLost { reason: "gone".into(), kept: None }
}

fn folded(bodies: Vec<EventBody>, take: fn(&mut JobView, &Event)) -> JobView {
    let job = "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap();
    let event = |seq, body| Event { seq: seq as u64, at: Timestamp::UNIX_EPOCH, job, body };
    let mut view = JobView::begin(&event(1, scheduled())).unwrap();
    for (n, body) in bodies.into_iter().enumerate() {
        take(&mut view, &event(n + 2, body));
    }
    view
}

#[test]
fn sandboxes_that_are_lost_one_after_another_are_counted() {
    let done = || finished(1, StepStatus::Succeeded);
    for (bodies, count) in [
        (vec![lost(), done()], 0),
        // Neither what was done before in another sandbox nor another answer is progress.
        (vec![done(), lost(), done(), lost()], 2),
        (vec![lost(), answered(), finished(1, StepStatus::Interrupted), lost()], 2),
    ] {
        assert_eq!(folded(bodies, JobView::apply).losses_without_progress, count);
    }
}

#[test]
fn an_answer_that_broke_off_costs_what_it_says() {
    let failed = |usage: serde_json::Value| -> EventBody {
        let mut event = serde_json::json!({
            "type": "model.failed", "model": "local/x",
            "error": { "code": "model_answer_cut", "message": "" }, "retry_in_ms": 5,
        });
        if !usage.is_null() {
            event["usage"] = usage;
            event["cost_usd"] = 0.5.into();
        }
        serde_json::from_value(event).unwrap()
    };
    // Programs of before say nothing about it.
    let view = folded(vec![failed(serde_json::Value::Null)], JobView::apply);
    assert_eq!(view.usage, None);
    let view =
        folded(vec![failed(serde_json::json!({ "input": 700 })), answered()], JobView::apply);
    let usage = view.usage.unwrap();
    assert_eq!((usage.model_calls, usage.tokens.input, usage.cost_usd), (2, 700, 0.5));
}

#[test]
fn only_new_ground_is_progress() {
    let done = |n| finished(n, StepStatus::Succeeded);
    for (bodies, stalled) in [
        (vec![claimed()], 1),
        (vec![claimed(), done(1)], 0),
        (vec![claimed(), claimed(), claimed()], 3),
        (vec![claimed(), claimed(), finished(1, StepStatus::Interrupted)], 2),
        // The first step again, in a new sandbox, is no progress.
        (vec![claimed(), done(1), claimed(), lost(), done(1), claimed(), lost(), done(1)], 2),
        (vec![claimed(), done(1), claimed(), lost(), done(1), done(2), claimed()], 1),
        // So is the same answer of a model, but not a new one.
        (vec![claimed(), answered(), claimed(), answered()], 0),
        (vec![claimed(), answered(), claimed(), lost(), answered(), claimed()], 2),
        // A restart that was planned is no failure, but what failed before it still counts.
        (vec![claimed(), released(), claimed(), released(), claimed()], 1),
        (vec![claimed(), claimed(), released(), claimed()], 2),
        (vec![claimed(), done(1), released(), claimed()], 1),
        // Nobody comes further while the user is waited for.
        (vec![claimed(), EventBody::Paused { by: "me".into() }, claimed(), claimed()], 1),
    ] {
        let count = bodies.len();
        let view = folded(bodies, JobView::apply);
        assert_eq!(view.claims_without_progress, stalled, "{count} events");
    }
}

#[test]
fn the_brief_view_says_the_same_without_the_texts() {
    let bodies = || {
        let text = "z".repeat(100);
        vec![
            claimed(),
            EventBody::StepStarted { n: 1, call: call() },
            EventBody::StepOutput { n: 1, stream: OutputStream::Stdout, text },
            finished(1, StepStatus::Failed),
            EventBody::StepStarted { n: 2, call: call() },
        ]
    };
    let (mut whole, brief) =
        (folded(bodies(), JobView::apply), folded(bodies(), JobView::apply_briefly));
    for step in &mut whole.steps {
        assert!(step.arguments["command"].is_string());
        step.arguments = serde_json::Value::Null;
        (step.stdout, step.stderr, step.output) = Default::default();
        step.error = None;
    }
    assert_eq!(whole, brief);
    assert_eq!(brief.failed_steps, [1]);
}

#[test]
fn what_is_misread_is_where_the_job_stands() {
    let unknown = |kind: &str| {
        let fields = serde_json::json!({ "type": kind, "moon": "full" });
        let record = UnknownRecord::new(fields.as_object().unwrap().clone());
        EventBody::Unknown(record.unwrap())
    };
    for (kind, misread) in [
        ("weather.changed", false),
        ("live.opened", false),
        ("step.output", false),
        ("plan.updated", false),
        ("model.failed", true),
        ("restore.failed", true),
        ("memory.recalled", true),
        ("file.written", true),
        ("sandbox.ready", true),
        ("step.finished", true),
        ("finished", true),
    ] {
        assert_eq!(folded(vec![unknown(kind)], JobView::apply).misread, misread, "{kind}");
    }
    assert!(!folded(vec![claimed(), lost()], JobView::apply).misread);
}
