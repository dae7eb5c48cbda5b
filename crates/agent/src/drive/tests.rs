//! The rim with a made-up world and made-up models: what is asked, heard and written down.

use std::collections::VecDeque;
use std::sync::Mutex;

use bellglass_protocol::id::JobId;
use bellglass_protocol::job::{Budget, JobSpec};
use bellglass_protocol::model::StopCause;
use serde_json::json;

use super::*;
use crate::model::{Message, ModelError};
use crate::task::TaskMind;
use crate::task::tests::{finished, spec};

/// A log, and a sandbox in which every step succeeds with the same words.
struct Desk {
    log: Vec<Event>,
    /// How far the mind has heard.
    heard: u64,
    job: JobId,
}

/// Events in one page, so that there are many pages.
const PAGE: usize = 3;

impl Desk {
    fn with(spec: JobSpec) -> Self {
        let mut desk = Self { log: Vec::new(), heard: 0, job: JobId::generate() };
        desk.write(EventBody::Scheduled { spec: Box::new(spec) });
        desk
    }

    fn write(&mut self, body: EventBody) {
        let seq = self.log.len() as u64 + 1;
        self.log.push(Event { seq, at: Timestamp::UNIX_EPOCH, job: self.job, body });
    }

    fn page(&self, after: u64) -> Vec<Event> {
        self.log.iter().skip(after as usize).take(PAGE).cloned().collect()
    }

    fn answers(&self) -> Vec<&str> {
        let outputs = self.log.iter().filter_map(|event| match &event.body {
            EventBody::ToolAnswered { output, .. } => Some(output.as_str()),
            _ => None,
        });
        outputs.collect()
    }

    fn failures(&self) -> Vec<(&str, &str, Option<Usage>)> {
        let failures = self.log.iter().filter_map(|event| match &event.body {
            EventBody::ModelFailed { model, error, usage, .. } => {
                Some((model.as_str(), error.code.as_str(), *usage))
            }
            _ => None,
        });
        failures.collect()
    }
}

#[async_trait]
impl World for Desk {
    type Stop = String;

    async fn events_after(&mut self, seq: u64) -> Result<Vec<Event>, String> {
        // Whoever hears of a wish a second time does it a second time.
        assert!(seq >= self.heard, "{seq} was heard before, which went up to {}", self.heard);
        let page = self.page(seq);
        self.heard = page.last().map_or(self.heard, |event| event.seq);
        Ok(page)
    }

    async fn look_back(&mut self, seq: u64) -> Result<Vec<Event>, String> {
        Ok(self.page(seq))
    }

    async fn record(&mut self, bodies: Vec<EventBody>) -> Result<(), String> {
        bodies.into_iter().for_each(|body| self.write(body));
        Ok(())
    }

    async fn perform(&mut self, n: u32, call: ToolCall) -> Result<(), String> {
        self.write(EventBody::StepStarted { n, call });
        self.write(finished(n, &format!("a Xylophone\n{}", "lines of it\n".repeat(100))));
        Ok(())
    }

    async fn step_output(&mut self, _: u32) -> Result<Option<String>, String> {
        Ok(None)
    }

    async fn picture(&mut self, _: &Picture) -> Result<Option<LoadedPicture>, String> {
        Ok(None)
    }

    async fn call_other(&mut self, _: &str, _: &serde_json::Value) -> Result<OtherResult, String> {
        Err("there are no other tools".into())
    }

    async fn memories(&mut self, _: &str, _: &str) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    async fn keep_memories(&mut self, _: &str, texts: Vec<String>) -> Result<Vec<String>, String> {
        Ok(texts)
    }

    async fn wait_for_event(&mut self, _: u64, _: JobTime) -> Result<(), String> {
        Err("nobody will write anything".into())
    }

    async fn keep_context(&mut self, _: &Context, _: u64) -> Result<(), String> {
        Ok(())
    }

    async fn stopped(&self) -> String {
        std::future::pending().await
    }

    fn chance(&mut self) -> f64 {
        0.0
    }
}

type Reply = Result<ModelAnswer, Failure>;

/// A model that answers from a script, and from another one where it has no tools.
struct Scripted {
    name: &'static str,
    context_tokens: u64,
    script: Mutex<VecDeque<Reply>>,
    aside: Mutex<VecDeque<Reply>>,
    asked: Mutex<Vec<Request>>,
}

impl Scripted {
    fn new(name: &'static str, script: Vec<Reply>, aside: Vec<Reply>) -> Arc<Self> {
        let (script, aside) = (Mutex::new(script.into()), Mutex::new(aside.into()));
        Arc::new(Self { name, context_tokens: 1_000_000, script, aside, asked: Mutex::default() })
    }
}

#[async_trait]
impl Model for Scripted {
    fn name(&self) -> &str {
        self.name
    }

    fn context_tokens(&self) -> u64 {
        self.context_tokens
    }

    fn sight(&self) -> Sight {
        Sight::Blind
    }

    async fn ask(&self, request: &Request) -> Reply {
        self.asked.lock().unwrap().push(request.clone());
        let script = if request.tools.is_empty() { &self.aside } else { &self.script };
        script.lock().unwrap().pop_front().expect("the script goes on")
    }
}

fn answer(block: AnswerBlock) -> Reply {
    Ok(ModelAnswer {
        model: "made/up".into(),
        blocks: vec![block],
        stop: StopCause::ToolCalls,
        usage: Usage::default(),
        cost_usd: None,
        duration_ms: 1,
    })
}

fn text(text: &str) -> Reply {
    answer(AnswerBlock::Text { text: text.into() })
}

fn call(name: &str, arguments: serde_json::Value) -> Reply {
    let (id, name, arguments) = ("c".into(), name.into(), arguments.to_string());
    answer(AnswerBlock::ToolCall { id, name, arguments })
}

fn finish() -> Reply {
    call("finish", json!({ "outcome": "done", "summary": "ok" }))
}

fn fails(error: ModelError) -> Reply {
    Err(error.into())
}

fn busy() -> ModelError {
    ModelError::Busy { status: 429, message: "slow down".into(), retry_after: None }
}

async fn driven(spec: JobSpec, models: &[&Arc<Scripted>], context_tokens: u64) -> Desk {
    let mut desk = Desk::with(spec);
    let mut mind = TaskMind::new(context_tokens, Budget::default(), Vec::new());
    let line: Line = models.iter().map(|model| -> Arc<dyn Model> { (*model).clone() }).collect();
    let ended = drive(&mut mind, &line, &mut desk).await;
    assert_eq!(ended, Ok(Ok(())));
    desk
}

#[tokio::test]
async fn what_is_looked_up_is_not_heard_again() {
    let model = Scripted::new(
        "made/up",
        vec![
            call("shell", json!({ "command": "ls" })),
            call("recall", json!({ "query": "xylophone" })),
            call("read_history", json!({ "from": 1, "to": 2 })),
            finish(),
        ],
        Vec::new(),
    );
    let desk = driven(spec(), &[&model], 1_000_000).await;
    let answers = desk.answers();
    assert!(answers[0].contains("a Xylophone lines of it"), "{}", answers[0]);
    assert!(answers[1].starts_with("[entry 1] the task: Do it.\n[entry 2] you:"), "{}", answers[1]);
}

#[tokio::test]
async fn a_models_summary_is_what_it_goes_on_with() {
    // Results too short to be cut, so that nothing but a summary helps.
    let mut script: Vec<Reply> =
        (0..200).map(|n| call("shell", json!({ "command": format!("echo {n}") }))).collect();
    script.push(finish());
    let aside = (0..20).map(|n| text(&format!("THE SUMMARY NUMBER {n}"))).collect();
    let model = Scripted::new("made/up", script, aside);
    let desk = driven(spec(), &[&model], 40_000).await;
    let asked = model.asked.lock().unwrap();
    let summaries: Vec<usize> = asked
        .iter()
        .enumerate()
        .filter_map(|(at, request)| request.tools.is_empty().then_some(at))
        .collect();
    assert!(summaries.len() > 1, "{}", desk.log.len());
    for (n, at) in summaries.iter().enumerate() {
        let Message::User(shown) = &asked[*at].messages[0] else { panic!() };
        assert!(shown.contains("a Xylophone"), "{shown}");
        // The one before is among what the next one is made of.
        let before = n.checked_sub(1).map(|n| format!("THE SUMMARY NUMBER {n}"));
        assert!(before.is_none_or(|words| shown.contains(&words)), "{shown}");
        let Message::User(note) = &asked[at + 1].messages[1] else { panic!() };
        assert!(note.contains(&format!("THE SUMMARY NUMBER {n}")), "{note}");
    }
}

#[tokio::test]
async fn memories_are_asked_for_again_when_the_model_is_busy() {
    let kept = vec![fails(busy()), text(r#"["Tests run with make."]"#)];
    let model = Scripted::new("made/up", vec![finish()], kept);
    let spec = JobSpec { project: Some("shop".into()), ..spec() };
    let desk = driven(spec, &[&model], 1_000_000).await;
    assert_eq!(desk.failures(), [("made/up", "model_busy", None)]);
    let Some(EventBody::MemoryKept { texts, .. }) = desk.log.last().map(|event| &event.body) else {
        panic!("{:?}", desk.log.last())
    };
    assert_eq!(*texts, ["Tests run with make."]);
}

#[tokio::test]
async fn a_task_whose_memories_nobody_names_is_done_all_the_same() {
    let refused = ModelError::KeyRefused { status: 401, message: String::new() };
    let model = Scripted::new("made/up", vec![finish()], vec![fails(refused)]);
    let spec = JobSpec { project: Some("shop".into()), ..spec() };
    let desk = driven(spec, &[&model], 1_000_000).await;
    let last = desk.log.last().map(|event| &event.body);
    assert!(matches!(last, Some(EventBody::MemoryKept { texts, .. }) if texts.is_empty()));
}

#[tokio::test]
async fn what_a_broken_answer_cost_is_written_down_and_the_next_model_goes_on() {
    let usage = Some(Usage { input: 700, output: 3, ..Usage::default() });
    let refused = ModelError::Refused { status: 400, message: "no".into() };
    let broken = Err(Failure { error: refused, usage, cost_usd: Some(0.5) });
    let first = Scripted::new("made/up", vec![broken], Vec::new());
    let second = Scripted::new("made/too", vec![finish()], Vec::new());
    let desk = driven(spec(), &[&first, &second], 1_000_000).await;
    assert_eq!(desk.failures(), [("made/up", "model_refused", usage)]);
    assert_eq!((first.asked.lock().unwrap().len(), second.asked.lock().unwrap().len()), (1, 1));
}
