//! The windows of the desktop, as the window manager keeps them.

use std::time::{Duration, Instant};

use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{
    AtomEnum, ClientMessageEvent, ConfigureWindowAux, ConnectionExt as _, CreateWindowAux,
    EventMask, Window, WindowClass,
};

use super::display::Display;
use super::picture::Area;
use super::{Broken, Done};

/// Windows that are listed, and the longest title that is shown.
const MOST_WINDOWS: u32 = 200;
const LONGEST_TITLE: u32 = 256;

pub(super) struct Listed {
    pub(super) id: Window,
    pub(super) title: String,
    pub(super) class: String,
    pub(super) area: Area,
    pub(super) active: bool,
}

/// All windows, the oldest first.
pub(super) fn list(display: &Display) -> Done<Vec<Listed>> {
    let atoms = &display.atoms;
    let active = numbers(display, atoms._NET_ACTIVE_WINDOW, 1)?.first().copied();
    let mut windows = Vec::new();
    for id in numbers(display, atoms._NET_CLIENT_LIST, MOST_WINDOWS)? {
        // A window may go while the list is read.
        let Ok(area) = area(display, id) else { continue };
        let title = text(display, id, atoms._NET_WM_NAME)
            .filter(|title| !title.is_empty())
            .or_else(|| text(display, id, AtomEnum::WM_NAME.into()))
            .unwrap_or_default();
        let class = text(display, id, AtomEnum::WM_CLASS.into()).unwrap_or_default();
        let class = class.split('\0').rfind(|part| !part.is_empty()).unwrap_or_default().into();
        windows.push(Listed { id, title, class, area, active: active == Some(id) });
    }
    Ok(windows)
}

/// Where a window is on the screen.
pub(super) fn area(display: &Display, window: Window) -> Done<Area> {
    let gone = |_| Broken(format!("there is no window {window}; `windows` lists those there are"));
    let size = display.connection.get_geometry(window)?.reply().map_err(gone)?;
    let place = display.connection.translate_coordinates(window, display.root, 0, 0)?;
    let place = place.reply().map_err(gone)?;
    Ok(Area {
        x: place.dst_x.into(),
        y: place.dst_y.into(),
        width: size.width.into(),
        height: size.height.into(),
    })
}

/// Asks the window manager to let this window have the keyboard, and waits until it has, or the time is up:
/// some windows want none.
pub(super) fn focus(display: &Display, window: Window, until: Instant) -> Done<()> {
    const LOOKING_AGAIN: Duration = Duration::from_millis(1);
    area(display, window)?;
    const FROM_A_PAGER: u32 = 2;
    let kind = display.atoms._NET_ACTIVE_WINDOW;
    let message = ClientMessageEvent::new(32, window, kind, [FROM_A_PAGER, 0, 0, 0, 0]);
    let mask = EventMask::SUBSTRUCTURE_REDIRECT | EventMask::SUBSTRUCTURE_NOTIFY;
    display.connection.send_event(false, display.root, mask, message)?;
    display.settle()?;
    // The manager hears that a window has the keyboard only after it gave it to it.
    while numbers(display, kind, 1)?.first() != Some(&window) && Instant::now() < until {
        std::thread::sleep(LOOKING_AGAIN);
    }
    Ok(())
}

pub(super) fn move_to(display: &Display, window: Window, x: i16, y: i16) -> Done<()> {
    area(display, window)?;
    let place = ConfigureWindowAux::new().x(i32::from(x)).y(i32::from(y));
    display.connection.configure_window(window, &place)?;
    display.connection.flush()?;
    display.settle()
}

/// Waits until a window manager has done all that it was told of; false if it has not in time.
///
/// One that has just taken the desktop over loses windows that are shown before it listens, so it is
/// asked how wide a frame would be once it says that it is there, and until it answers: then it listens.
/// It forgets what it was asked before that, so it is asked often.
pub(super) fn wait_for_manager(display: &Display, until: Instant) -> Done<bool> {
    const ASKING_AGAIN: Duration = Duration::from_millis(2);
    const LOOKING_AGAIN: Duration = Duration::from_millis(1);
    let (connection, atoms) = (&display.connection, &display.atoms);
    let probe = connection.generate_id()?;
    let class = WindowClass::INPUT_OUTPUT;
    let hidden = CreateWindowAux::new();
    connection.create_window(0, probe, display.root, 0, 0, 1, 1, 0, class, 0, &hidden)?;
    let mask = EventMask::SUBSTRUCTURE_REDIRECT | EventMask::SUBSTRUCTURE_NOTIFY;
    let question = ClientMessageEvent::new(32, probe, atoms._NET_REQUEST_FRAME_EXTENTS, [0u32; 5]);
    let answered = || -> Done<bool> {
        let (property, kind) = (atoms._NET_FRAME_EXTENTS, AtomEnum::CARDINAL);
        let value = connection.get_property(false, probe, property, kind, 0, 4)?.reply()?;
        Ok(!value.value.is_empty())
    };
    let is_there =
        || numbers(display, atoms._NET_SUPPORTING_WM_CHECK, 1).map(|window| !window.is_empty());
    let mut asked: Option<Instant> = None;
    let ready = loop {
        let now = Instant::now();
        if asked.map_or_else(is_there, |asked| Ok(now >= asked + ASKING_AGAIN))? {
            connection.send_event(false, display.root, mask, question)?;
            asked = Some(now);
        }
        if asked.is_some() && answered()? {
            break true;
        }
        if now > until {
            break false;
        }
        std::thread::sleep(LOOKING_AGAIN);
    };
    connection.destroy_window(probe)?;
    connection.flush()?;
    Ok(ready)
}

fn numbers(display: &Display, property: u32, most: u32) -> Done<Vec<u32>> {
    let connection = &display.connection;
    let value = connection
        .get_property(false, display.root, property, AtomEnum::WINDOW, 0, most)?
        .reply()?;
    Ok(value.value32().into_iter().flatten().collect())
}

fn text(display: &Display, window: Window, property: u32) -> Option<String> {
    let any = AtomEnum::ANY;
    let asked = display.connection.get_property(false, window, property, any, 0, LONGEST_TITLE);
    let value = asked.ok()?.reply().ok()?;
    (value.format == 8).then(|| String::from_utf8_lossy(&value.value).into_owned())
}
