//! What a job's mind works on: the job's log in the store, its sandbox, its artifacts, and the
//! reasons to stop.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};

use async_trait::async_trait;
use bellglass_agent::context::Context;
use bellglass_agent::mcp::Connected;
use bellglass_agent::model::pictures::{LoadedPicture, Picture};
use bellglass_agent::{JobTime, OtherResult, World};
use bellglass_protocol::event::{Event, EventBody, RestoreCause};
use bellglass_protocol::id::JobId;
use bellglass_protocol::step::StepOutcome;
use bellglass_protocol::tool::ToolCall;
use bellglass_protocol::wire::MAX_ATTACHMENT;
use bellglass_store::Change;
use bellglass_store::artifacts::ArtifactKey;
use bytes::Bytes;
use futures::StreamExt as _;
use serde_json::Value;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::clock::Clock;
use crate::control::{DesktopControl, needs_desktop};
use crate::hands::{HandsError, SandboxHands, gone, may_change_files};
use crate::memory::{self, Embedder};
use crate::past::{Past, Placed};
use crate::pictures;

pub(crate) struct JobWorld<'a> {
    hands: SandboxHands<'a>,
    control: &'a DesktopControl,
    changes: broadcast::Receiver<Change>,
    clock: &'a mut Clock,
    /// What the mind hears before the job's own log.
    past: Past,
    /// In which log and under which number each step's end stands, as far as the mind has heard.
    ends: BTreeMap<u32, (JobId, u64)>,
    /// The step to which somebody wants the workspace to go back.
    restore_wanted: Option<u32>,
    /// Somebody else than the mind did something that may have changed files.
    touched: bool,
    /// MCP servers whose tools the model may use.
    servers: Vec<Connected>,
    embedder: Option<&'a Embedder>,
}

/// Events in one page.
const PAGE: u32 = 200;

/// The most of a step's output that is looked through when a model wants lines of it.
const MOST_OUTPUT: u64 = 16 << 20;

#[async_trait]
impl World for JobWorld<'_> {
    type Stop = HandsError;

    async fn events_after(&mut self, seq: u64) -> Result<Vec<Event>, HandsError> {
        let page = self.page_after(seq).await?;
        if !page.is_empty() {
            return Ok(page);
        }
        // A step that an earlier worker began may run now, and is joined first.
        if self.hands.already_started.is_some() {
            return Ok(page);
        }
        // Nothing is under way now: the mind has heard all and has not decided yet.
        let is_touched = std::mem::take(&mut self.touched);
        let wanted = self.restore_wanted.take();
        match wanted {
            Some(step) => self.go_back(step).await?,
            None if is_touched => self.keep_what_others_did().await?,
            None => return Ok(page),
        }
        self.page_after(seq).await
    }

    async fn look_back(&mut self, seq: u64) -> Result<Vec<Event>, HandsError> {
        let page = self.read_page(seq).await?;
        Ok(page.into_iter().map(|placed| placed.event).collect())
    }

    async fn record(&mut self, bodies: Vec<EventBody>) -> Result<(), HandsError> {
        Ok(self.hands.log.append(bodies).await?)
    }

    async fn perform(&mut self, n: u32, call: ToolCall) -> Result<(), HandsError> {
        self.wait_for_desktop(&call).await?;
        self.hands.perform(n, call).await
    }

    async fn step_output(&mut self, n: u32) -> Result<Option<String>, HandsError> {
        let Some(outcome) = self.outcome(n).await? else { return Ok(None) };
        let Some(name) = outcome.full_output else {
            let both = outcome.stdout + &outcome.stderr;
            return Ok(Some(if both.is_empty() { outcome.output } else { both }));
        };
        let job = self.ends.get(&n).map_or(self.hands.log.job, |(job, _)| *job);
        let Some(key) = ArtifactKey::named(job, &name) else { return Ok(None) };
        let disk = |error: &dyn std::fmt::Display| HandsError::Disk(error.to_string());
        let found = self.hands.artifacts.get(&key, Some(0..MOST_OUTPUT)).await;
        let mut body = found.map_err(|error| disk(&error))?;
        let mut bytes = Vec::new();
        while let Some(piece) = body.stream.next().await {
            bytes.extend_from_slice(&piece.map_err(|error| disk(&error))?);
        }
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    async fn picture(&mut self, picture: &Picture) -> Result<Option<LoadedPicture>, HandsError> {
        let mut jobs = self.past.jobs().chain([self.hands.log.job]);
        let key = jobs.find_map(|job| ArtifactKey::named(job, &picture.artifact));
        let Some(key) = key else { return Ok(None) };
        // Whatever is wrong with it, a picture is nothing that a job fails of.
        let read = self.hands.artifacts.read(&key, MAX_ATTACHMENT).await;
        Ok(match read {
            Ok(content) => pictures::load(content).await,
            Err(error) => {
                tracing::warn!(job = %self.hands.log.job, %error, "a picture cannot be read");
                None
            }
        })
    }

    async fn call_other(
        &mut self,
        tool: &str,
        arguments: &Value,
    ) -> Result<OtherResult, HandsError> {
        let called = async {
            for server in &self.servers {
                if let Some(result) = server.call(tool, arguments).await {
                    return result;
                }
            }
            OtherResult { text: format!("there is no tool named `{tool}` any more"), failed: true }
        };
        tokio::select! {
            result = called => Ok(result),
            reason = self.hands.stop.stopped() => Err(HandsError::Stopped(reason)),
        }
    }

    async fn memories(&mut self, project: &str, about: &str) -> Result<Vec<String>, HandsError> {
        let log = &self.hands.log;
        Ok(memory::find(&*log.store, self.embedder, log.job, project, about).await?)
    }

    async fn keep_memories(
        &mut self,
        project: &str,
        texts: Vec<String>,
    ) -> Result<Vec<String>, HandsError> {
        let log = &self.hands.log;
        Ok(memory::keep(&*log.store, self.embedder, project, log.job, texts).await?)
    }

    async fn wait_for_event(&mut self, after: u64, time: JobTime) -> Result<(), HandsError> {
        if time == JobTime::StandsStill {
            self.clock.stand_still();
        }
        let job = self.hands.log.job;
        let after = after.saturating_sub(self.past.events());
        let news = async {
            loop {
                match self.changes.recv().await {
                    Ok(change) if change.job == job && change.seq > after => return,
                    Ok(_) => {}
                    // Something was missed, so the log is looked at again.
                    Err(RecvError::Lagged(_)) => return,
                    Err(RecvError::Closed) => std::future::pending().await,
                }
            }
        };
        tokio::select! {
            () = news => {}
            () = self.hands.sandbox.gone() => return Err(gone()),
            reason = self.hands.stop.stopped() => return Err(HandsError::Stopped(reason)),
        }
        if time == JobTime::StandsStill {
            self.clock.go_on();
        }
        Ok(())
    }

    async fn keep_context(&mut self, context: &Context, seq: u64) -> Result<(), HandsError> {
        let key = ArtifactKey::context_at(self.hands.log.job, seq);
        self.keep(&key, context).await
    }

    async fn stopped(&self) -> HandsError {
        HandsError::Stopped(self.hands.stop.stopped().await)
    }

    fn chance(&mut self) -> f64 {
        RandomState::new().hash_one(0) as f64 / u64::MAX as f64
    }
}

impl<'a> JobWorld<'a> {
    pub(crate) fn new(
        hands: SandboxHands<'a>,
        past: Past,
        control: &'a DesktopControl,
        changes: broadcast::Receiver<Change>,
        clock: &'a mut Clock,
        servers: Vec<Connected>,
        embedder: Option<&'a Embedder>,
    ) -> Self {
        let (ends, restore_wanted, touched) = (BTreeMap::new(), None, false);
        Self {
            hands,
            control,
            changes,
            clock,
            past,
            ends,
            restore_wanted,
            touched,
            servers,
            embedder,
        }
    }

    async fn read_page(&self, seq: u64) -> Result<Vec<Placed>, HandsError> {
        let log = &self.hands.log;
        let page = self.past.events_after(&*log.store, log.job, seq, PAGE).await?;
        // Whoever does not know what the mind would hear must not let it decide, whichever log it stands in.
        if page.iter().any(|placed| placed.event.body.is_misread()) {
            return Err(HandsError::Stopped(self.hands.stop.leave_to_newer()));
        }
        Ok(page)
    }

    /// The next page for the mind, and what it means for the sandbox.
    async fn page_after(&mut self, seq: u64) -> Result<Vec<Event>, HandsError> {
        let page = self.read_page(seq).await?;
        for Placed { event, job, seq } in &page {
            match &event.body {
                EventBody::StepFinished { n, .. } => _ = self.ends.insert(*n, (*job, *seq)),
                EventBody::SandboxLost { kept: None, .. } => self.ends.clear(),
                EventBody::SandboxLost { kept: Some(kept), .. } => {
                    self.ends.retain(|n, _| n <= kept);
                }
                EventBody::RestoreRequested { step, .. } if *job == self.hands.log.job => {
                    self.restore_wanted = Some(*step);
                }
                EventBody::ToolUsed { call, .. } => self.touched |= may_change_files(call),
                EventBody::FileWritten { .. } | EventBody::FileDeleted { .. } => {
                    self.touched = true;
                }
                EventBody::CheckpointStored { .. } => self.touched = false,
                EventBody::WorkspaceRestored { why: RestoreCause::Request, .. }
                | EventBody::RestoreFailed { .. } => self.restore_wanted = None,
                _ => {}
            }
        }
        Ok(page.into_iter().map(|placed| placed.event).collect())
    }

    /// Keeps the workspace as somebody else left it after the newest step.
    async fn keep_what_others_did(&mut self) -> Result<(), HandsError> {
        let step = self.hands.log.look(|view| view.steps.last().map_or(0, |step| step.n));
        let event = self.hands.checkpoint(step).await?;
        Ok(self.hands.log.append(event.into_iter().collect()).await?)
    }

    /// Makes the workspace again what it was after a step.
    async fn go_back(&mut self, step: u32) -> Result<(), HandsError> {
        let hands = &mut self.hands;
        let event = match hands.log.look(|view| view.kept.after(step)) {
            Ok(to) => {
                let guest = hands.sandbox.guest();
                tokio::select! {
                    done = hands.checkpoints.go_back(guest, step, to) => done?,
                    () = hands.sandbox.gone() => return Err(gone()),
                }
            }
            Err(not_kept) => EventBody::RestoreFailed { step, reason: not_kept.to_string() },
        };
        Ok(hands.log.append(vec![event]).await?)
    }

    /// While a person works with the desktop, the job does not, and its time stands still.
    async fn wait_for_desktop(&mut self, call: &ToolCall) -> Result<(), HandsError> {
        if !needs_desktop(call) || !self.control.is_taken() {
            return Ok(());
        }
        self.clock.stand_still();
        let control = self.control;
        tokio::select! {
            () = control.returned() => {}
            () = self.hands.sandbox.gone() => return Err(gone()),
            reason = self.hands.stop.stopped() => return Err(HandsError::Stopped(reason)),
        }
        self.clock.go_on();
        Ok(())
    }

    /// How a step ended. Read from the log, since nobody else holds the texts of steps.
    async fn outcome(&self, n: u32) -> Result<Option<StepOutcome>, HandsError> {
        let Some((job, seq)) = self.ends.get(&n) else { return Ok(None) };
        let page = self.hands.log.store.events_after(*job, seq - 1, 1).await?;
        Ok(page.into_iter().find_map(|sealed| match sealed.event.body {
            EventBody::StepFinished { outcome, .. } => Some(*outcome),
            _ => None,
        }))
    }

    /// Keeps the conversation as it stands at the end.
    pub(crate) async fn keep_last_context(&self, context: &Context) -> Result<(), HandsError> {
        self.keep(&ArtifactKey::context(self.hands.log.job), context).await
    }

    async fn keep(&self, key: &ArtifactKey, context: &Context) -> Result<(), HandsError> {
        let text = serde_json::to_vec_pretty(&context.to_json()).unwrap_or_default();
        let kept = self.hands.artifacts.put(key, Bytes::from(text)).await;
        kept.map_err(|error| HandsError::Disk(error.to_string()))
    }
}
