//! The desktop of a sandbox: started when it is first needed, worked on natively over X11.
//!
//! Everything here blocks for moments only, on threads for such work; what waits looks whether the
//! call was given up. A plain click does not wait, so it needs no thread (`pointer.rs`).

mod display;
mod key_names;
mod keyboard;
mod picture;
mod pointer;
mod selections;
mod shared_pixels;
mod start;
mod windows;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bellglass_protocol::id::CallId;
use bellglass_protocol::job::Screen;
use bellglass_protocol::step::{StepStatus, ToolError};
use bellglass_protocol::tool::{Action, Computer, Xdot};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep_until;
use x11rb::connection::Connection as _;

use super::Guest;
use super::answer::{Answer, Given};
use super::calls::Call;
use super::failure::failure;
use super::interpreters::{environment, find};
use super::process::Command;
use super::run_process;
use super::tools::Stop;
use display::Display;
use keyboard::Keyboard;
use picture::{Area, View};

/// How long a key is held, or the screen must stand still, unless the call says.
const HALF_A_SECOND: Duration = Duration::from_millis(500);
/// How often what holds a key looks whether it is time.
const LOOKING: Duration = Duration::from_millis(5);
/// How much longer than its time a call may take to notice that it is up.
const SEIZED: Duration = Duration::from_secs(2);
/// Calls that wait for the X server at once. A program that has seized the screen keeps them, and their
/// threads, for as long as it likes; file tools need threads too.
const MOST_HANDS: usize = 8;
/// How long a window manager may take to do what it was told of.
const FOLLOWING: Duration = Duration::from_secs(1);

/// What a call says that has nothing else to say.
const DONE: &str = "done";

/// What goes wrong between the guest and the X server, in words.
#[derive(Debug)]
pub(super) struct Broken(pub(super) String);

type Done<T> = Result<T, Broken>;

macro_rules! breaks_by {
    ($($error:ty),+) => {$(
        impl From<$error> for Broken {
            fn from(error: $error) -> Self {
                Self(error.to_string())
            }
        }
    )+};
}
breaks_by!(
    x11rb::errors::ConnectError,
    x11rb::errors::ConnectionError,
    x11rb::errors::ReplyError,
    x11rb::errors::ReplyOrIdError
);

impl From<Broken> for ToolError {
    fn from(broken: Broken) -> Self {
        failure("desktop_failed", broken.0)
    }
}

/// The desktop, if there is one yet.
#[derive(Default)]
pub(super) struct Desktop {
    live: tokio::sync::Mutex<Option<Arc<Live>>>,
    /// Whether programs that start now find the screen.
    shown: AtomicBool,
    /// How large it was at first: one that takes its place is as large.
    screen: OnceLock<Screen>,
}

/// Who is given pictures of the screen, and names points in them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Looker {
    /// The job, in its steps.
    Job,
    /// Whoever else uses the sandbox. What they look at must not move what the job points at.
    Visitor,
}

impl Looker {
    pub(super) fn of(id: &CallId) -> Self {
        if id.is_of_step() { Self::Job } else { Self::Visitor }
    }
}

struct Live {
    display: Arc<Display>,
    /// The last picture that was given to each kind of looker.
    views: Mutex<[View; 2]>,
    hands: Arc<Semaphore>,
    /// The socket on which viewers are served.
    rfb: PathBuf,
    /// The window manager and the X server.
    programs: [start::Program; 2],
    /// Whether the pointer was used since the keyboard was: then the window manager may be about to
    /// give the keyboard to another window.
    clicked: AtomicBool,
    /// How often the screen had changed when something was done last, or a picture taken.
    changes: AtomicU64,
}

impl Desktop {
    /// What programs call the screen, once there is one.
    pub(super) fn name(&self) -> Option<&'static str> {
        self.shown.load(Ordering::Relaxed).then_some(start::DISPLAY)
    }
}

/// Starts the desktop unless it runs.
pub(super) async fn start(guest: &Arc<Guest>, screen: Screen) -> Result<(), ToolError> {
    get(guest, screen).await.map(drop)
}

/// Connects to the desktop's VNC server, which is started first unless it runs.
pub(super) async fn view(guest: &Arc<Guest>, screen: Screen) -> Result<UnixStream, ToolError> {
    let live = get(guest, screen).await?;
    UnixStream::connect(&live.rfb).await.map_err(|error| {
        failure("no_desktop", format!("the desktop's VNC server cannot be reached: {error}"))
    })
}

/// Starts it as a task of its own, which goes on when a call gives up: half a desktop would be in
/// the way of the next.
async fn get(guest: &Arc<Guest>, screen: Screen) -> Result<Arc<Live>, ToolError> {
    // Most calls find it there, and need no task for that.
    if let Ok(live) = guest.desktop.live.try_lock()
        && let Some(live) = live.as_ref().filter(|live| !live.display.is_gone())
    {
        return Ok(live.clone());
    }
    let guest = guest.clone();
    let getting = tokio::spawn(async move {
        let mut live = guest.desktop.live.lock().await;
        if let Some(live) = live.as_ref().filter(|live| !live.display.is_gone()) {
            return Ok(live.clone());
        }
        if let Some(broken) = live.take() {
            start::clear_away(&guest, &broken).await;
        }
        let screen = guest.desktop.screen.get().copied().unwrap_or(screen);
        let started = Arc::new(start::start(&guest, screen).await?);
        let _ = guest.desktop.screen.set(screen);
        guest.desktop.shown.store(true, Ordering::Relaxed);
        *live = Some(started.clone());
        Ok(started)
    });
    getting.await.unwrap_or_else(|_| Err(failure("no_desktop", "starting it broke")))
}

/// The screen as it is, if there is one. It starts none, and counts as no screenshot.
pub(super) async fn last_look(guest: &Arc<Guest>) -> Result<bytes::Bytes, ToolError> {
    let live = guest.desktop.live.try_lock().ok().and_then(|live| live.clone());
    let live = live.filter(|live| !live.display.is_gone());
    let live = live.ok_or_else(|| failure("no_desktop", "no desktop runs"))?;
    let looking = async {
        let hand = live.hand().await?;
        let looking = tokio::task::spawn_blocking(move || {
            let _hand = hand;
            let area = live.display.area()?;
            let colours = picture::pixels(&live.display, area)?;
            picture::png(&colours, (area.width, area.height))
        });
        let looked = looking.await.map_err(|_| failure("desktop_failed", "looking at it broke"))?;
        looked.map_err(ToolError::from)
    };
    // A program that has seized the screen holds it up.
    let looked = tokio::time::timeout(SEIZED, looking).await;
    let picture = looked.map_err(|_| failure("desktop_failed", "the screen is seized"))??;
    Ok(picture.into())
}

/// Takes over a picture of a part of the screen that somebody else took, in its own pixels: makes it
/// fit where that is wanted, and notes that points are points of it from now on.
pub(super) async fn give_picture_of(
    guest: &Arc<Guest>,
    looker: Looker,
    place: impl FnOnce((u32, u32)) -> (i32, i32) + Send + 'static,
    png: Vec<u8>,
    fit: bool,
) -> Result<Answer, ToolError> {
    let live = get(guest, Screen::default()).await?;
    let work = tokio::task::spawn_blocking(move || -> Result<Answer, ToolError> {
        live.note_changes();
        let (colours, given) = picture::unpacked(&png)?;
        let (x, y) = place(given);
        let area = Area { x, y, width: given.0, height: given.1 };
        let size = picture::size(area, None, fit);
        let content = match size == given {
            true => png,
            false => picture::png(&picture::scaled(&colours, given, size), size)?,
        };
        let words = live.give(looker, area, size);
        let attachments = vec![Given { media_type: "image/png".into(), content: content.into() }];
        Ok(Answer { attachments, ..Answer::text(words) })
    });
    work.await.unwrap_or_else(|_| Err(failure("internal_error", "the tool broke")))
}

/// What a call says whose time was up.
fn late() -> Answer {
    let words = "the desktop did not answer in time. What was asked of it may still happen: look at \
                 it before you try again";
    let error = Some(failure("timed_out", words));
    Answer { error, ..Answer::of(StepStatus::TimedOut) }
}

/// Does one thing with the desktop.
pub(super) async fn computer(
    guest: &Arc<Guest>,
    looker: Looker,
    computer: &Computer,
    deadline: tokio::time::Instant,
    call: &Call,
) -> Result<Answer, ToolError> {
    let live = tokio::select! {
        live = get(guest, Screen::default()) => live?,
        () = sleep_until(deadline) => return Ok(late()),
        () = call.cancel.cancelled() => return Ok(Answer::of(StepStatus::Cancelled)),
    };
    let computer = live.on_screen(looker, computer);
    if let Some(pointed) = live.point_at_once(&computer) {
        pointed?;
        return Ok(Answer::text(DONE));
    }
    let hand = tokio::select! {
        hand = live.hand() => hand?,
        () = sleep_until(deadline) => return Ok(late()),
        () = call.cancel.cancelled() => return Ok(Answer::of(StepStatus::Cancelled)),
    };
    let stop = Stop::default();
    let stopped = stop.clone();
    let until = deadline.into_std();
    let mut work = tokio::task::spawn_blocking(move || {
        let _hand = hand;
        live.act(looker, &computer, until, &stopped)
    });
    tokio::select! {
        done = &mut work => done.unwrap_or_else(|_| Err(failure("internal_error", "the tool broke"))),
        // What waits ends by itself. A program that has seized the screen may hold up the rest.
        () = sleep_until(deadline + SEIZED) => {
            stop.request();
            Ok(late())
        }
        () = call.cancel.cancelled() => {
            stop.request();
            Ok(Answer::of(StepStatus::Cancelled))
        }
    }
}

/// Runs the real xdotool.
pub(super) async fn xdot(
    guest: &Arc<Guest>,
    call_of: &Xdot,
    deadline: tokio::time::Instant,
    call: &Call,
) -> Result<Answer, ToolError> {
    // What was done by us comes before what xdotool does by a connection of its own.
    let settled = async {
        let live = get(guest, Screen::default()).await?;
        let hand = live.hand().await?;
        let settling = tokio::task::spawn_blocking(move || {
            let _hand = hand;
            live.display.settle()
        });
        settling.await.unwrap_or(Ok(())).map_err(ToolError::from)
    };
    tokio::select! {
        settled = settled => settled?,
        () = sleep_until(deadline) => return Ok(late()),
        () = call.cancel.cancelled() => return Ok(Answer::of(StepStatus::Cancelled)),
    }
    let folder = guest.workspace.path().to_path_buf();
    let command = Command {
        program: find("xdotool")?,
        // It reads its commands from a file as it takes them from its arguments.
        arguments: ["xdotool".into(), "-".into()].into(),
        environment: environment(guest, &folder, &Default::default())?,
        folder,
        input: Some(format!("{}\n", call_of.command.trim()).into_bytes()),
    };
    run_process::run(guest, call, &command, deadline).await
}

impl Live {
    fn new(display: Arc<Display>, rfb: PathBuf, programs: [start::Program; 2]) -> Self {
        let views = Mutex::new([View::BEFORE_THE_FIRST; 2]);
        let hands = Arc::new(Semaphore::new(MOST_HANDS));
        let (clicked, changes) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { display, views, hands, rfb, programs, clicked, changes }
    }

    /// What a thread needs that waits for the X server.
    async fn hand(&self) -> Result<OwnedSemaphorePermit, ToolError> {
        let hand = self.hands.clone().acquire_owned().await;
        hand.map_err(|_| failure("internal_error", "nobody gives hands out"))
    }

    /// Does what a call asks for. Its points are points of the screen.
    fn act(
        &self,
        looker: Looker,
        call: &Computer,
        until: Instant,
        stop: &Stop,
    ) -> Result<Answer, ToolError> {
        use Action::*;
        let display = &*self.display;
        let seconds = call.seconds.map_or(HALF_A_SECOND, |seconds| seconds.duration());
        let keys = call.keys.as_deref();
        let given_up = || stop.is_requested();
        if !matches!(
            call.action,
            Cursor | WaitForChange | WaitForStability | Windows | GetClipboard
        ) {
            self.note_changes();
        }
        let done = match call.action {
            Screenshot => return self.screenshot(looker, call),
            Cursor => {
                let (x, y) = self.pointer()?;
                let (x, y) = self.view(looker).in_picture(x, y);
                return Ok(Answer::text(format!("the pointer is at {x},{y}")));
            }
            Move => self.go_to(call).and_then(|()| display.settle()),
            Click => self.click(call, 1, 1),
            DoubleClick => self.click(call, 1, 2),
            TripleClick => self.click(call, 1, 3),
            RightClick => self.click(call, 3, 1),
            MiddleClick => self.click(call, 2, 1),
            Drag => self.drag(call),
            Scroll => self.scroll(call),
            Type => {
                self.let_focus_follow()?;
                let text = call.text.as_deref().unwrap_or_default();
                self.keyboard()?.type_text(display, text, until, &given_up)
            }
            Key => {
                self.let_focus_follow()?;
                self.keyboard()?.press(display, keys.unwrap_or_default())
            }
            HoldKey => {
                self.let_focus_follow()?;
                self.holding(keys, || {
                    let until = until.min(Instant::now() + seconds);
                    while Instant::now() < until && !given_up() {
                        std::thread::sleep(LOOKING);
                    }
                    Ok(())
                })
            }
            WaitForChange => {
                let since = self.changes.load(Ordering::Relaxed);
                let changed = display.wait_for_change(since, until, &given_up);
                self.note_changes();
                return Ok(waited(changed, "the screen changed"));
            }
            WaitForStability => {
                let still = display.wait_for_stability(seconds, until, &given_up);
                return Ok(waited(still, "the screen stands still"));
            }
            Windows => return self.windows(),
            FocusWindow => {
                windows::focus(display, call.window.unwrap_or_default(), Instant::now() + FOLLOWING)
            }
            MoveWindow => {
                let (x, y) = point(call.to_x, call.to_y);
                windows::move_to(display, call.window.unwrap_or_default(), x, y)
                    .and_then(|()| self.let_manager_follow())
            }
            GetClipboard => {
                let text = display.clipboard()?;
                return Ok(match text {
                    Some(text) => Answer::text(text),
                    None => {
                        Answer { note: Some("the clipboard is empty".into()), ..Answer::text("") }
                    }
                });
            }
            SetClipboard => {
                let text = call.text.as_deref().unwrap_or_default();
                match text.len() <= selections::LARGEST_SELECTION {
                    true => display.offer(text),
                    false => Err(Broken("the text is longer than 200 KiB".into())),
                }
            }
        };
        done?;
        Ok(Answer::text(DONE))
    }

    /// What changes from now on changes after something was done.
    fn note_changes(&self) {
        self.changes.store(self.display.changes(), Ordering::Relaxed);
    }

    fn keyboard(&self) -> Done<Keyboard> {
        Keyboard::of(&self.display)
    }

    /// Does something to its end, with keys held if there are any to hold.
    fn holding(&self, keys: Option<&str>, act: impl FnOnce() -> Done<()>) -> Done<()> {
        if let Some(keys) = keys {
            return self.keyboard()?.holding(&self.display, keys, act);
        }
        // What the pointer does where it was sent comes after its way there.
        self.display.connection.flush()?;
        let acted = act();
        self.display.settle()?;
        acted
    }

    fn view(&self, looker: Looker) -> View {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)[looker as usize]
    }

    /// The call with the points of the looker's last picture where they are on the screen.
    fn on_screen(&self, looker: Looker, call: &Computer) -> Computer {
        let view = self.view(looker);
        let place = |x: Option<i32>, y: Option<i32>| {
            if x.is_none() && y.is_none() {
                return (None, None);
            }
            let (x, y) = view.on_screen(x.unwrap_or_default(), y.unwrap_or_default());
            (Some(x.into()), Some(y.into()))
        };
        let ((x, y), (to_x, to_y)) = (place(call.x, call.y), place(call.to_x, call.to_y));
        Computer { x, y, to_x, to_y, ..call.clone() }
    }

    fn screenshot(&self, looker: Looker, call: &Computer) -> Result<Answer, ToolError> {
        let display = &*self.display;
        let screen = display.area()?;
        let wanted = match (call.window, call.region) {
            (Some(window), _) => windows::area(display, window)?,
            (None, Some(region)) => {
                Area { x: region.x, y: region.y, width: region.width, height: region.height }
            }
            (None, None) => screen,
        };
        let area = wanted.within(screen);
        let area = area.ok_or_else(|| failure("off_screen", "nothing of that is on the screen"))?;
        let colours = picture::pixels(display, area)?;
        let (given, size) =
            ((area.width, area.height), picture::size(area, call.max_width, call.fit));
        let content = match size == given {
            true => picture::png(&colours, size),
            false => picture::png(&picture::scaled(&colours, given, size), size),
        }?;
        let words = self.give(looker, area, size);
        let attachments = vec![Given { media_type: "image/png".into(), content: content.into() }];
        Ok(Answer { attachments, ..Answer::text(words) })
    }

    /// Notes that a picture of an area is given, in which points are from now on; returns what it says
    /// about itself.
    fn give(&self, looker: Looker, area: Area, (width, height): (u32, u32)) -> String {
        let mut views = self.views.lock().unwrap_or_else(PoisonError::into_inner);
        let last = &mut views[looker as usize];
        *last = View { number: last.number + 1, area, width, height };
        last.words()
    }

    fn windows(&self) -> Result<Answer, ToolError> {
        let mut text = String::new();
        for window in windows::list(&self.display)? {
            let Area { x, y, width, height } = window.area;
            let active = if window.active { ", active" } else { "" };
            let (id, class) = (window.id, &window.class);
            let title: String = window.title.chars().filter(|c| !c.is_control()).collect();
            text.push_str(&format!(
                "{id}  {title:?} ({class}), {width}x{height} at {x},{y} of the screen{active}\n"
            ));
        }
        Ok(Answer::text(if text.is_empty() { "there are no windows\n".into() } else { text }))
    }

    /// Keys go where the last click was meant to bring them. The window manager hears of a click before
    /// it is asked, so when it answers it has moved the keyboard.
    fn let_focus_follow(&self) -> Done<()> {
        if self.clicked.swap(false, Ordering::Relaxed) {
            self.let_manager_follow()?;
        }
        Ok(())
    }

    fn let_manager_follow(&self) -> Done<()> {
        windows::wait_for_manager(&self.display, Instant::now() + FOLLOWING).map(drop)
    }
}

/// A point of the screen that a call names.
fn point(x: Option<i32>, y: Option<i32>) -> (i16, i16) {
    let part =
        |part: Option<i32>| part.unwrap_or_default().clamp(i16::MIN.into(), i16::MAX.into()) as i16;
    (part(x), part(y))
}

fn waited(happened: bool, words: &str) -> Answer {
    if happened {
        return Answer::text(words);
    }
    let error = failure("timed_out", format!("it did not come to that in time: {words}"));
    Answer { error: Some(error), ..Answer::of(StepStatus::TimedOut) }
}
