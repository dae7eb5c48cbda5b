//! A mind that works on a task with a model: the loop as a pure state machine.
//!
//! [`TaskMind::take_in`] folds the job's events, whoever wrote them, and [`TaskMind::next`] says
//! what to do then. So a worker that takes a job over knows exactly what its predecessor knew, and
//! all of this can be tried without a clock or a network.

mod budget;
mod pictures;
mod prompt;
mod results;
mod state;
mod stuck;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use bellglass_protocol::approval::{Approval, Wish, is_named};
use bellglass_protocol::event::{Event, EventBody, JobError};
use bellglass_protocol::job::{Budget, PlanMode};
use bellglass_protocol::model::{AnswerBlock, ModelAnswer, StopCause, TaskOutcome};
use bellglass_protocol::tool::ToolCall;
use jiff::Timestamp;

use self::budget::Spent;
use self::state::{Consent, PendingCall, Review, State, TurnSoFar};
use self::stuck::Verdict;
use crate::context::Context;
use crate::context::compaction::{Draft, Room};
use crate::mind::{Effect, Lookup, Mind};
use crate::model::pictures::Pictures;
use crate::model::{Live, Message, Request, ToolDefinition};
use crate::tokens::{Calibration, count};
use crate::tools::own::OwnCall;
use crate::tools::{self, Understood};

/// Works on one task.
pub struct TaskMind {
    system: Arc<str>,
    tools: Arc<[ToolDefinition]>,
    /// The tools among them that are not ours.
    others: Vec<ToolDefinition>,
    /// Tools whose calls wait for the user's word.
    approve: Vec<String>,
    /// Whose memories are read and added to.
    project: Option<String>,
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

impl TaskMind {
    /// `context_tokens` is what the model reads at the most; `others` are tools that are not ours.
    pub fn new(context_tokens: u64, budget: Budget, others: Vec<ToolDefinition>) -> Self {
        let mut tools = tools::definitions();
        tools.extend(others.iter().cloned());
        let tool_tokens = |tool: &ToolDefinition| {
            count(&tool.name) + count(&tool.description) + count(&tool.parameters.to_string())
        };
        let fixed_tokens = count(prompt::SYSTEM) + tools.iter().map(tool_tokens).sum::<u64>();
        Self {
            system: prompt::SYSTEM.into(),
            tools: tools.into(),
            others,
            approve: Vec::new(),
            project: None,
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
            pictures: Pictures::named(self.state.context.pictures()),
            live: Live::default(),
        }
    }

    /// How large the conversation may be, by our own count; `None` if nothing would fit.
    fn room(&self) -> Option<Room> {
        let limit = self.learnt_tokens.unwrap_or(u64::MAX).min(self.context_tokens);
        // A share of it is for the answer.
        let readable = self.calibration.invert(limit - limit / 5);
        let most = readable.checked_sub(self.fixed_tokens)?;
        let (target, summary) = (most / 10 * 6, (most / 8).min(8_000));
        let context = &self.state.context;
        if !pictures::are_too_many(&context.pictures()) {
            return Some(Room { most, target, summary, pictures: usize::MAX });
        }
        // If there is room for words, no more of them goes than has to.
        let less = context.tokens() * 9 / 10;
        let target = if context.tokens() > most { target } else { less };
        Some(Room { most: most.min(less), target, summary, pictures: pictures::KEPT })
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
        if self.state.context.tokens() <= room.most && room.pictures == usize::MAX {
            return None;
        }
        let draft = Draft::new(&self.state.context, room);
        let request = draft.to_summarise.as_deref().map(|text| Request {
            system: prompt::SUMMARISE.into(),
            tools: [].into(),
            messages: Arc::new(vec![Message::User(text.into())]),
            most_output: Some(room.summary.max(256)),
            conversation: self.state.conversation.clone(),
            pictures: Pictures::default(),
            live: Live::default(),
        });
        Some(Effect::Compact { draft: Box::new(draft), request })
    }

    /// What to do before a call is made that the user wants to allow, unless that is done.
    fn consent(&self, call: &PendingCall) -> Option<Effect> {
        match &call.consent {
            Consent::NotAsked if is_named(&self.approve, &call.name) => {
                let (name, arguments) = (call.name.clone(), call.arguments.clone());
                // A model may give the same id to calls of different answers.
                let id = format!("{}-{}", self.state.answer_seq, call.id);
                let approval = Approval { id, wish: Wish::Tool { name, arguments } };
                Some(Effect::Record(vec![
                    EventBody::ApprovalRequested { approval },
                    EventBody::Paused { by: "approval".into() },
                ]))
            }
            Consent::NotAsked | Consent::Given => None,
            Consent::Asked(_) => Some(Effect::Wait),
            Consent::Refused(words) => {
                let words = match words.as_str() {
                    "" => String::new(),
                    words => format!(" The user says: {words}"),
                };
                let output =
                    format!("the user did not allow this call, so it was not made.{words}");
                Some(Effect::Record(vec![EventBody::ToolAnswered {
                    call_id: call.id.clone(),
                    tool: call.name.chars().take(64).collect(),
                    output,
                    failed: true,
                }]))
            }
        }
    }

    /// What to do when the task is over and something may be worth keeping.
    fn extract(&self, now: Timestamp) -> Option<Effect> {
        let project = self.project.clone()?;
        if self.state.extracted || self.spent.forbids_question(&self.budget, now).is_some() {
            return None;
        }
        let words = summary_words(&self.state.context);
        let request = Request {
            system: prompt::EXTRACT.into(),
            tools: [].into(),
            messages: Arc::new(vec![Message::User(words.into())]),
            most_output: Some(1500),
            conversation: self.state.conversation.clone(),
            pictures: Pictures::default(),
            live: Live::default(),
        };
        Some(Effect::Extract { project, request })
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
                Effect::Record(vec![answer(NO_PLAN_YET.into(), true)])
            }
            // What it would do is known to its server only.
            Understood::Other(_) if self.state.review == Review::Wanted => {
                Effect::Record(vec![answer(NO_PLAN_YET.into(), true)])
            }
            Understood::Other(_) if call.started => {
                let words = "the call was interrupted, and nobody knows whether it was done. Look \
                             before you make it again";
                Effect::Record(vec![answer(words.into(), true)])
            }
            Understood::Other(arguments) => {
                if let Some(effect) = self.consent(call) {
                    return effect;
                }
                if let Some(error) = self.spent.forbids_step(&self.budget, now) {
                    return Effect::Finish(Err(error));
                }
                let (call_id, tool) = (call.id.clone(), call.name.clone());
                Effect::CallOther { call_id, tool, arguments: arguments.clone() }
            }
            Understood::Sandbox(tool_call) => {
                if call.step.is_none()
                    && let Some(effect) = self.consent(call)
                {
                    return effect;
                }
                if call.step.is_none()
                    && let Some(error) = self.spent.forbids_step(&self.budget, now)
                {
                    return Effect::Finish(Err(error));
                }
                let n = call.step.unwrap_or(self.state.last_step + 1);
                Effect::Perform { n, call: tool_call.clone().for_models() }
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
            Understood::Own(OwnCall::Finish(_)) if self.state.unheard => {
                let words = "the user said something that you had not heard when you called this: see \
                             the messages. Do what they ask, and call `finish` when that is done too";
                Effect::Record(vec![answer(words.into(), true)])
            }
            Understood::Own(OwnCall::Finish(finish)) => {
                Effect::Record(vec![EventBody::TaskFinished {
                    outcome: finish.outcome,
                    summary: finish.summary.clone(),
                }])
            }
        }
    }

    fn take_answer(&mut self, seq: u64, answer: &ModelAnswer, heard: Option<u64>) {
        let counted = self.fixed_tokens + self.state.context.tokens();
        self.calibration.learn(counted, answer.usage.input);
        self.spent.models.add(&answer.usage, answer.cost_usd);
        let state = &mut self.state;
        state.context.add_answer(seq, &answer.blocks);
        state.turn = TurnSoFar::default();
        let calls = answer.blocks.iter().filter_map(|block| PendingCall::of(block, &self.others));
        state.pending = calls.collect();
        if answer.stop == StopCause::OutputLimit
            && let Some(PendingCall { understood: Understood::Mistake(message), .. }) =
                state.pending.back_mut()
        {
            *message = CUT_OFF.to_owned();
        }
        state.answer_seq = seq;
        state.unheard = heard.is_some_and(|heard| state.spoken_to > heard);
        if state.pending.is_empty() {
            state.talked = Some(answer.stop);
            state.watch.talked();
        }
    }
}

/// What a model hears about a call that its answer broke off in. Those before it are made.
const CUT_OFF: &str = "this call was cut off because the answer was too long, and was not made; the calls \
                       before it were. Take a smaller step: write long files in several pieces";

/// What a model hears that wants to begin before its user has seen what it is about to do.
const NO_PLAN_YET: &str = "the user has not approved a plan yet: call `plan` and wait. Until then only \
                           read_file, list_files and search_files work";

/// What a model hears about the desktop while its user works with it.
const DESKTOP_TAKEN: &str = "I took over the desktop. Calls of computer, xdot and browser wait until \
                             I hand it back.";
const DESKTOP_RETURNED: &str = "The desktop is yours again. What it shows may have changed: take a \
                                screenshot before you go on with it.";

impl Mind for TaskMind {
    fn take_in(&mut self, event: &Event) {
        let seq = event.seq;
        match &event.body {
            EventBody::Scheduled { spec } => {
                self.state.conversation = event.job.to_string().into();
                self.approve.clone_from(&spec.approve);
                self.project.clone_from(&spec.project);
                if let Some(fork) = spec.fork.filter(|fork| fork.heard.is_some()) {
                    // All before this was another job; its budget and its pauses are not ours.
                    self.spent = Spent::default();
                    self.state.go_on_elsewhere(seq, &prompt::forked(spec, fork.step));
                } else {
                    self.state.context.add_note(seq, &prompt::first_message(spec));
                }
                if spec.plan == PlanMode::Review {
                    self.state.review = Review::Wanted;
                }
            }
            EventBody::SandboxReady { .. } => {
                self.spent.since.get_or_insert(event.at);
            }
            EventBody::SandboxLost { kept: None, .. } => self.state.begin_again(),
            EventBody::WorkspaceRestored { why, step, .. } => {
                self.state.take_restored(seq, *why);
                if let Some(words) = prompt::restored(*why, *step) {
                    self.state.note(seq, words);
                }
            }
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
            EventBody::ModelAnswered { answer, heard } => self.take_answer(seq, answer, *heard),
            EventBody::ModelFailed { error, retry_in_ms, usage, cost_usd, .. } => {
                self.spent.add_aside(usage.as_ref(), *cost_usd);
                if error.code == "context_too_long" {
                    let now = self.fixed_tokens + self.state.context.tokens();
                    // So that a tenth less than this is what may be read.
                    self.learnt_tokens = Some(self.calibration.apply(now) * 9 / 8);
                } else if retry_in_ms.is_none() {
                    self.state.end = Some(Err(error.clone()));
                }
            }
            EventBody::ToolAnswered { call_id, output, failed, .. } => {
                if let Some(PendingCall { understood: Understood::Other(_), .. }) =
                    self.state.pending.front()
                {
                    self.spent.output += output.len() as u64;
                }
                self.state.take_tool_answer(seq, call_id, output, *failed);
            }
            EventBody::ToolStarted { .. } => {
                self.spent.steps += 1;
                if let Some(call) = self.state.pending.front_mut() {
                    call.started = true;
                }
            }
            EventBody::ApprovalRequested { approval } => {
                if let (Wish::Tool { .. }, Some(call)) =
                    (&approval.wish, self.state.pending.front_mut())
                {
                    call.consent = Consent::Asked(approval.id.clone());
                }
            }
            EventBody::ApprovalDecided { id, decision, words, .. } => {
                self.state.take_decision(id, *decision, words.as_deref());
            }
            EventBody::MemoryRecalled { texts, .. } => {
                self.state.remembered = true;
                if !texts.is_empty() {
                    self.state.context.add_note(seq, &prompt::memories(texts));
                }
            }
            EventBody::MemoryKept { usage, cost_usd, .. } => {
                self.state.extracted = true;
                // The task may go on after it, if what it made is lost.
                self.spent.add_aside(usage.as_ref(), *cost_usd);
            }
            EventBody::QuestionAsked { call_id, .. } => self.state.question = Some(call_id.clone()),
            EventBody::MessageReceived { text, .. } => self.state.take_message(seq, text),
            EventBody::NetworkChanged { network, .. } => {
                let text = format!("I changed what the sandbox can reach. It is now: {network}.");
                self.state.hear(seq, text);
            }
            EventBody::DesktopTaken { .. } => self.state.hear(seq, DESKTOP_TAKEN.into()),
            EventBody::DesktopReturned { .. } => self.state.hear(seq, DESKTOP_RETURNED.into()),
            EventBody::Paused { by } => {
                if by == "plan" && self.state.review == Review::Wanted {
                    self.state.review = Review::Shown;
                }
                self.state.paused = true;
                self.spent.pause(event.at);
            }
            EventBody::Resumed { .. } => {
                self.state.take_review(seq);
                self.state.take_silence();
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
                self.state.concluded = true;
                self.state.end = Some(match outcome {
                    TaskOutcome::Done => Ok(()),
                    TaskOutcome::Impossible => Err(error("task_impossible", summary.clone())),
                });
            }
            EventBody::CheckpointStored { .. } => self.state.unkept = false,
            EventBody::CheckpointSkipped { .. } => self.state.unkept = true,
            EventBody::Claimed { .. }
            | EventBody::SandboxLost { kept: Some(_), .. }
            | EventBody::RestoreRequested { .. }
            | EventBody::RestoreFailed { .. }
            | EventBody::Released { .. }
            | EventBody::StepOutput { .. }
            | EventBody::ModelSaid { .. }
            | EventBody::McpConnected { .. }
            | EventBody::ToolUsed { .. }
            | EventBody::FileWritten { .. }
            | EventBody::FileDeleted { .. }
            | EventBody::LiveOpened { .. }
            | EventBody::NetworkConnection { .. }
            | EventBody::PlanUpdated { .. }
            | EventBody::CancelRequested { .. }
            | EventBody::ResultStored { .. }
            | EventBody::Concluded { .. }
            | EventBody::Finished { .. }
            | EventBody::Unknown(_) => {}
        }
    }

    fn next(&self, now: Timestamp) -> Effect {
        let state = &self.state;
        if let Some(end) = &state.end {
            let is_over = state.concluded;
            let extract = if is_over { self.extract(now) } else { None };
            return extract.unwrap_or_else(|| Effect::Finish(end.clone()));
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
                // What did not work is worth keeping too.
                let end = Effect::Finish(Err(error("stuck", message)));
                return self.extract(now).unwrap_or(end);
            }
        }
        if let Some(stop) = state.talked {
            return nudge(reminder(stop).to_owned());
        }
        if let Some(project) = &self.project
            && !state.remembered
        {
            let project = project.clone();
            return Effect::Remember { project, about: prompt::task_of(&self.state.context) };
        }
        if let Some(error) = self.spent.forbids_question(&self.budget, now) {
            return Effect::Finish(Err(error));
        }
        self.compact().unwrap_or_else(|| Effect::Ask(self.request()))
    }

    fn snapshot(&self) -> Option<&Context> {
        Some(&self.state.context)
    }
}

/// Whether a call changes nothing.
fn only_looks(call: &ToolCall) -> bool {
    matches!(call, ToolCall::ReadFile(_) | ToolCall::ListFiles(_) | ToolCall::SearchFiles(_))
}

/// The end of the conversation, from which something may be worth keeping.
fn summary_words(context: &Context) -> String {
    let mut words = Vec::new();
    let mut room: usize = 40_000;
    for message in context.messages().iter().rev() {
        let text = match message {
            Message::User(text) => format!("[user] {text}"),
            Message::Assistant(blocks) => {
                // What a provider thought is sealed and says nothing to others.
                let said = blocks.iter().filter(|it| !matches!(it, AnswerBlock::Reasoning { .. }));
                let said: Vec<&AnswerBlock> = said.collect();
                format!("[engineer] {}", serde_json::to_string(&said).unwrap_or_default())
            }
            Message::ToolResults(results) => {
                let texts = results.iter().map(|result| clipped(&result.text, 2000));
                format!("[results] {}", texts.collect::<Vec<_>>().join("\n"))
            }
        };
        let text = clipped(&text, 6000);
        if text.len() > room {
            break;
        }
        room -= text.len();
        words.push(text);
    }
    words.reverse();
    words.join("\n\n")
}

fn clipped(text: &str, most: usize) -> String {
    match text.len() <= most {
        true => text.to_owned(),
        false => format!("{} […]", &text[..text.floor_char_boundary(most)]),
    }
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
