//! A mind that works on a task with a model: the loop as a pure state machine.
//!
//! [`TaskMind::take_in`] folds the job's events, whoever wrote them, and [`TaskMind::next`] says
//! what to do then. So a worker that takes a job over knows exactly what its predecessor knew, and
//! all of this can be tried without a clock or a network.

mod budget;
mod prompt;
mod results;
mod stuck;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use bellglass_protocol::event::{Event, EventBody, JobError};
use bellglass_protocol::job::{Budget, PlanMode};
use bellglass_protocol::model::{AnswerBlock, ModelAnswer, StopCause, TaskOutcome};
use bellglass_protocol::step::StepOutcome;
use bellglass_protocol::tool::ToolCall;
use jiff::Timestamp;

use self::budget::Spent;
use self::stuck::{Turn, Verdict, Watch};
use crate::context::compaction::{Draft, Room};
use crate::context::{Context, Entry};
use crate::mind::{Effect, Lookup, Mind};
use crate::model::{Request, ToolDefinition};
use crate::tokens::{Calibration, count};
use crate::tools::own::OwnCall;
use crate::tools::{self, Understood};

/// Works on one task.
pub struct TaskMind {
    system: Arc<str>,
    tools: Arc<[ToolDefinition]>,
    /// Instructions and tools, by our own count.
    fixed_tokens: u64,
    /// What the model reads at the most, in its own tokens.
    context_tokens: u64,
    budget: Budget,
    spent: Spent,
    calibration: Calibration,
    /// What was learnt about `context_tokens` from a model that refused.
    learnt_tokens: Option<u64>,
    state: State,
}

/// What is gone when the sandbox is lost and the task begins again.
#[derive(Default)]
struct State {
    conversation: Arc<str>,
    context: Context,
    /// Calls of the last answer that have no result yet, in order.
    pending: VecDeque<PendingCall>,
    /// Messages that wait until no call is without a result.
    waiting: Vec<(u64, String)>,
    last_step: u32,
    watch: Watch,
    /// The last answer called nothing and nobody has said so.
    talked: Option<StopCause>,
    /// What the calls of this turn did, for the watch.
    turn: TurnSoFar,
    paused: bool,
    /// The question that the user has not answered.
    question: Option<String>,
    /// The pause was for a question or a plan, and the user has said something to it.
    answered: bool,
    review: Review,
    end: Option<Result<(), JobError>>,
}

/// Where the user's approval of the plan stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Review {
    #[default]
    NotWanted,
    /// There is no plan yet that the user could approve.
    Wanted,
    /// The user looks at it.
    Shown,
}

#[derive(Default)]
struct TurnSoFar {
    actions: Vec<String>,
    results: Vec<String>,
    words: Vec<String>,
    mistakes: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
struct PendingCall {
    id: String,
    name: String,
    arguments: String,
    understood: Understood,
    /// The step that runs it, once it does.
    step: Option<u32>,
}

impl TaskMind {
    /// `context_tokens` is what the model reads at the most.
    pub fn new(context_tokens: u64, budget: Budget) -> Self {
        let tools = tools::definitions();
        let tool_tokens = |tool: &ToolDefinition| {
            count(&tool.name) + count(&tool.description) + count(&tool.parameters.to_string())
        };
        let fixed_tokens = count(prompt::SYSTEM) + tools.iter().map(tool_tokens).sum::<u64>();
        Self {
            system: prompt::SYSTEM.into(),
            tools: tools.into(),
            fixed_tokens,
            context_tokens,
            budget,
            spent: Spent::default(),
            calibration: Calibration::default(),
            learnt_tokens: None,
            state: State::default(),
        }
    }

    /// The conversation as it stands.
    pub fn context(&self) -> &Context {
        &self.state.context
    }

    fn request(&self) -> Request {
        Request {
            system: self.system.clone(),
            tools: self.tools.clone(),
            messages: self.state.context.messages(),
            most_output: None,
            conversation: self.state.conversation.clone(),
        }
    }

    /// How large the conversation may be, by our own count; `None` if nothing would fit.
    fn room(&self) -> Option<Room> {
        let limit = self.learnt_tokens.unwrap_or(u64::MAX).min(self.context_tokens);
        // A share of it is for the answer.
        let readable = self.calibration.invert(limit - limit / 5);
        let most = readable.checked_sub(self.fixed_tokens)?;
        Some(Room { most, target: most * 6 / 10, summary: (most / 8).min(8_000) })
    }

    /// What to do about a conversation that has grown too long, if it has.
    fn compact(&self) -> Option<Effect> {
        let Some(room) = self.room() else {
            let message = format!(
                "the model reads {} tokens at the most, which is not enough for the instructions \
                 and the tools; choose a model with a larger context",
                self.learnt_tokens.unwrap_or(self.context_tokens)
            );
            return Some(Effect::Finish(Err(error("context_exhausted", message))));
        };
        if self.state.context.tokens() <= room.most {
            return None;
        }
        let draft = Draft::new(&self.state.context, room);
        let request = draft.to_summarise.as_deref().map(|text| Request {
            system: prompt::SUMMARISE.into(),
            tools: [].into(),
            messages: Arc::new(vec![crate::model::Message::User(text.into())]),
            most_output: Some(room.summary.max(256)),
            conversation: self.state.conversation.clone(),
        });
        Some(Effect::Compact { draft: Box::new(draft), request })
    }

    /// What to do with the next call that has no result.
    fn next_call(&self, call: &PendingCall, now: Timestamp) -> Effect {
        let answer = |output: String, failed| EventBody::ToolAnswered {
            call_id: call.id.clone(),
            tool: call.name.chars().take(64).collect(),
            output,
            failed,
        };
        let look =
            |lookup| Effect::Look { call_id: call.id.clone(), tool: call.name.clone(), lookup };
        match &call.understood {
            Understood::Sandbox(tool_call)
                if self.state.review == Review::Wanted && !only_looks(tool_call) =>
            {
                let words = "the user has not approved a plan yet: call `plan` and wait. Until \
                             then only read_file, list_files and search_files work";
                Effect::Record(vec![answer(words.into(), true)])
            }
            Understood::Sandbox(tool_call) => {
                if call.step.is_none()
                    && let Some(error) = self.spent.exhausts(&self.budget, now)
                {
                    return Effect::Finish(Err(error));
                }
                let n = call.step.unwrap_or(self.state.last_step + 1);
                Effect::Perform { n, call: tool_call.clone() }
            }
            Understood::Mistake(message) => Effect::Record(vec![answer(message.clone(), true)]),
            Understood::Own(OwnCall::Plan(plan)) => {
                let mut events = vec![
                    EventBody::PlanUpdated { steps: plan.steps.clone() },
                    answer("The plan is written down and shown to the user.".into(), false),
                ];
                if self.state.review == Review::Wanted {
                    events.push(EventBody::Paused { by: "plan".into() });
                }
                Effect::Record(events)
            }
            Understood::Own(OwnCall::Recall(recall)) => look(Lookup::Recall(recall.clone())),
            Understood::Own(OwnCall::ReadHistory(read)) => look(Lookup::History(read.clone())),
            Understood::Own(OwnCall::ReadOutput(read)) => look(Lookup::Output(read.clone())),
            Understood::Own(OwnCall::AskUser(ask)) => {
                let (call_id, question) = (call.id.clone(), ask.question.clone());
                Effect::Record(vec![
                    EventBody::QuestionAsked { call_id, question },
                    EventBody::Paused { by: "question".into() },
                ])
            }
            Understood::Own(OwnCall::Finish(finish)) => {
                Effect::Record(vec![EventBody::TaskFinished {
                    outcome: finish.outcome,
                    summary: finish.summary.clone(),
                }])
            }
        }
    }

    fn take_answer(&mut self, seq: u64, answer: &ModelAnswer) {
        let counted = self.fixed_tokens + self.state.context.tokens();
        self.calibration.learn(counted, answer.usage.input);
        self.spent.models.add(&answer.usage, answer.cost_usd);
        let state = &mut self.state;
        state.context.add_answer(seq, &answer.blocks);
        state.turn = TurnSoFar::default();
        state.pending = answer.blocks.iter().filter_map(PendingCall::of).collect();
        if state.pending.is_empty() {
            state.talked = Some(answer.stop);
            state.watch.talked();
        }
    }
}

impl Mind for TaskMind {
    fn take_in(&mut self, event: &Event) {
        let seq = event.seq;
        match &event.body {
            EventBody::Scheduled { spec } => {
                self.state.conversation = event.job.to_string().into();
                if spec.plan == PlanMode::Review {
                    self.state.review = Review::Wanted;
                }
                self.state.context.add_note(seq, &prompt::first_message(spec));
            }
            EventBody::SandboxReady { .. } => {
                self.spent.since.get_or_insert(event.at);
            }
            EventBody::SandboxLost { .. } => self.state.begin_again(),
            EventBody::StepStarted { n, .. } => {
                self.spent.steps += u32::from(*n > self.state.last_step);
                self.state.last_step = *n;
                if let Some(call) = self.state.pending.front_mut() {
                    call.step = Some(*n);
                }
            }
            EventBody::StepFinished { n, outcome } => {
                self.spent.output += outcome.output_bytes;
                self.state.take_step(seq, *n, outcome);
            }
            EventBody::ModelAnswered { answer } => self.take_answer(seq, answer),
            EventBody::ModelFailed { error, retry_in_ms, .. } => {
                if error.code == "context_too_long" {
                    let now = self.fixed_tokens + self.state.context.tokens();
                    // So that a tenth less than this is what may be read.
                    self.learnt_tokens = Some(self.calibration.apply(now) * 9 / 8);
                } else if retry_in_ms.is_none() {
                    self.state.end = Some(Err(error.clone()));
                }
            }
            EventBody::ToolAnswered { call_id, output, failed, .. } => {
                self.state.take_tool_answer(seq, call_id, output, *failed);
            }
            EventBody::QuestionAsked { call_id, .. } => self.state.question = Some(call_id.clone()),
            EventBody::MessageReceived { text, .. } => self.state.take_message(seq, text),
            EventBody::NetworkChanged { network, .. } => {
                let text = format!("I changed what the sandbox can reach. It is now: {network}.");
                self.state.hear(seq, text);
            }
            EventBody::Paused { by } => {
                if by == "plan" && self.state.review == Review::Wanted {
                    self.state.review = Review::Shown;
                }
                self.state.paused = true;
                self.spent.pause(event.at);
            }
            EventBody::Resumed { .. } => {
                self.state.take_review(seq);
                self.state.paused = false;
                self.state.answered = false;
                self.spent.resume(event.at);
                if let Some(call_id) = self.state.question.take() {
                    let text = "The user gives no answer. Decide yourself.";
                    self.state.take_tool_answer(seq, &call_id, text, false);
                }
            }
            EventBody::ModelNudged { text } => {
                self.state.watch.warned();
                self.state.talked = None;
                self.state.context.add_note(seq, text);
            }
            EventBody::ContextCompacted { compaction } => {
                self.state.context.apply(compaction);
                if let Some(summary) = &compaction.summary
                    && let Some(usage) = &summary.usage
                {
                    self.spent.models.add(usage, summary.cost_usd);
                }
            }
            EventBody::TaskFinished { outcome, summary } => {
                self.state.end = Some(match outcome {
                    TaskOutcome::Done => Ok(()),
                    TaskOutcome::Impossible => Err(error("task_impossible", summary.clone())),
                });
            }
            EventBody::Claimed { .. }
            | EventBody::StepOutput { .. }
            | EventBody::NetworkConnection { .. }
            | EventBody::PlanUpdated { .. }
            | EventBody::CancelRequested { .. }
            | EventBody::ResultStored { .. }
            | EventBody::Concluded { .. }
            | EventBody::Finished { .. } => {}
        }
    }

    fn next(&self, now: Timestamp) -> Effect {
        let state = &self.state;
        if let Some(end) = &state.end {
            return Effect::Finish(end.clone());
        }
        // A step that runs is finished whatever else is wanted.
        if let Some(call) = state.pending.front()
            && call.step.is_some()
        {
            return self.next_call(call, now);
        }
        if state.answered {
            return Effect::Record(vec![EventBody::Resumed { by: "answer".into() }]);
        }
        if state.paused || state.question.is_some() {
            return Effect::Wait;
        }
        if let Some(call) = state.pending.front() {
            return self.next_call(call, now);
        }
        match state.watch.verdict() {
            Verdict::GoOn => {}
            Verdict::Warn(facts) => {
                return nudge(format!(
                    "[Reminder] You are going round in circles: {facts}. More of the same will end the \
                 task. Find out why it does not work and do something different, or call `finish` \
                 with the outcome `impossible` and say what stands in the way."
                ));
            }
            Verdict::Stuck(facts) => {
                let message = format!("the model was stuck, also after it was told: {facts}");
                return Effect::Finish(Err(error("stuck", message)));
            }
        }
        if let Some(stop) = state.talked {
            return nudge(reminder(stop).to_owned());
        }
        if let Some(error) = self.spent.exhausts(&self.budget, now) {
            return Effect::Finish(Err(error));
        }
        self.compact().unwrap_or_else(|| Effect::Ask(self.request()))
    }

    fn snapshot(&self) -> Option<&Context> {
        Some(&self.state.context)
    }
}

impl State {
    /// The task from its beginning: what was done in the lost sandbox is void.
    fn begin_again(&mut self) {
        let (paused, conversation) = (self.paused, self.conversation.clone());
        // What was approved stays so; what was only shown is shown again.
        let review = match self.review {
            Review::NotWanted => Review::NotWanted,
            Review::Wanted | Review::Shown => Review::Wanted,
        };
        let mut context = Context::default();
        if let Some(crate::model::Message::User(task)) = self.context.messages().first() {
            context.add_note(1, task);
        }
        *self = Self { paused, conversation, context, review, ..Self::default() };
    }

    fn take_step(&mut self, seq: u64, n: u32, outcome: &StepOutcome) {
        let Some(call) = self.pending.pop_front() else { return };
        let failed = outcome.status.is_failure();
        let file = match &call.understood {
            Understood::Sandbox(tool_call) if !failed => results::file_use(tool_call),
            _ => None,
        };
        let text = results::of_step(n, outcome, seq);
        self.context.add_result(Entry::new(seq, &call.id, &text, failed, file));
        self.turn.actions.push(format!("{} {}", call.name, call.arguments));
        self.turn.results.push(outcome.output.clone());
        self.turn.words.push(short_call(&call));
        self.after_result();
    }

    fn take_tool_answer(&mut self, seq: u64, call_id: &str, output: &str, failed: bool) {
        let is_next = self.pending.front().is_some_and(|call| call.id == call_id);
        let Some(call) = self.pending.pop_front_if(|_| is_next) else { return };
        let text = results::bounded(output, seq);
        self.context.add_result(Entry::new(seq, &call.id, &text, failed, None));
        if let Understood::Mistake(message) = &call.understood {
            self.turn.mistakes.push((call.name.clone(), message.clone()));
        } else {
            self.turn.actions.push(format!("{} {}", call.name, call.arguments));
            self.turn.results.push(output.to_owned());
            self.turn.words.push(short_call(&call));
        }
        self.after_result();
    }

    /// The user lets the job go on while the plan is shown: without a word that is an approval.
    fn take_review(&mut self, seq: u64) {
        if self.review != Review::Shown {
            return;
        }
        if self.answered {
            self.review = Review::Wanted;
            return;
        }
        self.review = Review::NotWanted;
        self.hear(seq, "I approve the plan. Go on.".to_owned());
    }

    /// Takes in what the user says, or lets it wait until no call is without a result.
    fn hear(&mut self, seq: u64, text: String) {
        if self.pending.is_empty() {
            self.add_message(seq, &text);
        } else {
            self.waiting.push((seq, text));
        }
    }

    fn take_message(&mut self, seq: u64, text: &str) {
        self.answered |= self.review == Review::Shown;
        match self.question.take() {
            Some(call_id) => {
                self.answered = true;
                self.take_tool_answer(seq, &call_id, &format!("The user answers: {text}"), false);
            }
            None => self.hear(seq, text.to_owned()),
        }
    }

    fn add_message(&mut self, seq: u64, text: &str) {
        self.context.add_note(seq, &format!("[Message from the user]\n{text}"));
        // Whoever is spoken to need not be reminded to go on.
        self.talked = None;
    }

    fn after_result(&mut self) {
        if !self.pending.is_empty() {
            return;
        }
        let turn = std::mem::take(&mut self.turn);
        match turn.mistakes.into_iter().next_back() {
            Some((tool, message)) if turn.actions.is_empty() => {
                self.watch.acted(Turn::Mistaken { tool, message });
            }
            _ => self.watch.acted(Turn::Acted {
                action: stuck::digest(turn.actions),
                result: stuck::digest(turn.results),
                words: turn.words.join(" and "),
            }),
        }
        for (seq, text) in std::mem::take(&mut self.waiting) {
            self.add_message(seq, &text);
        }
    }
}

impl PendingCall {
    fn of(block: &AnswerBlock) -> Option<Self> {
        let AnswerBlock::ToolCall { id, name, arguments } = block else { return None };
        let understood = tools::understand(name, arguments);
        let (id, name, arguments) = (id.clone(), name.clone(), arguments.clone());
        Some(Self { id, name, arguments, understood, step: None })
    }
}

/// Whether a call changes nothing.
fn only_looks(call: &ToolCall) -> bool {
    matches!(call, ToolCall::ReadFile(_) | ToolCall::ListFiles(_) | ToolCall::SearchFiles(_))
}

fn short_call(call: &PendingCall) -> String {
    let arguments: String = call.arguments.chars().take(200).collect();
    format!("`{} {arguments}`", call.name)
}

fn nudge(text: String) -> Effect {
    Effect::Record(vec![EventBody::ModelNudged { text }])
}

fn reminder(stop: StopCause) -> &'static str {
    match stop {
        StopCause::OutputLimit => {
            "[Reminder] Your answer was cut off because it was too long, and nothing of it was \
             done. Take a smaller step: write long files in several pieces."
        }
        StopCause::Refused => {
            "[Reminder] Nothing was done. If you will not do the task or a part of it, call \
             `finish` with the outcome `impossible` and say why; otherwise go on."
        }
        StopCause::Finished | StopCause::ToolCalls => {
            "[Reminder] You called no tool, so nothing was done. If the task is done and checked, \
             call `finish` with a summary; if you need something from the user, call `ask_user`; \
             otherwise go on with the next action."
        }
    }
}

fn error(code: &str, message: String) -> JobError {
    JobError { code: code.into(), message }
}
