//! The backends of an installation, and which of them a sandbox is made by.
//!
//! Levels are ordered; who demands one gets at least that. Whether a backend works on this host is
//! found out by starting a sandbox with it, the first time somebody demands it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bellglass_protocol::job::IsolationLevel;
use tokio::sync::Mutex;

use crate::backend::{Backend, BackendError, SandboxName};
use crate::trial;

/// What there is, weakest first.
pub struct Backends {
    entries: Vec<Entry>,
    preferred: IsolationLevel,
}

struct Entry {
    backend: Arc<dyn Backend>,
    /// What to do where it does not work.
    remedy: String,
    trial: Mutex<Option<Trial>>,
}

#[derive(Clone)]
struct Trial {
    at: Instant,
    result: Result<(), String>,
}

/// A backend that failed is tried again after this time: what it lacked may be there by then.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// Sandboxes of the level that is wanted cannot be had here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this host gives no sandboxes of the level {wanted:?} or above: {why}")]
pub struct Lacking {
    pub wanted: IsolationLevel,
    /// What is missing, and how to get it.
    pub why: String,
}

impl Backends {
    /// With this backend alone. `remedy` says what to do where it does not work.
    pub fn new(backend: Arc<dyn Backend>, remedy: impl Into<String>) -> Self {
        Self { preferred: backend.level(), entries: Vec::new() }.with(backend, remedy)
    }

    pub fn with(mut self, backend: Arc<dyn Backend>, remedy: impl Into<String>) -> Self {
        self.entries.push(Entry { backend, remedy: remedy.into(), trial: Mutex::default() });
        self.entries.sort_by_key(|entry| entry.backend.level());
        self
    }

    /// Whoever demands no more than this level gets exactly this, if it works.
    pub fn preferring(mut self, level: IsolationLevel) -> Self {
        self.preferred = level;
        self
    }

    /// The backend for who demands at least this level: the preferred one if that is enough, else
    /// the weakest that is. Only one that works on this host is chosen.
    pub async fn choose(&self, least: IsolationLevel) -> Result<Arc<dyn Backend>, Lacking> {
        let enough = |entry: &&Entry| entry.backend.level() >= least;
        let (first, others): (Vec<&Entry>, Vec<&Entry>) = self
            .entries
            .iter()
            .filter(enough)
            .partition(|entry| entry.backend.level() == self.preferred);
        let mut failures = Vec::new();
        for entry in first.into_iter().chain(others) {
            match self.works(entry).await {
                Ok(()) => return Ok(entry.backend.clone()),
                Err(failure) => failures.push(failure),
            }
        }
        if failures.is_empty() {
            failures.push("no backend of this build gives it; demand a lower level".into());
        }
        Err(Lacking { wanted: least, why: failures.join("; ") })
    }

    /// The backend that calls itself so.
    pub fn named(&self, name: &str) -> Option<&Arc<dyn Backend>> {
        self.entries.iter().map(|entry| &entry.backend).find(|backend| backend.name() == name)
    }

    /// Ends the sandbox of this name, whichever backend made it.
    pub async fn remove(&self, name: &SandboxName) -> Result<(), BackendError> {
        for entry in &self.entries {
            entry.backend.remove(name).await?;
        }
        Ok(())
    }

    /// Removes every sandbox of every backend that is not in `keep`. Returns how many.
    pub async fn sweep(&self, keep: &HashSet<SandboxName>) -> Result<usize, BackendError> {
        let mut count = 0;
        let mut failed = None;
        for entry in &self.entries {
            // A sandbox that is on trial belongs to no job, but somebody waits for it.
            let _no_trial = entry.trial.lock().await;
            // One that fails must not keep the others from being swept.
            match entry.backend.sweep(keep).await {
                Ok(removed) => count += removed,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(count), Err)
    }

    /// The names of all sandboxes, whichever backend made them.
    pub async fn names(&self) -> Result<HashSet<SandboxName>, BackendError> {
        let mut names = HashSet::new();
        for entry in &self.entries {
            names.extend(entry.backend.names().await?);
        }
        Ok(names)
    }

    /// Removes these sandboxes, as far as nobody holds them. Returns how many.
    pub async fn remove_orphans(
        &self,
        names: &HashSet<SandboxName>,
    ) -> Result<usize, BackendError> {
        let mut count = 0;
        for entry in &self.entries {
            let own = entry.backend.names().await?;
            let own = own.intersection(names).cloned().collect();
            count += entry.backend.remove_orphans(&own).await?;
        }
        Ok(count)
    }

    /// The weakest is not tried ahead: if it fails there is nothing else, and each start tells why.
    async fn works(&self, entry: &Entry) -> Result<(), String> {
        let weakest = self.entries.first().map(|first| first.backend.level());
        if weakest == Some(entry.backend.level()) {
            return Ok(());
        }
        // Held during the trial, so that many who ask at once cause one.
        let mut known = entry.trial.lock().await;
        if let Some(Trial { at, result }) = &*known
            && (result.is_ok() || at.elapsed() < TRY_AGAIN)
        {
            return result.clone();
        }
        let name = entry.backend.name();
        let result = trial::try_out(entry.backend.clone())
            .await
            .map(drop)
            .map_err(|failed| format!("{name} does not work here ({failed}); {}", entry.remedy));
        *known = Some(Trial { at: Instant::now(), result: result.clone() });
        result
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;

    use super::*;
    use crate::backend::{RunningSandbox, SandboxOrder};

    /// A backend of which only the level matters; no sandbox can be started with it.
    struct Named(&'static str, IsolationLevel);

    #[async_trait]
    impl Backend for Named {
        fn name(&self) -> &'static str {
            self.0
        }

        fn level(&self) -> IsolationLevel {
            self.1
        }

        async fn start(&self, _: &SandboxOrder) -> Result<Box<dyn RunningSandbox>, BackendError> {
            Err(BackendError::Unsupported("it has no engine".into()))
        }

        async fn find(
            &self,
            _: &SandboxName,
        ) -> Result<Option<Box<dyn RunningSandbox>>, BackendError> {
            Ok(None)
        }

        async fn remove(&self, _: &SandboxName) -> Result<(), BackendError> {
            Ok(())
        }

        async fn names(&self) -> Result<HashSet<SandboxName>, BackendError> {
            Ok(HashSet::new())
        }

        async fn remove_orphans(&self, _: &HashSet<SandboxName>) -> Result<usize, BackendError> {
            Ok(0)
        }

        async fn sweep(&self, _: &HashSet<SandboxName>) -> Result<usize, BackendError> {
            Ok(1)
        }
    }

    /// The stronger one is known to work, or not.
    fn two(stronger: Result<(), String>) -> Backends {
        let level = |name, level| Arc::new(Named(name, level)) as Arc<dyn Backend>;
        let mut backends = Backends::new(level("strong", IsolationLevel::Gvisor), "buy one")
            .with(level("weak", IsolationLevel::Namespace), "pray")
            .preferring(IsolationLevel::Namespace);
        let trial = Trial { at: Instant::now(), result: stronger };
        backends.entries[1].trial = Mutex::new(Some(trial));
        backends
    }

    #[tokio::test]
    async fn the_weakest_that_satisfies_is_chosen() {
        use IsolationLevel::{Gvisor, Microvm, Namespace};
        let name = async |backends: &Backends, level| {
            backends
                .choose(level)
                .await
                .map(|backend| backend.name())
                .map_err(|lacking| lacking.why)
        };
        let good = two(Ok(()));
        assert_eq!(name(&good, Namespace).await, Ok("weak"));
        assert_eq!(name(&good, Gvisor).await, Ok("strong"));
        let none = "no backend of this build gives it; demand a lower level".to_owned();
        assert_eq!(name(&good, Microvm).await, Err(none));
        let good = good.preferring(Gvisor);
        assert_eq!(name(&good, Namespace).await, Ok("strong"));

        let bad = two(Err("broken".into()));
        assert_eq!(name(&bad, Namespace).await, Ok("weak"));
        assert_eq!(name(&bad, Gvisor).await, Err("broken".into()));
        assert_eq!(name(&bad.preferring(Gvisor), Namespace).await, Ok("weak"));
    }

    #[tokio::test]
    async fn one_that_cannot_start_a_sandbox_is_refused_with_the_remedy() {
        let backends = two(Ok(()));
        *backends.entries[1].trial.lock().await = None;
        let lacking = backends.choose(IsolationLevel::Gvisor).await.err().unwrap();
        assert!(lacking.why.contains("it has no engine"), "{lacking}");
        assert!(lacking.why.contains("buy one"), "{lacking}");
        assert_eq!(backends.sweep(&HashSet::new()).await.unwrap(), 2);
    }
}
