//! A model that writes down all that another one is asked and answers.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bellglass_protocol::model::ModelAnswer;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Mutex;

use super::pictures::Sight;
use super::recording::{Exchange, Head, RecordedMessage, RecordedReply, VERSION};
use super::{Failure, Model, Request};

/// Records the models of one task.
pub(super) struct Recorder {
    path: PathBuf,
    /// What all of the models can read, by which the conversation was kept short.
    context_tokens: u64,
    /// What the last exchange in the file was about.
    last: Mutex<Vec<RecordedMessage>>,
}

impl Recorder {
    /// Goes on with a file that is there: a task may have had another worker before.
    pub(super) fn new(path: PathBuf, context_tokens: u64) -> Arc<Self> {
        Arc::new(Self { path, context_tokens, last: Mutex::default() })
    }

    async fn write(&self, request: &Request, reply: RecordedReply) {
        let mut last = self.last.lock().await;
        let all = RecordedMessage::all_of(request);
        let kept = last.iter().zip(&all).take_while(|(old, new)| old == new).count();
        let exchange = Exchange { kept, messages: all[kept..].to_vec(), reply };
        *last = all;
        if let Err(error) = self.append(&exchange).await {
            tracing::warn!(path = %self.path.display(), %error, "an exchange was not recorded");
        }
    }

    async fn append(&self, exchange: &Exchange) -> std::io::Result<()> {
        let mut options = tokio::fs::OpenOptions::new();
        let mut file = options.create(true).append(true).mode(0o600).open(&self.path).await?;
        let mut text = Vec::new();
        if file.metadata().await?.len() == 0 {
            let head = Head { version: VERSION, context_tokens: self.context_tokens };
            serde_json::to_writer(&mut text, &head)?;
            text.push(b'\n');
        }
        serde_json::to_writer(&mut text, exchange)?;
        text.push(b'\n');
        file.write_all(&text).await?;
        file.flush().await
    }
}

/// A model whose exchanges are recorded.
pub(super) struct Recorded {
    pub(super) model: Arc<dyn Model>,
    pub(super) recorder: Arc<Recorder>,
}

#[async_trait]
impl Model for Recorded {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn context_tokens(&self) -> u64 {
        self.model.context_tokens()
    }

    fn sight(&self) -> Sight {
        self.model.sight()
    }

    async fn ask(&self, request: &Request) -> Result<ModelAnswer, Failure> {
        let asked = self.model.ask(request).await;
        let reply = RecordedReply::of(&asked);
        self.recorder.write(request, reply).await;
        asked
    }
}
