//! Sandboxes made ahead of their jobs, over any backend that can prepare them.
//!
//! A sandbox is used once: it is made, waits, becomes one job's, and is destroyed with it. So
//! nothing of one job can reach another by way of the pool. A job that no waiting sandbox fits, or
//! that finds none, gets one made for it as without a pool. How many wait is decided in `size.rs`.

mod size;

use std::cmp::Ordering;
use std::collections::{HashSet, VecDeque};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bellglass_protocol::job::IsolationLevel;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::backend::{
    Backend, BackendError, PreparedSandbox, RunningSandbox, SandboxName, SandboxOrder,
};
use size::Demand;
pub use size::PoolSize;

/// What waiting sandboxes are like; none while there is no image to make them from. The name is
/// replaced.
pub type Template = Box<dyn Fn() -> Option<SandboxOrder> + Send + Sync>;

/// The pool looks at its size this often, and after every start.
const LOOK_AROUND: Duration = Duration::from_secs(5);

/// The next one is made a moment after one was taken: right then the job itself wants the cores.
const SETTLING: Duration = Duration::from_millis(50);

/// A backend whose sandboxes are often there already.
pub struct WarmPool {
    shared: Arc<Shared>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    backend: Arc<dyn Backend>,
    size: PoolSize,
    template: Template,
    began: Instant,
    state: Mutex<State>,
    /// A start has changed what there is to do.
    changed: Notify,
    closed: CancellationToken,
    /// Cancelled once the sandboxes that an earlier process left are known, and with them the ids
    /// that are taken.
    swept: CancellationToken,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Waiting>,
    demand: Demand,
}

struct Waiting {
    image: Option<ImageIdentity>,
    sandbox: Box<dyn PreparedSandbox>,
}

/// Device and number of the image's folder: one that was built anew under the same path differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ImageIdentity(u64, u64);

impl ImageIdentity {
    fn of(rootfs: &Path) -> Option<Self> {
        fs::metadata(rootfs).ok().map(|found| Self(found.dev(), found.ino()))
    }
}

impl WarmPool {
    /// Keeps sandboxes ready, from the first sweep on. Must be ended with [`WarmPool::close`].
    pub fn open(backend: Arc<dyn Backend>, size: PoolSize, template: Template) -> Self {
        let shared = Arc::new(Shared {
            backend,
            size,
            template,
            began: Instant::now(),
            state: Mutex::default(),
            changed: Notify::new(),
            closed: CancellationToken::new(),
            swept: CancellationToken::new(),
        });
        let keeper = tokio::spawn(keep(shared.clone()));
        Self { shared, keeper: Mutex::new(Some(keeper)) }
    }

    /// How many wait now.
    pub fn waiting(&self) -> usize {
        self.shared.lock().waiting.len()
    }

    /// Ends all that wait, and makes no more. Jobs can still be started.
    pub async fn close(&self) {
        self.shared.closed.cancel();
        let keeper = self.keeper.lock().expect("no code panics while it holds this lock").take();
        if let Some(keeper) = keeper
            && let Err(error) = keeper.await
        {
            tracing::error!(%error, "what keeps sandboxes ready broke");
        }
        while self.shared.discard_one().await {}
    }
}

#[async_trait]
impl Backend for WarmPool {
    fn name(&self) -> &'static str {
        self.shared.backend.name()
    }

    fn level(&self) -> IsolationLevel {
        self.shared.backend.level()
    }

    async fn start(&self, order: &SandboxOrder) -> Result<Box<dyn RunningSandbox>, BackendError> {
        let taken = self.shared.take_fitting(order);
        self.shared.changed.notify_one();
        if let Some(Waiting { sandbox, .. }) = taken {
            match sandbox.adopt(order).await {
                Ok(running) => return Ok(running),
                Err(error) => {
                    tracing::warn!(%error, "a sandbox that was made ahead is of no use");
                }
            }
        }
        self.shared.backend.start(order).await
    }

    async fn find(
        &self,
        name: &SandboxName,
    ) -> Result<Option<Box<dyn RunningSandbox>>, BackendError> {
        self.shared.backend.find(name).await
    }

    async fn remove(&self, name: &SandboxName) -> Result<(), BackendError> {
        self.shared.backend.remove(name).await
    }

    async fn names(&self) -> Result<HashSet<SandboxName>, BackendError> {
        self.shared.backend.names().await
    }

    async fn remove_orphans(&self, names: &HashSet<SandboxName>) -> Result<usize, BackendError> {
        self.shared.backend.remove_orphans(names).await
    }

    async fn sweep(&self, keep: &HashSet<SandboxName>) -> Result<usize, BackendError> {
        let swept = self.shared.backend.sweep(keep).await?;
        self.shared.swept.cancel();
        Ok(swept)
    }
}

/// Makes and ends sandboxes until as many wait as should.
async fn keep(shared: Arc<Shared>) {
    shared.closed.run_until_cancelled(shared.swept.cancelled()).await;
    while !shared.closed.is_cancelled() {
        let template = (shared.template)();
        shared.discard_outdated(template.as_ref()).await;
        let (wanted, there) = shared.wanted_and_there();
        let goes_on = match (there.cmp(&wanted), template) {
            (Ordering::Less, Some(order)) => shared.make_one(order).await,
            (Ordering::Greater, _) => shared.discard_one().await,
            (Ordering::Less, None) | (Ordering::Equal, _) => false,
        };
        if !goes_on {
            tokio::select! {
                () = shared.changed.notified() => tokio::time::sleep(SETTLING).await,
                () = tokio::time::sleep(LOOK_AROUND) => {}
                () = shared.closed.cancelled() => {}
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds this lock")
    }

    fn second(&self) -> u64 {
        self.began.elapsed().as_secs()
    }

    fn wanted_and_there(&self) -> (usize, usize) {
        let mut state = self.lock();
        let peak = state.demand.peak(self.second());
        (self.size.wanted(peak, size::available_memory()), state.waiting.len())
    }

    /// Takes one that can become what is ordered.
    fn take_fitting(&self, order: &SandboxOrder) -> Option<Waiting> {
        let image = ImageIdentity::of(&order.rootfs);
        let mut state = self.lock();
        state.demand.note(self.second());
        let fits = |waiting: &Waiting| waiting.image == image && waiting.sandbox.fits(order);
        let found = state.waiting.iter().position(fits)?;
        state.waiting.remove(found)
    }

    /// Whether one more waits now.
    async fn make_one(&self, order: SandboxOrder) -> bool {
        let order = SandboxOrder { name: SandboxName::throwaway(), ..order };
        let image = ImageIdentity::of(&order.rootfs);
        match self.backend.prepare(&order).await {
            Ok(Some(sandbox)) => {
                self.lock().waiting.push_back(Waiting { image, sandbox });
                return true;
            }
            Ok(None) => self.closed.cancel(),
            Err(error) => tracing::warn!(%error, "no sandbox can be made ahead; trying again"),
        }
        false
    }

    /// Whether there was one. The oldest goes first.
    async fn discard_one(&self) -> bool {
        let oldest = self.lock().waiting.pop_front();
        self.discard(oldest).await
    }

    /// Ends those whose image was replaced, and clears away those that have ended: no job will fit
    /// them any more.
    async fn discard_outdated(&self, template: Option<&SandboxOrder>) {
        let current = template.and_then(|order| ImageIdentity::of(&order.rootfs));
        let outdated = || {
            let mut state = self.lock();
            let is_outdated =
                |waiting: &Waiting| waiting.image != current || !waiting.sandbox.is_alive();
            let found = state.waiting.iter().position(is_outdated)?;
            state.waiting.remove(found)
        };
        while self.discard(outdated()).await {}
    }

    async fn discard(&self, waiting: Option<Waiting>) -> bool {
        let Some(Waiting { sandbox, .. }) = waiting else { return false };
        sandbox.discard().await;
        true
    }
}
