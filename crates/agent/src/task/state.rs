//! Where a task stands, as far as it is gone when the sandbox is lost: the conversation, the calls that
//! have no result yet, and what the user is asked.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bellglass_protocol::approval::Decision;
use bellglass_protocol::event::{JobError, RestoreCause};
use bellglass_protocol::model::{AnswerBlock, StopCause};
use bellglass_protocol::step::StepOutcome;

use super::stuck::{Turn, Watch};
use super::{pictures, results};
use crate::context::{Context, Entry, FROM_THE_USER};
use crate::model::ToolDefinition;
use crate::model::pictures::Picture;
use crate::tools::own::OwnCall;
use crate::tools::{self, Understood};

/// What is gone when the sandbox is lost and the task begins again.
#[derive(Default)]
pub(super) struct State {
    pub(super) conversation: Arc<str>,
    pub(super) context: Context,
    /// The pictures of each entry that has some, also where the context has them no more.
    pub(super) pictures: BTreeMap<u64, Vec<Picture>>,
    /// Calls of the last answer that have no result yet, in order.
    pub(super) pending: VecDeque<PendingCall>,
    /// All that the user said, and the event in which it was said.
    pub(super) said: Vec<(u64, String)>,
    /// Messages that wait until no call is without a result.
    pub(super) waiting: Vec<(u64, String)>,
    pub(super) last_step: u32,
    pub(super) watch: Watch,
    /// The last answer called nothing and nobody has said so.
    pub(super) talked: Option<StopCause>,
    /// What the calls of this turn did, for the watch.
    pub(super) turn: TurnSoFar,
    pub(super) paused: bool,
    /// The question that the user has not answered.
    pub(super) question: Option<String>,
    /// The pause was for a question or a plan, and the user has said something to it.
    pub(super) answered: bool,
    pub(super) review: Review,
    /// The memories of the project were looked through.
    pub(super) remembered: bool,
    /// What is worth keeping of this task was asked for.
    pub(super) extracted: bool,
    pub(super) end: Option<Result<(), JobError>>,
    /// The model itself said that it is done.
    pub(super) concluded: bool,
    /// Files of the last steps are in the sandbox alone: no checkpoint has them.
    pub(super) unkept: bool,
    /// The event that the last answer is.
    pub(super) answer_seq: u64,
    /// The last thing that somebody said to the model.
    pub(super) spoken_to: u64,
    /// The user said something that the model did not know of when it gave its last answer.
    pub(super) unheard: bool,
}

/// Where the user's approval of the plan stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Review {
    #[default]
    NotWanted,
    /// There is no plan yet that the user could approve.
    Wanted,
    /// The user looks at it.
    Shown,
}

#[derive(Default)]
pub(super) struct TurnSoFar {
    pub(super) actions: Vec<String>,
    pub(super) results: Vec<String>,
    pub(super) words: Vec<String>,
    pub(super) mistakes: Vec<(String, String)>,
}

#[derive(Clone, Debug)]
pub(super) struct PendingCall {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) arguments: String,
    pub(super) understood: Understood,
    /// The step that runs it, once it does.
    pub(super) step: Option<u32>,
    /// A tool that is not the sandbox's was asked to do it.
    pub(super) started: bool,
    pub(super) consent: Consent,
}

/// Where the user's word about a call stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Consent {
    #[default]
    NotAsked,
    /// Under this name.
    Asked(String),
    Given,
    /// With what the user says to it.
    Refused(String),
}

impl State {
    /// The task from its beginning: what was done in the lost sandbox is void.
    pub(super) fn begin_again(&mut self) {
        let (paused, conversation) = (self.paused, self.conversation.clone());
        // A question of before is nobody's any more, so nothing is waited for.
        let answered = self.question.is_some();
        // What was approved stays so; what was only shown is shown again.
        let review = match self.review {
            Review::NotWanted => Review::NotWanted,
            Review::Wanted | Review::Shown => Review::Wanted,
        };
        let mut context = Context::default();
        if let Some(crate::model::Message::User(task)) = self.context.messages().first() {
            context.add_note(1, task);
        }
        // What the user said is as true as before.
        let said = std::mem::take(&mut self.said);
        for (seq, text) in &said {
            context.add_note(*seq, text);
        }
        let began = Self::default();
        *self = Self { paused, answered, conversation, context, review, said, ..began };
    }

    /// The task goes on in another job: what was under way there has no result here.
    pub(super) fn go_on_elsewhere(&mut self, seq: u64, words: &str) {
        let unmade = "not done: the conversation was taken up again at a point before this call";
        for call in std::mem::take(&mut self.pending) {
            self.context.add_result(Entry::new(seq, &call.id, unmade, true, None));
        }
        let waiting = std::mem::take(&mut self.waiting);
        let (conversation, context) =
            (self.conversation.clone(), std::mem::take(&mut self.context));
        let (last_step, remembered) = (self.last_step, self.remembered);
        *self = Self { conversation, context, last_step, remembered, ..Self::default() };
        for (seq, text) in waiting {
            self.context.add_note(seq, &text);
        }
        self.context.add_note(seq, words);
    }

    /// The workspace is what a checkpoint has of it. If a model said that it is done, of files that none has, that
    /// does not hold any more.
    pub(super) fn take_restored(&mut self, seq: u64, why: RestoreCause) {
        let is_lacking = std::mem::take(&mut self.unkept);
        match why {
            RestoreCause::Request => self.hear_of(seq),
            RestoreCause::SandboxLost
                if is_lacking && self.concluded && self.end == Some(Ok(())) =>
            {
                self.take_back_the_end(seq);
            }
            RestoreCause::SandboxLost | RestoreCause::Fork => {}
        }
    }

    fn take_back_the_end(&mut self, seq: u64) {
        let words = "not done: the sandbox was lost before the result was stored, and with it files that no \
                     checkpoint has. Do again what is missing, then call `finish`";
        for call in std::mem::take(&mut self.pending) {
            self.context.add_result(Entry::new(seq, &call.id, words, true, None));
        }
        (self.end, self.concluded, self.turn) = (None, false, TurnSoFar::default());
        // What is worth keeping is known anew when it is done.
        self.extracted = false;
        for (seq, text) in std::mem::take(&mut self.waiting) {
            self.add_note(seq, &text);
        }
    }

    pub(super) fn take_step(&mut self, seq: u64, n: u32, outcome: &StepOutcome) {
        let Some(call) = self.pending.pop_front() else { return };
        let failed = outcome.status.is_failure();
        let file = match &call.understood {
            Understood::Sandbox(tool_call) if !failed => results::file_use(tool_call),
            _ => None,
        };
        let text = results::of_step(n, outcome);
        let shown = pictures::of_step(outcome);
        if !shown.is_empty() {
            self.pictures.insert(seq, shown.clone());
        }
        let entry = Entry::new(seq, &call.id, &text, failed, file);
        self.context.add_result(entry.with_pictures(shown));
        self.turn.actions.push(format!("{} {}", call.name, call.arguments));
        self.turn.results.push(outcome.output.clone());
        self.turn.words.push(short_call(&call));
        self.after_result();
    }

    pub(super) fn take_tool_answer(&mut self, seq: u64, call_id: &str, output: &str, failed: bool) {
        let is_next = self.pending.front().is_some_and(|call| call.id == call_id);
        let Some(call) = self.pending.pop_front_if(|_| is_next) else { return };
        let text = results::bounded(output, seq);
        let again = match &call.understood {
            Understood::Own(OwnCall::ReadHistory(read)) => {
                let last = read.to.unwrap_or(read.from).max(read.from);
                let found = self.pictures.range(read.from..=last).flat_map(|(_, shown)| shown);
                found.take(pictures::MOST_AT_ONCE).cloned().collect()
            }
            _ => Vec::new(),
        };
        let entry = Entry::new(seq, &call.id, &text, failed, None);
        self.context.add_result(entry.with_pictures(again));
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
    pub(super) fn take_review(&mut self, seq: u64) {
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
    pub(super) fn hear(&mut self, seq: u64, text: String) {
        self.hear_of(seq);
        let text = format!("{FROM_THE_USER}{text}");
        self.said.push((seq, text.clone()));
        self.note(seq, text);
    }

    /// The user did something that the model does not know of yet: what comes while calls have no result
    /// is heard after them.
    pub(super) fn hear_of(&mut self, seq: u64) {
        self.spoken_to = seq;
        self.unheard |= !self.pending.is_empty();
    }

    /// The same for what nobody says.
    pub(super) fn note(&mut self, seq: u64, text: String) {
        if self.pending.is_empty() {
            self.add_note(seq, &text);
        } else {
            self.waiting.push((seq, text));
        }
    }

    pub(super) fn take_message(&mut self, seq: u64, text: &str) {
        self.answered |= self.review == Review::Shown;
        match self.question.take() {
            Some(call_id) => {
                self.answered = true;
                self.take_tool_answer(seq, &call_id, &format!("The user answers: {text}"), false);
                self.hear_of(seq);
            }
            None => self.hear(seq, text.to_owned()),
        }
    }

    /// Hears what the user says to the call that waits for it.
    pub(super) fn take_decision(&mut self, id: &str, decision: Decision, words: Option<&str>) {
        if let Some(call) = self.pending.front_mut()
            && call.consent == Consent::Asked(id.to_owned())
        {
            call.consent = match decision {
                Decision::Allow => Consent::Given,
                Decision::Refuse => Consent::Refused(words.unwrap_or_default().to_owned()),
            };
            self.answered = true;
            // What was to come after it was meant for another course of things.
            self.unheard |= decision == Decision::Refuse;
        }
    }

    /// The user lets the job go on without a word about the call: so it is not allowed.
    pub(super) fn take_silence(&mut self) {
        if let Some(call) = self.pending.front_mut()
            && let Consent::Asked(_) = call.consent
        {
            call.consent = Consent::Refused(String::new());
        }
    }

    fn add_note(&mut self, seq: u64, text: &str) {
        self.context.add_note(seq, text);
        // Whoever is spoken to need not be reminded to go on.
        self.talked = None;
    }

    pub(super) fn after_result(&mut self) {
        if !self.pending.is_empty() {
            return;
        }
        let turn = std::mem::take(&mut self.turn);
        match turn.mistakes.into_iter().next_back() {
            Some((tool, message)) if turn.actions.is_empty() => {
                self.watch.acted(Turn::Mistaken { tool, message });
            }
            _ => self.watch.acted(Turn::acted(&turn.actions, &turn.results, &turn.words)),
        }
        for (seq, text) in std::mem::take(&mut self.waiting) {
            self.add_note(seq, &text);
        }
    }
}

impl PendingCall {
    pub(super) fn of(block: &AnswerBlock, others: &[ToolDefinition]) -> Option<Self> {
        let AnswerBlock::ToolCall { id, name, arguments } = block else { return None };
        let understood = tools::understand(name, arguments, others);
        let (id, name, arguments) = (id.clone(), name.clone(), arguments.clone());
        let (step, started, consent) = (None, false, Consent::NotAsked);
        Some(Self { id, name, arguments, understood, step, started, consent })
    }
}

fn short_call(call: &PendingCall) -> String {
    let arguments: String = call.arguments.chars().take(200).collect();
    format!("`{} {arguments}`", call.name)
}
