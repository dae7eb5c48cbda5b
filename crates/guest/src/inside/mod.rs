//! The guest proper: takes the wire and runs tools.
//!
//! It keeps what must outlive a connection (the calls, the open workspace, what a tool process is
//! confined to) and accepts connections one after the other. A worker that died simply connects
//! again and asks for its calls by their ids. How the cage around it was built, it does not know.

mod ahead;
mod answer;
mod attendance;
mod bpf;
mod browser;
mod calls;
mod confine;
mod desktop;
mod exchange;
mod failure;
mod files;
mod follow;
mod interpreters;
mod jupyter;
mod kernel;
mod kernel_gaps;
mod kill;
pub(crate) mod landlock;
mod letter;
mod memory;
mod output;
mod ports;
mod probe;
mod process;
pub(crate) mod processors;
mod reaper;
mod relay;
mod run_process;
pub(crate) mod seccomp;
mod service;
mod standby;
mod step_by_step;
mod supervisor;
mod terminal;
mod tools;
mod transfer;
mod tunnel;
mod way_out;
mod workspace;

use std::io;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use bellglass_protocol::launch::GuestConfig;
use bellglass_protocol::mux::{End, Mux, multiplex};
use bellglass_protocol::report::Probe;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

use ahead::Adapt;
use attendance::{Attendance, Attending};
use browser::Browsers;
use calls::Calls;
use confine::Confinement;
use desktop::Desktop;
use files::checkpoint::Checkpoints;
use jupyter::Jupyter;
use kernel::Kernels;
use probe::Look;
use standby::{Spare, Standby};
use terminal::Sessions;
use tunnel::Tunnels;
pub use way_out::Placer;
use way_out::WayOut;
use workspace::Workspace;

/// Threads for file work. Each transfer holds one while the worker takes its data.
const BLOCKING_THREADS: usize = 64;

/// What all exchanges share.
struct Guest {
    config: GuestConfig,
    workspace: Workspace,
    calls: Calls,
    /// What a tool process gives up.
    confinement: Arc<Confinement>,
    standby: Standby,
    /// How the sandbox looks from inside, once somebody has looked. Nothing is done before.
    probe: watch::Receiver<Option<Box<Probe>>>,
    /// Processes that were ended because the sandbox had used up its memory.
    memory_kills: Arc<AtomicU64>,
    /// The wire of the worker that connected last.
    latest_wire: watch::Sender<Option<Mux>>,
    way_out: WayOut,
    sessions: Sessions,
    kernels: Kernels,
    jupyter: Jupyter,
    desktop: Desktop,
    browsers: Browsers,
    checkpoints: Checkpoints,
    tunnels: Tunnels,
}

/// Becomes the guest of this sandbox and never returns.
pub fn run(listener: StdUnixListener, config: GuestConfig) -> ! {
    let begin = || Readiness::begin(&config, Filter::OfGuest);
    end(prepare(listener, &config, begin, async |listener, placer, readiness| {
        serve_job(listener, config.clone(), placer, readiness).await
    }))
}

/// The same in a sandbox that was made ahead of its job, by `adapt` becomes the job's, and until then
/// waits as `config` says. `say_ready` is called when it does.
pub(crate) fn run_ahead(
    listener: StdUnixListener,
    config: GuestConfig,
    say_ready: impl FnOnce(),
    adapt: Adapt,
) -> ! {
    let begin = || Readiness::begin(&config, Filter::OfTools);
    end(prepare(listener, &config, begin, async |listener, placer, readiness| {
        ahead::serve(listener, config.clone(), placer, readiness, say_ready, adapt).await
    }))
}

fn end(served: io::Result<()>) -> ! {
    let error = match served {
        Ok(()) => "the listener is gone".to_owned(),
        Err(error) => error.to_string(),
    };
    eprintln!("bellglass guest: {error}");
    std::process::exit(1)
}

fn prepare(
    listener: StdUnixListener,
    config: &GuestConfig,
    begin: impl FnOnce() -> io::Result<Readiness>,
    serve: impl AsyncFnOnce(UnixListener, Placer, Readiness) -> io::Result<()>,
) -> io::Result<()> {
    let placer = Placer::start()?;
    // This comes before any thread of the runtime exists, so all of them inherit it.
    confine::work_on_files_as(config.tool_uid, config.tool_gid)?;
    // The same is true of this. Everything that is read from now on is read from behind the fence.
    landlock::enter(config)?;
    // As early as it can be: whoever looks around does so while the rest is made ready.
    let readiness = begin()?;
    listener.set_nonblocking(true)?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .build()?
        .block_on(async { serve(UnixListener::from_std(listener)?, placer, readiness).await })
}

/// What tools are confined to, and how that looks from inside.
struct Readiness {
    /// Made once, because nothing can be allocated after a fork.
    confinement: Confinement,
    /// Waits for a program.
    spare: Option<Spare>,
    seen: Seen,
}

/// Upon whom the filter of system calls is laid first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filter {
    /// Upon each tool process, since the guest does not yet know its job.
    OfTools,
    /// Upon the guest, and by inheritance upon its tools.
    OfGuest,
}

enum Seen {
    /// Somebody looks around while the rest is made ready.
    Looking(Look),
    Known(Box<Probe>),
}

impl Readiness {
    fn begin(config: &GuestConfig, filter: Filter) -> io::Result<Self> {
        let mut confinement = Confinement::prepare(config)?;
        if filter == Filter::OfGuest {
            confinement.take_filter_upon_guest(config)?;
        }
        let (look, spare) = Look::begin(config, &confinement)?;
        Ok(Self { confinement, spare: Some(spare), seen: Seen::Looking(look) })
    }

    async fn complete(self) -> Self {
        let probe = self.seen.end().await;
        Self { seen: Seen::Known(probe), ..self }
    }

    /// The host name is all that changes inside when a sandbox becomes a job's.
    fn see_new_name(&mut self) {
        if let Seen::Known(probe) = &mut self.seen {
            probe.hostname = probe::host_name();
        }
    }
}

impl Seen {
    async fn end(self) -> Box<Probe> {
        match self {
            Self::Looking(look) => Box::new(look.end().await),
            Self::Known(probe) => probe,
        }
    }
}

/// Serves every connection that comes, in a process that is not the guest's own. Returns only if the
/// guest cannot start, or when it was left alone for too long.
pub async fn serve(listener: UnixListener, config: GuestConfig, placer: Placer) -> io::Result<()> {
    let readiness = Readiness::begin(&config, Filter::OfTools)?;
    serve_job(listener, config, placer, readiness).await
}

async fn serve_job(
    listener: UnixListener,
    config: GuestConfig,
    placer: Placer,
    Readiness { confinement, spare, seen }: Readiness,
) -> io::Result<()> {
    let workspace = Workspace::open(&config.workspace)?;
    reaper::start()?;
    let patience = config.orphaned_after_seconds.map(Duration::from_secs);
    let attendance = Attendance::new();
    let latest_wire = watch::Sender::new(None);
    let calls = Calls::default();
    let memory_kills = match config.memory {
        Some(room) => memory::watch(room, &config)?,
        None => Arc::default(),
    };
    let (found, probe) = watch::channel(None);
    tokio::spawn(async move { found.send_replace(Some(seen.end().await)) });
    let guest = Arc::new(Guest {
        config,
        workspace,
        calls,
        confinement: Arc::new(confinement),
        standby: Standby::new(spare),
        probe,
        memory_kills,
        latest_wire,
        way_out: WayOut::new(placer),
        sessions: Sessions::default(),
        kernels: Kernels::default(),
        jupyter: Jupyter::default(),
        desktop: Desktop::default(),
        browsers: Browsers::default(),
        checkpoints: Checkpoints::default(),
        tunnels: Tunnels::default(),
    });
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = attendance.missed_for(patience) => {
                return Err(io::Error::other("no worker has come for too long"));
            }
        };
        match accepted {
            Ok((connection, _)) => {
                tokio::spawn(serve_connection(guest.clone(), connection, attendance.begin()));
            }
            // Out of descriptors, most likely. Others will end and give theirs back.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn serve_connection(guest: Arc<Guest>, connection: UnixStream, attending: Attending) {
    let (mux, mut incoming, driver) = multiplex(connection, End::Guest);
    tokio::spawn(driver);
    guest.latest_wire.send_replace(Some(mux.clone()));
    while let Some(stream) = incoming.recv().await {
        attending.heard();
        let guest = guest.clone();
        tokio::spawn(async move {
            // A stream that breaks concerns nobody but its worker, who knows already.
            let _ = exchange::serve(&guest, stream).await;
        });
    }
    drop((mux, attending));
}
