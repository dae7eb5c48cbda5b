//! A model behind a wire: what is done with a request and its stream of events, whatever their words.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::time::Instant;

use async_trait::async_trait;
use bellglass_protocol::model::{ModelAnswer, Usage};
use eventsource_stream::Event;
use serde_json::Value;

use super::catalogue::ModelFacts;
use super::http::{Endpoint, Events};
use super::pictures::{LoadedPicture, Sight};
use super::{Failure, Live, Model, ModelError, Request, ToolResult};

/// A model that is spoken to in the words of `G`.
pub(super) struct WireModel<G> {
    endpoint: Endpoint,
    facts: ModelFacts,
    words: PhantomData<fn() -> G>,
}

/// The words of one wire, and an answer in them as far as it has come.
pub(super) trait Gather: Default + Send {
    /// Where requests go, below the server's address.
    const PATH: &'static str;

    fn body(request: &Request, facts: &ModelFacts) -> Value;

    /// Takes in the next event of an answer. Text is passed on as it comes.
    fn take(&mut self, event: &Event, live: &Live) -> Result<Taken, ModelError>;

    /// What the server has said so far about what was used.
    fn usage(&self) -> Usage;

    /// The answer, if it is whole.
    fn finish(
        self,
        request: &Request,
        facts: &ModelFacts,
        started: Instant,
    ) -> Result<ModelAnswer, ModelError>;
}

/// What came of an event.
pub(super) enum Taken {
    /// There is more to come.
    More,
    /// The answer is whole.
    Whole,
    /// The server says that it failed, in these words.
    Failed(Value),
}

impl<G> WireModel<G> {
    pub(super) fn new(endpoint: Endpoint, facts: ModelFacts) -> Self {
        Self { endpoint, facts, words: PhantomData }
    }
}

#[async_trait]
impl<G: Gather> Model for WireModel<G> {
    fn name(&self) -> &str {
        &self.facts.name
    }

    fn context_tokens(&self) -> u64 {
        self.facts.context_tokens
    }

    fn sight(&self) -> Sight {
        self.facts.sight
    }

    async fn ask(&self, request: &Request) -> Result<ModelAnswer, Failure> {
        let started = Instant::now();
        let body = G::body(request, &self.facts);
        let events = self.endpoint.stream(G::PATH, &body).await?;
        let mut answer = G::default();
        let listened = listen(&mut answer, events, &request.live).await;
        let usage = answer.usage();
        let answered = listened.and_then(|()| answer.finish(request, &self.facts, started));
        answered.map_err(|error| self.facts.failure(error, usage))
    }
}

/// Takes in an answer up to its end, or to where it breaks off.
async fn listen<G: Gather>(
    answer: &mut G,
    mut events: Events,
    live: &Live,
) -> Result<(), ModelError> {
    while let Some(event) = events.next().await? {
        match answer.take(&event, live)? {
            Taken::More => {}
            Taken::Whole => break,
            Taken::Failed(data) => return Err(events.error(&data)),
        }
    }
    Ok(())
}

/// A stream that ended too early.
pub(super) fn cut() -> ModelError {
    ModelError::Cut("the stream ended before the answer did".into())
}

/// A result as a model is shown it: its text, and those of its pictures that can be shown. Where one
/// cannot, the text says so.
pub(super) fn shown<'a>(
    result: &'a ToolResult,
    request: &'a Request,
    facts: &ModelFacts,
) -> (Cow<'a, str>, Vec<&'a LoadedPicture>) {
    let pictures: Vec<&LoadedPicture> = match facts.sight {
        Sight::Sees => {
            let found = result.pictures.iter().map(|picture| request.pictures.loaded(picture));
            found.flatten().collect()
        }
        Sight::Blind => Vec::new(),
    };
    let unseen = result.pictures.len() - pictures.len();
    let why = match facts.sight {
        Sight::Sees => "cannot be shown",
        Sight::Blind => "not shown, because this model sees none",
    };
    match unseen {
        0 => (Cow::Borrowed(&*result.text), pictures),
        1 => (format!("{}\n[a picture, {why}]", result.text).into(), pictures),
        many => (format!("{}\n[{many} pictures, {why}]", result.text).into(), pictures),
    }
}
