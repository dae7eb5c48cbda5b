//! The rim of the loop: does what a mind decides, and lets it hear what came of it.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bellglass_protocol::event::{Event, EventBody, JobError};
use bellglass_protocol::model::{AnswerBlock, ModelAnswer, Summary, Usage};
use bellglass_protocol::tool::ToolCall;
use jiff::Timestamp;

use crate::context::Context;
use crate::history::{self, Reading, Search};
use crate::memory;
use crate::mind::{Effect, Lookup, Mind};
use crate::model::catalogue::Line;
use crate::model::pictures::{LoadedPicture, Picture, Pictures, Sight};
use crate::model::retry::{Attempts, Next};
use crate::model::{Failure, Live, Model, Request};

/// What a mind works on: a job's log, its sandbox, and whoever may stop it.
#[async_trait]
pub trait World: Send {
    /// Why the job cannot go on here at all. That a tool failed is not such a reason.
    type Stop: Send;

    /// Events after a number, in order; none if there are none yet. Each is heard once: what somebody
    /// asks for in them, such as to put the workspace back, is then done.
    async fn events_after(&mut self, seq: u64) -> Result<Vec<Event>, Self::Stop>;

    /// The same for events that were heard before. Nothing is done because of them.
    async fn look_back(&mut self, seq: u64) -> Result<Vec<Event>, Self::Stop>;

    async fn record(&mut self, bodies: Vec<EventBody>) -> Result<(), Self::Stop>;

    /// Runs a step to its end and records it.
    async fn perform(&mut self, n: u32, call: ToolCall) -> Result<(), Self::Stop>;

    /// All that a step wrote, as far as it is kept; `None` if there is no such step.
    async fn step_output(&mut self, n: u32) -> Result<Option<String>, Self::Stop>;

    /// A picture that a step gave, as a model can be shown it; `None` if it cannot.
    async fn picture(&mut self, picture: &Picture) -> Result<Option<LoadedPicture>, Self::Stop>;

    /// Has a tool that is not ours do something. That it fails is its result.
    async fn call_other(
        &mut self,
        tool: &str,
        arguments: &serde_json::Value,
    ) -> Result<OtherResult, Self::Stop>;

    /// What earlier tasks of a project left that is about something.
    async fn memories(&mut self, project: &str, about: &str) -> Result<Vec<String>, Self::Stop>;

    /// Keeps memories of a project. Returns those that were new, as they were kept.
    async fn keep_memories(
        &mut self,
        project: &str,
        texts: Vec<String>,
    ) -> Result<Vec<String>, Self::Stop>;

    /// Returns when there may be events after a number.
    async fn wait_for_event(&mut self, after: u64, time: JobTime) -> Result<(), Self::Stop>;

    /// Keeps the conversation as the model sees it, before it is made smaller. `seq` is the newest
    /// event in it.
    async fn keep_context(&mut self, context: &Context, seq: u64) -> Result<(), Self::Stop>;

    /// Returns when the job must stop, and why.
    async fn stopped(&self) -> Self::Stop;

    /// A number from 0 to 1, a different one each time.
    fn chance(&mut self) -> f64;
}

/// What the job's time does while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobTime {
    StandsStill,
    GoesOn,
}

/// What a tool that is not ours answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherResult {
    pub text: String,
    pub failed: bool,
}

/// Drives a job to its end.
pub async fn drive<W: World>(
    mind: &mut dyn Mind,
    models: &Line,
    world: &mut W,
) -> Result<Result<(), JobError>, W::Stop> {
    let mut heard = 0;
    // Which model of the line is asked: one that does not answer is not tried at every turn.
    let mut at = Attempts::default();
    let mut pictures = Album::default();
    loop {
        loop {
            let events = world.events_after(heard).await?;
            let Some(last) = events.last() else { break };
            heard = last.seq;
            events.iter().for_each(|event| mind.take_in(event));
        }
        match mind.next(Timestamp::now()) {
            Effect::Finish(conclusion) => return Ok(conclusion),
            Effect::Perform { n, call } => world.perform(n, call).await?,
            Effect::Record(bodies) => world.record(bodies).await?,
            Effect::Look { call_id, tool, lookup } => {
                let output = look(&lookup, world).await?;
                let failed = false;
                world
                    .record(vec![EventBody::ToolAnswered { call_id, tool, output, failed }])
                    .await?;
            }
            Effect::Ask(mut request) => {
                if models.iter().any(|model| model.sight() == Sight::Sees) {
                    request.pictures = pictures.load(request.pictures, world).await?;
                }
                ask(&request, models, &mut at, heard, world).await?;
            }
            Effect::Compact { draft, request } => {
                let summary = match request {
                    None => None,
                    Some(request) => match ask_aside(&request, models, &mut at, world).await? {
                        None => continue,
                        // That no model writes one is no reason to end: one is put together without it.
                        Some(Aside { text, usage, cost_usd }) => {
                            Some(Summary { through: 0, text, usage, cost_usd })
                        }
                    },
                };
                if let Some(context) = mind.snapshot() {
                    world.keep_context(context, heard).await?;
                }
                match draft.complete(summary) {
                    Ok(compaction) => {
                        let compaction = Box::new(compaction);
                        world.record(vec![EventBody::ContextCompacted { compaction }]).await?;
                    }
                    Err(error) => {
                        let (code, message) = ("context_exhausted".into(), error.to_string());
                        return Ok(Err(JobError { code, message }));
                    }
                }
            }
            Effect::CallOther { call_id, tool, arguments } => {
                let started = EventBody::ToolStarted {
                    call_id: call_id.clone(),
                    tool: tool.clone(),
                    arguments: arguments.to_string(),
                };
                world.record(vec![started]).await?;
                let OtherResult { text, failed } = world.call_other(&tool, &arguments).await?;
                world
                    .record(vec![EventBody::ToolAnswered { call_id, tool, output: text, failed }])
                    .await?;
            }
            Effect::Remember { project, about } => {
                let texts = world.memories(&project, &about).await?;
                world.record(vec![EventBody::MemoryRecalled { project, texts }]).await?;
            }
            Effect::Extract { project, request } => {
                let Some(said) = ask_aside(&request, models, &mut at, world).await? else {
                    continue;
                };
                let Aside { text, usage, cost_usd } = said;
                // No answer, or one that makes no sense, keeps nothing.
                let texts = world.keep_memories(&project, memory::read(&text)).await?;
                let kept = EventBody::MemoryKept { project, texts, usage, cost_usd };
                world.record(vec![kept]).await?;
            }
            Effect::Wait => world.wait_for_event(heard, JobTime::StandsStill).await?,
            Effect::Idle => world.wait_for_event(heard, JobTime::GoesOn).await?,
        }
    }
}

/// The pictures that the last request was sent with. Nearly all of them go with the next one too.
#[derive(Default)]
struct Album(Arc<HashMap<Arc<str>, Arc<LoadedPicture>>>);

impl Album {
    async fn load<W: World>(
        &mut self,
        wanted: Pictures,
        world: &mut W,
    ) -> Result<Pictures, W::Stop> {
        let mut loaded = HashMap::new();
        for picture in wanted.names().iter() {
            let found = match self.0.get(&picture.artifact) {
                Some(known) => Some(known.clone()),
                None => world.picture(picture).await?.map(Arc::new),
            };
            loaded.extend(found.map(|found| (picture.artifact.clone(), found)));
        }
        self.0 = Arc::new(loaded);
        Ok(wanted.with(self.0.clone()))
    }
}

/// Asks once. A failure is recorded, and waited out if there is another attempt; the mind then decides
/// anew, so that neither a budget nor a pause waits for a model that does not answer. The failure after
/// which nobody is asked again is recorded without a time to wait.
async fn ask<W: World>(
    request: &Request,
    models: &Line,
    at: &mut Attempts,
    heard: u64,
    world: &mut W,
) -> Result<(), W::Stop> {
    let Some(model) = models.get(at.model) else { return Ok(()) };
    let failure = match ask_aloud(&**model, request, world).await? {
        Ok(answer) => {
            *at = at.answered();
            let answer = Box::new(answer);
            return world
                .record(vec![EventBody::ModelAnswered { answer, heard: Some(heard) }])
                .await;
        }
        Err(failure) => failure,
    };
    tracing::debug!(model = model.name(), %failure, "a model did not answer");
    match at.after(&failure.error, models.len(), world.chance()) {
        Next::GiveUp => {
            *at = at.answered();
            world.record(vec![failed(model.name(), &failure, None)]).await
        }
        Next::Wait(time, again) => {
            *at = again;
            world.record(vec![failed(model.name(), &failure, Some(time))]).await?;
            rest(time, world).await
        }
    }
}

/// Waits before a model is asked again.
async fn rest<W: World>(time: Duration, world: &W) -> Result<(), W::Stop> {
    tokio::select! {
        () = tokio::time::sleep(time) => Ok(()),
        stop = world.stopped() => Err(stop),
    }
}

/// How often the words of an answer that is not whole yet are written down.
const SAYING: Duration = Duration::from_millis(400);

/// Asks once, and writes down what the model says while it does.
async fn ask_aloud<W: World>(
    model: &dyn Model,
    request: &Request,
    world: &mut W,
) -> Result<Result<ModelAnswer, Failure>, W::Stop> {
    let (listener, mut said) = tokio::sync::mpsc::unbounded_channel::<String>();
    let request = Request { live: Live::to(listener), ..request.clone() };
    let mut asking = std::pin::pin!(model.ask(&request));
    let mut rhythm = tokio::time::interval_at(tokio::time::Instant::now() + SAYING, SAYING);
    rhythm.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            asked = &mut asking => return Ok(asked),
            stop = world.stopped() => return Err(stop),
            _ = rhythm.tick() => {
                let mut text = String::new();
                while let Ok(piece) = said.try_recv() {
                    text.push_str(&piece);
                }
                if !text.is_empty() {
                    world.record(vec![EventBody::ModelSaid { text }]).await?;
                }
            }
        }
    }
}

/// What a model says that is not asked to work on its task but about it.
#[derive(Default)]
struct Aside {
    /// Nothing where no model answered.
    text: String,
    usage: Option<Usage>,
    cost_usd: Option<f64>,
}

/// Asks once for a text about the task. A failure is treated as that of any other question, but the task
/// does not end because of it: after the last one there are no words. `None` if it is to be asked for
/// again, if the mind still wants it then.
async fn ask_aside<W: World>(
    request: &Request,
    models: &Line,
    at: &mut Attempts,
    world: &mut W,
) -> Result<Option<Aside>, W::Stop> {
    let Some(model) = models.get(at.model) else { return Ok(Some(Aside::default())) };
    let asked = tokio::select! {
        asked = model.ask(request) => asked,
        stop = world.stopped() => return Err(stop),
    };
    let failure = match asked {
        Ok(answer) => {
            *at = at.answered();
            let (usage, cost_usd) = (Some(answer.usage), answer.cost_usd);
            return Ok(Some(Aside { text: text_of(&answer), usage, cost_usd }));
        }
        Err(failure) => failure,
    };
    tracing::warn!(model = model.name(), %failure, "the model said nothing about its task");
    match at.after(&failure.error, models.len(), world.chance()) {
        Next::GiveUp => {
            *at = at.answered();
            let Failure { usage, cost_usd, .. } = failure;
            Ok(Some(Aside { text: String::new(), usage, cost_usd }))
        }
        Next::Wait(time, again) => {
            *at = again;
            world.record(vec![failed(model.name(), &failure, Some(time))]).await?;
            rest(time, world).await?;
            Ok(None)
        }
    }
}

fn text_of(answer: &ModelAnswer) -> String {
    let texts = answer.blocks.iter().filter_map(|block| match block {
        AnswerBlock::Text { text } => Some(text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

fn failed(model: &str, failure: &Failure, wait: Option<Duration>) -> EventBody {
    let Failure { error, usage, cost_usd } = failure;
    EventBody::ModelFailed {
        model: model.into(),
        error: JobError { code: error.code().into(), message: error.to_string() },
        retry_in_ms: wait.map(|wait| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)),
        usage: *usage,
        cost_usd: *cost_usd,
    }
}

async fn look<W: World>(lookup: &Lookup, world: &mut W) -> Result<String, W::Stop> {
    match lookup {
        Lookup::Recall(recall) => {
            let mut search = Search::new(&recall.query);
            let mut after = 0;
            loop {
                let events = world.look_back(after).await?;
                let Some(last) = events.last() else { return Ok(search.finish()) };
                after = last.seq;
                events.iter().for_each(|event| search.look_at(event));
            }
        }
        Lookup::History(read) => {
            let mut reading = Reading::from(read.start.unwrap_or_default());
            let to = read.to.unwrap_or(read.from);
            let mut after = read.from.saturating_sub(1);
            'pages: loop {
                let events = world.look_back(after).await?;
                let Some(last) = events.last() else { break };
                after = last.seq;
                for event in &events {
                    if event.seq > to || !reading.take(event) {
                        break 'pages;
                    }
                }
            }
            Ok(reading.finish())
        }
        Lookup::Output(read) => Ok(match world.step_output(read.step).await? {
            Some(text) => match read.start {
                Some(start) => history::bytes(&text, start),
                None => history::lines(&text, read.offset.unwrap_or(1), read.limit.unwrap_or(200)),
            },
            None => format!("there is no step {} so far", read.step),
        }),
    }
}
