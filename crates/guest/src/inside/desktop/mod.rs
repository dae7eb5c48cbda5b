//! The desktop of a sandbox: started when it is first needed, worked on natively over X11.
//!
//! Everything here blocks for moments only, on threads for such work; what waits looks whether the
//! call was given up.

mod display;
mod keyboard;
mod picture;
mod start;
mod windows;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bellglass_protocol::job::Screen;
use bellglass_protocol::step::{StepStatus, ToolError};
use bellglass_protocol::tool::{Action, Computer, Direction, Xdot};
use x11rb::protocol::xproto::{
    BUTTON_PRESS_EVENT, BUTTON_RELEASE_EVENT, ConnectionExt as _, MOTION_NOTIFY_EVENT,
};
use x11rb::protocol::xtest::ConnectionExt as _;

use tokio::net::UnixStream;
use tokio::time::sleep_until;

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

/// How long the screen must stand still, or a key is held, unless the call says.
const HALF_A_SECOND: Duration = Duration::from_millis(500);
/// How much longer than its time a call may take to notice that it is up.
const SEIZED: Duration = Duration::from_secs(2);
/// Notches of the wheel at once.
const MOST_NOTCHES: u32 = 100;
/// Steps of a drag: programs want to see the pointer on its way.
const DRAG_STEPS: i32 = 20;
const BETWEEN_STEPS: Duration = Duration::from_millis(5);
/// How long a drag waits for a program at its start and before its end, and when that one has drawn.
const REACTING: Duration = Duration::from_millis(500);
const STILL: Duration = Duration::from_millis(60);
/// How long a window manager may take to give the keyboard to the window that was clicked.
const FOLLOWING: Duration = Duration::from_millis(500);

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
}

struct Live {
    display: Arc<Display>,
    keyboard: Keyboard,
    view: Mutex<View>,
    /// The socket on which viewers are served.
    rfb: PathBuf,
    /// Whether the pointer was used since the keyboard was: then the window manager may be about to
    /// give the keyboard to another window.
    clicked: AtomicBool,
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
        let started = Arc::new(start::start(&guest, screen).await?);
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
    let looking = tokio::task::spawn_blocking(move || {
        let (width, height) = (live.display.width, live.display.height);
        let area = View::of_screen(width, height).area;
        let colours = picture::pixels(&live.display, area)?;
        picture::png(&colours, area.width, area.height)
    });
    // A program that has seized the screen holds it up.
    let looked = tokio::time::timeout(SEIZED, looking).await;
    let picture = looked.map_err(|_| failure("desktop_failed", "the screen is seized"))?;
    let picture = picture.map_err(|_| failure("desktop_failed", "looking at it broke"))??;
    Ok(picture.into())
}

/// What a call says whose time was up.
fn late() -> Answer {
    let error = Some(failure("timed_out", "the desktop did not answer in time; try again"));
    Answer { error, ..Answer::of(StepStatus::TimedOut) }
}

/// Does one thing with the desktop.
pub(super) async fn computer(
    guest: &Arc<Guest>,
    computer: &Computer,
    deadline: tokio::time::Instant,
    call: &Call,
) -> Result<Answer, ToolError> {
    let live = tokio::select! {
        live = get(guest, Screen::default()) => live?,
        () = sleep_until(deadline) => return Ok(late()),
        () = call.cancel.cancelled() => return Ok(Answer::of(StepStatus::Cancelled)),
    };
    let stop = Stop::default();
    let (stopped, computer) = (stop.clone(), computer.clone());
    let until = deadline.into_std();
    let mut work = tokio::task::spawn_blocking(move || live.act(&computer, until, &stopped));
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
    tokio::select! {
        started = start(guest, Screen::default()) => started?,
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
    fn new(display: Arc<Display>, keyboard: Keyboard, rfb: PathBuf) -> Self {
        let view = Mutex::new(View::of_screen(display.width, display.height));
        Self { display, keyboard, view, rfb, clicked: AtomicBool::new(false) }
    }

    fn act(&self, call: &Computer, until: Instant, stop: &Stop) -> Result<Answer, ToolError> {
        use Action::*;
        let display = &*self.display;
        let seconds = call.seconds.map_or(HALF_A_SECOND, |seconds| seconds.duration());
        let keys = call.keys.as_deref();
        let given_up = || stop.is_requested();
        let done = match call.action {
            Screenshot => return self.screenshot(call),
            Cursor => {
                let (x, y) = self.pointer()?;
                let (x, y) = self.view().in_picture(x, y);
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
                self.keyboard.type_text(display, call.text.as_deref().unwrap_or_default())
            }
            Key => {
                self.let_focus_follow()?;
                self.keyboard.press(display, keys.unwrap_or_default())
            }
            HoldKey => {
                self.let_focus_follow()?;
                self.keyboard.holding(display, keys, || {
                    let until = until.min(Instant::now() + seconds);
                    while Instant::now() < until && !given_up() {
                        std::thread::sleep(BETWEEN_STEPS);
                    }
                    Ok(())
                })
            }
            WaitForChange => {
                return Ok(waited(display.wait_for_change(until, &given_up), "the screen changed"));
            }
            WaitForStability => {
                let still = display.wait_for_stability(seconds, until, &given_up);
                return Ok(waited(still, "the screen stands still"));
            }
            Windows => return self.windows(),
            FocusWindow => windows::focus(display, call.window.unwrap_or_default()),
            MoveWindow => {
                let (x, y) = self.place(call.to_x, call.to_y);
                windows::move_to(display, call.window.unwrap_or_default(), x, y)
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
                match text.len() <= display::LARGEST_SELECTION {
                    true => display.offer(text),
                    false => Err(Broken("the text is longer than 200 KiB".into())),
                }
            }
        };
        done?;
        Ok(Answer::text("done"))
    }

    fn view(&self) -> View {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A point of the last picture, on the screen.
    fn place(&self, x: Option<i32>, y: Option<i32>) -> (i16, i16) {
        self.view().on_screen(x.unwrap_or_default(), y.unwrap_or_default())
    }

    fn screenshot(&self, call: &Computer) -> Result<Answer, ToolError> {
        let display = &*self.display;
        let wanted = match (call.window, call.region) {
            (Some(window), _) => windows::area(display, window)?,
            (None, Some(region)) => {
                Area { x: region.x, y: region.y, width: region.width, height: region.height }
            }
            (None, None) => View::of_screen(display.width, display.height).area,
        };
        let area = wanted.on_screen(display.width, display.height);
        let area = area.ok_or_else(|| failure("off_screen", "nothing of that is on the screen"))?;
        let mut colours = picture::pixels(display, area)?;
        let (mut width, mut height) = (area.width, area.height);
        if let Some(most) = call.max_width.filter(|most| (1..width).contains(most)) {
            let scaled_height = (u64::from(height) * u64::from(most) / u64::from(width)).max(1);
            let size = (most, scaled_height as u32);
            colours = picture::scaled(&colours, (width, height), size);
            (width, height) = size;
        }
        let content = picture::png(&colours, width, height)?.into();
        let mut last = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        *last = View { number: last.number + 1, area, width, height };
        let attachments = vec![Given { media_type: "image/png".into(), content }];
        Ok(Answer { attachments, ..Answer::text(last.words()) })
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

    fn pointer(&self) -> Done<(i16, i16)> {
        let display = &self.display;
        let at = display.connection.query_pointer(display.root)?.reply()?;
        Ok((at.root_x, at.root_y))
    }

    /// What is asked for afterwards comes after it; nobody has to wait in between.
    fn go_to(&self, call: &Computer) -> Done<()> {
        if call.x.is_some() {
            let (x, y) = self.place(call.x, call.y);
            self.point_at(x, y)?;
        }
        Ok(())
    }

    fn point_at(&self, x: i16, y: i16) -> Done<()> {
        let display = &self.display;
        display.connection.xtest_fake_input(MOTION_NOTIFY_EVENT, 0, 0, display.root, x, y, 0)?;
        Ok(())
    }

    fn button(&self, kind: u8, button: u8) -> Done<()> {
        let display = &self.display;
        display.connection.xtest_fake_input(kind, button, 0, display.root, 0, 0, 0)?;
        Ok(())
    }

    /// Keys go where the last click was meant to bring them. The window manager hears of a click before
    /// it is asked, so when it answers it has moved the keyboard.
    fn let_focus_follow(&self) -> Done<()> {
        if self.clicked.swap(false, Ordering::Relaxed) {
            windows::wait_for_manager(&self.display, Instant::now() + FOLLOWING)?;
        }
        Ok(())
    }

    fn click(&self, call: &Computer, button: u8, times: u32) -> Done<()> {
        self.clicked.store(true, Ordering::Relaxed);
        self.go_to(call)?;
        self.keyboard.holding(&self.display, call.keys.as_deref(), || {
            for _ in 0..times {
                self.button(BUTTON_PRESS_EVENT, button)?;
                self.button(BUTTON_RELEASE_EVENT, button)?;
            }
            Ok(())
        })
    }

    fn drag(&self, call: &Computer) -> Done<()> {
        let (from, to) = (self.place(call.x, call.y), self.place(call.to_x, call.to_y));
        self.clicked.store(true, Ordering::Relaxed);
        self.keyboard.holding(&self.display, call.keys.as_deref(), || {
            self.point_at(from.0, from.1)?;
            self.button(BUTTON_PRESS_EVENT, 1)?;
            // A program that is told that the pointer moved asks where it is: it must not be gone by then.
            self.let_it_react()?;
            for step in 1..=DRAG_STEPS {
                let between = |from: i16, to: i16| {
                    let way = i32::from(to) - i32::from(from);
                    (i32::from(from) + way * step / DRAG_STEPS) as i16
                };
                self.point_at(between(from.0, to.0), between(from.1, to.1))?;
                self.display.settle()?;
                std::thread::sleep(BETWEEN_STEPS);
            }
            self.let_it_react()?;
            self.button(BUTTON_RELEASE_EVENT, 1)
        })
    }

    /// Waits a moment for what a program draws in answer, and until it has drawn it.
    fn let_it_react(&self) -> Done<()> {
        self.display.settle()?;
        let until = Instant::now() + REACTING;
        self.display.wait_for_stability(STILL, until, &|| false);
        Ok(())
    }

    fn scroll(&self, call: &Computer) -> Done<()> {
        self.go_to(call)?;
        let button = match call.direction {
            Some(Direction::Up) => 4,
            Some(Direction::Down) | None => 5,
            Some(Direction::Left) => 6,
            Some(Direction::Right) => 7,
        };
        self.keyboard.holding(&self.display, call.keys.as_deref(), || {
            for _ in 0..call.amount.unwrap_or(3).min(MOST_NOTCHES) {
                self.button(BUTTON_PRESS_EVENT, button)?;
                self.button(BUTTON_RELEASE_EVENT, button)?;
            }
            Ok(())
        })
    }
}

fn waited(happened: bool, words: &str) -> Answer {
    if happened {
        return Answer::text(words);
    }
    let error = failure("timed_out", format!("it did not come to that in time: {words}"));
    Answer { error: Some(error), ..Answer::of(StepStatus::TimedOut) }
}
