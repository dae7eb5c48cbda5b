//! The machine of a task, event by event, without a clock or a network.

use bellglass_protocol::approval::Decision;
use bellglass_protocol::event::RestoreCause;
use bellglass_protocol::id::JobId;
use bellglass_protocol::job::{
    DEFAULT_IMAGE, IsolationLevel, JobSpec, Limits, OnError, PlanMode, Priority, Work,
};
use bellglass_protocol::model::{AnswerBlock, Usage};
use bellglass_protocol::network::NetworkPolicy;
use bellglass_protocol::quantity::ByteSize;
use bellglass_protocol::step::{StepOutcome, StepStatus};
use serde_json::{Value, json};

use super::*;
use crate::model::Message;

/// A mind and the log that it hears.
struct Job {
    mind: TaskMind,
    log: Vec<Event>,
    last_seq: u64,
    id: JobId,
}

impl Job {
    fn new(context_tokens: u64, budget: Budget) -> Self {
        Self::with(context_tokens, budget, spec())
    }

    fn with(context_tokens: u64, budget: Budget, spec: JobSpec) -> Self {
        let mind = TaskMind::new(context_tokens, budget, others());
        let mut job = Self { mind, log: Vec::new(), last_seq: 0, id: JobId::generate() };
        job.hear(EventBody::Scheduled { spec: Box::new(spec) });
        job
    }

    fn hear(&mut self, body: EventBody) {
        self.last_seq += 1;
        let seq = self.last_seq;
        let at = Timestamp::from_second(1_000_000 + seq as i64).unwrap();
        let event = Event { seq, at, job: self.id, body };
        self.mind.take_in(&event);
        self.log.push(event);
    }

    fn answer(&mut self, calls: &[(&str, Value)]) {
        self.hear(answer(calls, 100));
    }

    fn next(&self) -> Effect {
        self.mind.next(Timestamp::from_second(2_000_000).unwrap())
    }

    /// Does what is next, if it is to be written down or is a step that succeeds with an output.
    fn go(&mut self, output: &str) -> String {
        let done = match self.next() {
            Effect::Record(bodies) => {
                let kind = bodies[0].kind().to_owned();
                for body in bodies {
                    self.hear(body);
                }
                return kind;
            }
            Effect::Perform { n, call } => {
                self.hear(EventBody::StepStarted { n, call });
                self.hear(finished(n, output));
                "step"
            }
            Effect::Compact { draft, .. } => match draft.complete(None) {
                Ok(compaction) => {
                    self.hear(EventBody::ContextCompacted { compaction: Box::new(compaction) });
                    "compact"
                }
                Err(_) => "cannot_shrink",
            },
            Effect::CallOther { call_id, tool, arguments } => {
                let arguments = arguments.to_string();
                self.hear(EventBody::ToolStarted {
                    call_id: call_id.clone(),
                    tool: tool.clone(),
                    arguments,
                });
                let output = output.to_owned();
                self.hear(EventBody::ToolAnswered { call_id, tool, output, failed: false });
                "other"
            }
            Effect::Remember { project, .. } => {
                let texts = vec!["Tests run with make.".into()];
                self.hear(EventBody::MemoryRecalled { project, texts });
                "remember"
            }
            Effect::Extract { project, .. } => {
                let usage = Some(Usage { input: 700, ..Usage::default() });
                let (texts, cost_usd) = (vec![], None);
                self.hear(EventBody::MemoryKept { project, texts, usage, cost_usd });
                "extract"
            }
            Effect::Idle => "idle",
            Effect::Ask(_) => "ask",
            Effect::Wait => "wait",
            Effect::Look { .. } => "look",
            Effect::Finish(Ok(())) => "done",
            Effect::Finish(Err(_)) => "failed",
        };
        done.to_owned()
    }

    /// Whoever hears the same log knows the same.
    fn assert_resumes(&self) {
        let mut other = TaskMind::new(self.mind.context_tokens, self.mind.budget, others());
        self.log.iter().for_each(|event| other.take_in(event));
        let now = Timestamp::from_second(2_000_000).unwrap();
        assert_eq!(format!("{:?}", other.next(now)), format!("{:?}", self.next()));
    }
}

pub(crate) fn spec() -> JobSpec {
    JobSpec {
        name: None,
        work: Work::Task("Do it.".into()),
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
        model: Some("local/x".into()),
        budget: Budget::default(),
        plan: Default::default(),
        mcp: Default::default(),
        approve: Vec::new(),
        project: None,
        fork: None,
        owner: None,
    }
}

fn answer(calls: &[(&str, Value)], tokens: u64) -> EventBody {
    let calls = calls.iter().enumerate().map(|(at, (name, arguments))| AnswerBlock::ToolCall {
        id: format!("c{at}"),
        name: (*name).into(),
        arguments: arguments.to_string(),
    });
    EventBody::ModelAnswered {
        answer: Box::new(ModelAnswer {
            model: "local/x".into(),
            blocks: calls.collect(),
            stop: StopCause::ToolCalls,
            usage: Usage { output: tokens, ..Usage::default() },
            cost_usd: Some(0.25),
            duration_ms: 1,
        }),
        heard: None,
    }
}

pub(crate) fn finished(n: u32, output: &str) -> EventBody {
    let outcome = StepOutcome {
        status: StepStatus::Succeeded,
        exit_code: Some(0),
        signal: None,
        stdout: String::new(),
        stderr: String::new(),
        output: output.into(),
        output_bytes: output.len() as u64,
        dropped_bytes: 0,
        unkept_bytes: 0,
        full_output: None,
        attachments: Vec::new(),
        error: None,
        duration_ms: 5,
    };
    EventBody::StepFinished { n, outcome: Box::new(outcome) }
}

/// A tool that is not ours.
fn others() -> Vec<ToolDefinition> {
    let (name, description) = ("mcp__git__push".to_owned(), String::new());
    vec![ToolDefinition { name, description, parameters: json!({ "type": "object" }) }]
}

fn shell(command: &str) -> (&'static str, Value) {
    ("shell", json!({ "command": command }))
}

#[test]
fn calls_are_answered_in_order_and_then_the_model_is_asked() {
    let mut job = Job::new(1_000_000, Budget::default());
    assert_eq!(job.go(""), "ask");
    job.answer(&[
        ("plan", json!({ "steps": [{ "title": "x", "status": "pending" }] })),
        shell("ls"),
        ("nonsense", json!({})),
        shell("pwd"),
    ]);
    let mut kinds = Vec::new();
    while kinds.last().map(String::as_str) != Some("ask") {
        job.assert_resumes();
        kinds.push(job.go("ok"));
    }
    assert_eq!(kinds, ["plan.updated", "step", "tool.answered", "step", "ask"]);
    let Effect::Ask(request) = job.next() else { panic!() };
    let Some(Message::ToolResults(results)) = request.messages.last() else { panic!() };
    let ids: Vec<&str> = results.iter().map(|result| &*result.call_id).collect();
    assert_eq!(ids, ["c0", "c1", "c2", "c3"]);
    assert!(results[2].failed && !results[3].failed);
}

#[test]
fn a_step_that_runs_is_taken_up_under_its_number() {
    let mut job = Job::new(1_000_000, Budget::default());
    job.answer(&[shell("a"), shell("b")]);
    job.go("ok");
    let Effect::Perform { n: 2, call } = job.next() else { panic!() };
    job.hear(EventBody::StepStarted { n: 2, call });
    // Not even a pause or a budget leaves it alone.
    job.hear(EventBody::Paused { by: "user".into() });
    assert!(matches!(job.next(), Effect::Perform { n: 2, .. }));
    job.assert_resumes();
    job.hear(finished(2, "ok"));
    assert_eq!(job.go(""), "wait");
    job.hear(EventBody::Resumed { by: "user".into() });
    assert_eq!(job.go(""), "ask");
}

#[test]
fn a_lost_sandbox_begins_the_task_again_but_not_its_budget() {
    let mut job = Job::new(1_000_000, Budget { usd: Some(0.5), ..Budget::default() });
    job.answer(&[shell("a")]);
    job.go("ok");
    job.hear(EventBody::SandboxLost { reason: "gone".into(), kept: None });
    let Effect::Ask(request) = job.next() else { panic!() };
    assert_eq!(request.messages.len(), 1);
    job.answer(&[shell("a")]);
    let Effect::Finish(Err(error)) = job.next() else { panic!() };
    assert_eq!(error.code, "budget_exhausted");
}

/// Whether a task that called `finish` goes on, after its last checkpoint went well or not and its sandbox was lost.
fn goes_on_after_a_loss(outcome: &str, last: EventBody) -> (Job, bool) {
    let mut job = Job::new(100_000, Budget::default());
    job.answer(&[shell("make")]);
    assert_eq!(job.go("made"), "step");
    job.hear(last);
    job.answer(&[("finish", json!({ "summary": "Made.", "outcome": outcome }))]);
    assert_eq!(job.go(""), "task.finished");
    let end = job.next();
    job.hear(EventBody::SandboxLost { reason: "gone".into(), kept: Some(1) });
    let (why, checkpoint) = (RestoreCause::SandboxLost, None);
    job.hear(EventBody::WorkspaceRestored { from: None, step: 0, why, checkpoint, entries: 1 });
    job.assert_resumes();
    let goes_on = format!("{:?}", job.next()) != format!("{end:?}");
    (job, goes_on)
}

#[test]
fn a_model_that_is_done_goes_on_if_what_it_made_is_lost() {
    let skipped = || EventBody::CheckpointSkipped { step: 1, reason: "no room".into() };
    let checkpoint = bellglass_protocol::checkpoint::CheckpointNumber(1);
    let (changes, left_out) = (Default::default(), Vec::new());
    let stored = EventBody::CheckpointStored {
        step: 1,
        checkpoint,
        changes,
        bytes: 1,
        took_us: 1,
        left_out,
    };
    // All that it counted on is there, or it said itself that there is nothing.
    assert!(!goes_on_after_a_loss("done", stored).1);
    assert!(!goes_on_after_a_loss("impossible", skipped()).1);
    let (mut job, goes_on) = goes_on_after_a_loss("done", skipped());
    assert!(goes_on);
    let Effect::Ask(request) = job.next() else { panic!("{:?}", job.next()) };
    let told = format!("{:?}", request.messages);
    assert!(told.contains("files that no checkpoint has"), "{told}");
    assert!(told.contains("as they were at the start"), "{told}");
    job.answer(&[shell("make")]);
    assert_eq!(job.go("made"), "step");
    job.answer(&[("finish", json!({ "summary": "Made again.", "outcome": "done" }))]);
    assert_eq!([job.go(""), job.go("")], ["task.finished", "done"]);
}

#[test]
fn messages_never_come_between_a_call_and_its_result() {
    let mut job = Job::new(1_000_000, Budget::default());
    job.answer(&[shell("a"), shell("b")]);
    let message = |text: &str| EventBody::MessageReceived { by: "user".into(), text: text.into() };
    job.hear(message("one"));
    job.go("ok");
    job.hear(message("two"));
    job.go("ok");
    let Effect::Ask(request) = job.next() else { panic!() };
    let shape: Vec<&str> = request
        .messages
        .iter()
        .map(|message| match message {
            Message::User(_) => "user",
            Message::Assistant(_) => "assistant",
            Message::ToolResults(_) => "results",
        })
        .collect();
    assert_eq!(shape, ["user", "assistant", "results", "user", "user"]);
}

#[test]
fn a_question_waits_for_the_answer_and_resuming_goes_on_without_one() {
    for (event, words) in [
        (EventBody::MessageReceived { by: "user".into(), text: "yes".into() }, "answers: yes"),
        (EventBody::Resumed { by: "user".into() }, "no answer"),
    ] {
        let mut job = Job::new(1_000_000, Budget::default());
        job.answer(&[("ask_user", json!({ "question": "May I?" }))]);
        assert_eq!(job.go(""), "question.asked");
        assert_eq!(job.go(""), "wait");
        job.assert_resumes();
        let was_answer = event.kind() == "message.received";
        job.hear(event);
        if was_answer {
            assert_eq!(job.go(""), "resumed");
        }
        let Effect::Ask(request) = job.next() else { panic!("{:?}", job.next()) };
        let Some(Message::ToolResults(results)) = request.messages.last() else { panic!() };
        assert!(results[0].text.contains(words), "{}", results[0].text);
    }
}

#[test]
fn a_plan_is_reviewed_until_it_is_approved() {
    let reviewed = JobSpec { plan: PlanMode::Review, ..spec() };
    let mind = TaskMind::new(1_000_000, Budget::default(), others());
    let mut job = Job { mind, log: Vec::new(), last_seq: 0, id: JobId::generate() };
    job.hear(EventBody::Scheduled { spec: Box::new(reviewed) });
    let plan = ("plan", json!({ "steps": [{ "title": "x", "status": "pending" }] }));
    // Nothing is done before, but to look.
    job.answer(&[shell("rm -rf ."), ("mcp__git__push", json!({})), ("list_files", json!({}))]);
    assert_eq!([job.go(""), job.go("")], ["tool.answered"; 2]);
    assert_eq!([job.go(""), job.go("")], ["step", "ask"]);
    job.answer(std::slice::from_ref(&plan));
    assert_eq!([job.go(""), job.go("")], ["plan.updated", "wait"]);
    // A wish is no approval: there is another plan.
    let text = "Add tests.".into();
    job.hear(EventBody::MessageReceived { by: "user".into(), text });
    assert_eq!([job.go(""), job.go("")], ["resumed", "ask"]);
    job.assert_resumes();
    job.answer(&[plan]);
    assert_eq!([job.go(""), job.go("")], ["plan.updated", "wait"]);
    job.hear(EventBody::Resumed { by: "user".into() });
    let Effect::Ask(request) = job.next() else { panic!() };
    let Some(Message::User(words)) = request.messages.last() else { panic!() };
    assert!(words.contains("I approve"), "{words}");
    job.answer(&[shell("make")]);
    assert_eq!(job.go("ok"), "step");
    job.assert_resumes();
}

#[test]
fn nobody_is_passed_over_by_a_model_that_is_about_to_end() {
    let finish = ("finish", json!({ "outcome": "done", "summary": "ok" }));
    let words = || EventBody::MessageReceived { by: "user".into(), text: "And tests.".into() };
    let knowing = |heard| {
        let EventBody::ModelAnswered { answer, .. } = answer(std::slice::from_ref(&finish), 1)
        else {
            unreachable!()
        };
        EventBody::ModelAnswered { answer, heard: Some(heard) }
    };
    // Said while the model made up its mind, and while a call before the last one ran.
    let mut job = Job::new(1_000_000, Budget::default());
    let before = job.last_seq;
    job.hear(words());
    job.hear(knowing(before));
    assert_eq!([job.go(""), job.go("")], ["tool.answered", "ask"]);
    job.hear(knowing(job.last_seq));
    assert_eq!(job.go(""), "task.finished");
    let mut job = Job::new(1_000_000, Budget::default());
    job.answer(&[shell("make"), finish.clone()]);
    job.hear(words());
    assert_eq!([job.go("ok"), job.go(""), job.go("")], ["step", "tool.answered", "ask"]);
    job.assert_resumes();
}

#[test]
fn what_other_tools_give_counts_as_output() {
    let mut job = Job::new(1_000_000, Budget { output: Some(ByteSize(1000)), ..Budget::default() });
    job.answer(&[("mcp__git__push", json!({})), shell("make")]);
    let (call_id, tool) = ("c0".to_owned(), "mcp__git__push".to_owned());
    let (output, failed) = ("x".repeat(2000), false);
    job.hear(EventBody::ToolAnswered { call_id, tool, output, failed });
    let Effect::Finish(Err(error)) = job.next() else { panic!("{:?}", job.next()) };
    assert_eq!(error.code, "budget_exhausted");
}

#[test]
fn a_task_of_so_many_steps_can_be_finished_after_the_last_of_them() {
    let project = Some("shop".to_owned());
    let budget = Budget { steps: Some(2), ..Budget::default() };
    let finish = ("finish", json!({ "outcome": "done", "summary": "ok" }));
    let mut job = Job::with(1_000_000, budget, JobSpec { project, ..spec() });
    assert_eq!(job.go(""), "remember");
    job.answer(&[shell("a"), ("mcp__git__push", json!({}))]);
    assert_eq!([job.go("ok"), job.go("ok"), job.go("")], ["step", "other", "ask"]);
    job.answer(&[finish]);
    assert_eq!([job.go(""), job.go(""), job.go("")], ["task.finished", "extract", "done"]);

    for call in [shell("b"), ("mcp__git__push", json!({}))] {
        let mut job = Job::new(1_000_000, budget);
        job.answer(&[shell("a"), shell("b"), call]);
        assert_eq!([job.go("ok"), job.go("ok")], ["step"; 2]);
        let Effect::Finish(Err(error)) = job.next() else { panic!("{:?}", job.next()) };
        assert_eq!(error.code, "budget_exhausted");
    }
}

#[test]
fn what_an_answer_cost_that_broke_off_is_spent() {
    let budget = Budget { tokens: Some(1_000), ..Budget::default() };
    let mut job = Job::new(1_000_000, budget);
    let fail = |usage| EventBody::ModelFailed {
        model: "local/x".into(),
        error: JobError { code: "model_answer_cut".into(), message: String::new() },
        retry_in_ms: Some(1),
        usage,
        cost_usd: None,
    };
    job.hear(fail(None));
    job.hear(fail(Some(Usage { input: 900, ..Usage::default() })));
    assert_eq!(job.go(""), "ask");
    job.hear(fail(Some(Usage { input: 900, ..Usage::default() })));
    let Effect::Finish(Err(error)) = job.next() else { panic!("{:?}", job.next()) };
    assert_eq!(error.code, "budget_exhausted");
}

#[test]
fn a_call_that_was_cut_off_is_told_so() {
    let mut job = Job::new(1_000_000, Budget::default());
    let EventBody::ModelAnswered { mut answer, .. } = answer(&[], 1) else { unreachable!() };
    answer.stop = StopCause::OutputLimit;
    let (id, name) = ("c0".into(), "write_file".into());
    answer.blocks = vec![AnswerBlock::ToolCall { id, name, arguments: "{\"path\": \"a".into() }];
    job.hear(EventBody::ModelAnswered { answer, heard: None });
    assert_eq!(job.go(""), "tool.answered");
    let Effect::Ask(request) = job.next() else { panic!("{:?}", job.next()) };
    let Some(Message::ToolResults(results)) = request.messages.last() else { panic!() };
    assert!(
        results[0].text.contains("cut off because the answer was too long"),
        "{}",
        results[0].text
    );
}

#[test]
fn a_model_that_says_it_is_too_long_is_given_less() {
    let mut job = Job::new(1_000_000, Budget::default());
    for n in 0..20 {
        job.answer(&[shell(&format!("echo {n}"))]);
        job.go(&format!("output {n} ").repeat(400));
    }
    assert_eq!(job.go(""), "ask");
    let mut sizes = vec![job.mind.context().tokens()];
    for _ in 0..3 {
        let error = JobError { code: "context_too_long".into(), message: String::new() };
        job.hear(EventBody::ModelFailed {
            model: "local/x".into(),
            error,
            retry_in_ms: None,
            usage: None,
            cost_usd: None,
        });
        assert_eq!(job.go(""), "compact");
        assert_eq!(job.go(""), "ask");
        sizes.push(job.mind.context().tokens());
    }
    assert!(sizes.is_sorted_by(|a, b| a * 9 >= b * 10), "{sizes:?}");
}

#[test]
fn a_context_too_small_for_the_tools_is_a_clear_failure() {
    let job = Job::new(1_000, Budget::default());
    let Effect::Finish(Err(error)) = job.next() else { panic!() };
    assert_eq!(error.code, "context_exhausted");
}

/// Five million tokens of history in a context of a hundred thousand.
#[test]
fn a_very_long_history_stays_within_the_limit() {
    let mut job = Job::new(100_000, Budget::default());
    let page = "The quick brown fox jumps over the lazy dog. ".repeat(690);
    let mut total = 0;
    let (mut compactions, mut most_units) = (0, 0);
    for n in 0..800 {
        job.answer(&[shell(&format!("cat part-{n}"))]);
        assert_eq!(job.go(&format!("{n} {page}")), "step");
        total += crate::tokens::count(&page);
        loop {
            match job.go("").as_str() {
                "ask" => break,
                "compact" => compactions += 1,
                other => panic!("{other} at {n}"),
            }
        }
        assert!(job.mind.context().tokens() < 80_000);
        most_units = most_units.max(job.mind.context().units());
        // Only the log grows, and it is not kept here.
        job.log.clear();
    }
    assert!(total > 5_000_000, "{total}");
    // All that is held of it, in bytes: a small part of what there was.
    let held = job.mind.context().to_json().to_string().len();
    assert!(held * 20 < 800 * page.len(), "{held}");
    assert!(compactions > 10 && most_units < 400, "{compactions} {most_units}");
}

#[test]
fn a_call_that_needs_approval_waits_for_it() {
    let approve = vec!["shell".to_owned(), "mcp__*".to_owned()];
    let mut job = Job::with(1_000_000, Budget::default(), JobSpec { approve, ..spec() });
    for (decision, then) in [(Decision::Allow, "step"), (Decision::Refuse, "tool.answered")] {
        job.answer(&[shell("rm x"), ("list_files", json!({}))]);
        assert_eq!(job.go(""), "approval.requested");
        assert_eq!(job.go(""), "wait");
        job.assert_resumes();
        let id = job.log.iter().rev().find_map(|event| match &event.body {
            EventBody::ApprovalRequested { approval } => Some(approval.id.clone()),
            _ => None,
        });
        // Another decision is none about this.
        let decide = |id: &str| EventBody::ApprovalDecided {
            id: id.into(),
            decision,
            by: "user".into(),
            words: Some("not that one".into()),
        };
        job.hear(decide("other"));
        assert_eq!(job.go(""), "wait");
        job.hear(decide(&id.unwrap()));
        assert_eq!([job.go(""), job.go("ok"), job.go("ok")], ["resumed", then, "step"]);
        assert_eq!(job.go(""), "ask");
    }
    let Effect::Ask(request) = job.next() else { panic!() };
    let Some(Message::ToolResults(results)) = request.messages.last() else { panic!() };
    assert!(results[0].failed && results[0].text.contains("not that one"), "{results:?}");
    // To go on without a word allows nothing.
    job.answer(&[("mcp__git__push", json!({}))]);
    assert_eq!([job.go(""), job.go("")], ["approval.requested", "wait"]);
    job.hear(EventBody::Resumed { by: "user".into() });
    assert_eq!([job.go(""), job.go("")], ["tool.answered", "ask"]);
}

#[test]
fn a_tool_that_is_not_ours_is_called_once() {
    let mut job = Job::new(1_000_000, Budget::default());
    job.answer(&[("mcp__git__push", json!({ "to": "x" }))]);
    assert_eq!([job.go("pushed"), job.go("")], ["other", "ask"]);
    job.answer(&[("mcp__git__push", json!({}))]);
    let Effect::CallOther { call_id, tool, .. } = job.next() else { panic!() };
    let arguments = "{}".into();
    job.hear(EventBody::ToolStarted { call_id, tool, arguments });
    // Whoever takes over does not know how it ended.
    job.assert_resumes();
    assert_eq!([job.go(""), job.go("")], ["tool.answered", "ask"]);
    let Effect::Ask(request) = job.next() else { panic!() };
    let Some(Message::ToolResults(results)) = request.messages.last() else { panic!() };
    assert!(results[0].failed && results[0].text.contains("interrupted"));
}

#[test]
fn a_task_of_a_project_remembers_first_and_keeps_at_the_end() {
    let project = Some("shop".to_owned());
    let mut job = Job::with(1_000_000, Budget::default(), JobSpec { project, ..spec() });
    assert_eq!([job.go(""), job.go("")], ["remember", "ask"]);
    let Effect::Ask(request) = job.next() else { panic!() };
    let Some(Message::User(text)) = request.messages.last() else { panic!() };
    assert!(text.contains("Tests run with make."), "{text}");
    job.answer(&[("finish", json!({ "outcome": "done", "summary": "ok" }))]);
    assert_eq!([job.go(""), job.go(""), job.go("")], ["task.finished", "extract", "done"]);
}

#[test]
fn what_was_kept_of_a_task_that_goes_on_is_spent_and_kept_anew() {
    let project = Some("shop".to_owned());
    let mut job = Job::with(1_000_000, Budget::default(), JobSpec { project, ..spec() });
    assert_eq!(job.go(""), "remember");
    for spent in [800, 1600] {
        job.answer(&[("finish", json!({ "outcome": "done", "summary": "ok" }))]);
        assert_eq!([job.go(""), job.go("")], ["task.finished", "extract"]);
        assert_eq!(job.mind.spent.models.all_tokens(), spent);
        job.hear(EventBody::CheckpointSkipped { step: 1, reason: "no room".into() });
        let (why, checkpoint) = (RestoreCause::SandboxLost, None);
        job.hear(EventBody::WorkspaceRestored { from: None, step: 0, why, checkpoint, entries: 1 });
        job.assert_resumes();
        assert_eq!(job.go(""), "ask");
    }
}
