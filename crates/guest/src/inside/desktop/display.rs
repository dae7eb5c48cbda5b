//! The guest's connection to the X server, and the thread that hears what happens there.

use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use x11rb::connection::{Connection as _, RequestConnection as _};
use x11rb::protocol::damage::{ConnectionExt as _, ReportLevel};
use x11rb::protocol::xproto::{
    ChangeWindowAttributesAux, ConnectionExt as _, CreateWindowAux, EventMask, Rectangle, Window,
    WindowClass,
};
use x11rb::protocol::{Event, xtest};
use x11rb::rust_connection::{DefaultStream, RustConnection};
use x11rb::wrapper::ConnectionExt as _;

use super::picture::Area;
use super::selections::Selections;
use super::shared_pixels::SharedPixels;
use super::{Broken, Done};

x11rb::atom_manager! {
    /// Names of the X server that are used here.
    pub(super) Atoms: AtomsCookie {
        CLIPBOARD,
        INCR,
        TARGETS,
        UTF8_STRING,
        TEXT_PLAIN: b"text/plain;charset=utf-8",
        BELLGLASS_SELECTION,
        _NET_ACTIVE_WINDOW,
        _NET_CLIENT_LIST,
        _NET_FRAME_EXTENTS,
        _NET_REQUEST_FRAME_EXTENTS,
        _NET_SUPPORTING_WM_CHECK,
        _NET_WM_NAME,
    }
}

pub(super) struct Display {
    pub(super) connection: RustConnection,
    pub(super) root: Window,
    pub(super) atoms: Atoms,
    /// A window that nobody sees, which owns the clipboard.
    pub(super) own: Window,
    /// Where pictures are put, where that is possible.
    pixels: Mutex<Option<SharedPixels>>,
    heard: Mutex<Heard>,
    news: Condvar,
}

/// What the events have told.
pub(super) struct Heard {
    /// How often the screen has changed, and when it did last. Carets that blink are no change: they
    /// never stop.
    pub(super) changes: u64,
    pub(super) last_change: Instant,
    pub(super) selections: Selections,
    gone: bool,
}

impl Display {
    /// Takes the connection, and listens to it on a thread of its own from then on.
    pub(super) fn connect(stream: UnixStream) -> Done<Arc<Self>> {
        let (stream, _) = DefaultStream::from_unix_stream(stream)?;
        let connection = RustConnection::connect_to_stream(stream, 0)?;
        let atoms = Atoms::new(&connection)?.reply()?;
        let screen = &connection.setup().roots[0];
        let (root, width, height) = (screen.root, screen.width_in_pixels, screen.height_in_pixels);
        let own = connection.generate_id()?;
        let class = WindowClass::INPUT_ONLY;
        let hidden = CreateWindowAux::new();
        connection.create_window(0, own, root, -1, -1, 1, 1, 0, class, 0, &hidden)?;
        connection.damage_query_version(1, 1)?.reply()?;
        // The first click would have to ask for this and wait, where nobody may wait.
        connection.extension_information(xtest::X11_EXTENSION_NAME)?;
        let damage = connection.generate_id()?;
        connection.damage_create(damage, root, ReportLevel::RAW_RECTANGLES)?;
        let properties = ChangeWindowAttributesAux::new().event_mask(EventMask::PROPERTY_CHANGE);
        connection.change_window_attributes(root, &properties)?;
        connection.sync()?;
        let heard = Mutex::new(Heard {
            changes: 0,
            last_change: Instant::now(),
            selections: Selections::default(),
            gone: false,
        });
        let news = Condvar::new();
        let pixels = Mutex::new(SharedPixels::open(&connection, width.into(), height.into()));
        let display = Arc::new(Self { connection, root, atoms, own, pixels, heard, news });
        let listener = display.clone();
        std::thread::Builder::new()
            .name("display".into())
            .stack_size(256 << 10)
            .spawn(move || listener.listen())?;
        Ok(display)
    }

    fn listen(&self) {
        while let Ok(event) = self.connection.wait_for_event() {
            match event {
                Event::DamageNotify(damage) if is_caret(damage.area) => {}
                Event::DamageNotify(_) => {
                    let mut heard = self.heard();
                    heard.changes += 1;
                    heard.last_change = Instant::now();
                }
                // What goes wrong with one request is the next one's chance.
                event => drop(self.hear_of_selections(&event)),
            }
            self.news.notify_all();
        }
        self.heard().gone = true;
        self.news.notify_all();
    }

    pub(super) fn is_gone(&self) -> bool {
        self.heard().gone
    }

    /// All of the screen, which programs may make larger and smaller.
    pub(super) fn area(&self) -> Done<Area> {
        let size = self.connection.get_geometry(self.root)?.reply()?;
        Ok(Area { x: 0, y: 0, width: size.width.into(), height: size.height.into() })
    }

    /// Makes sure that all that was asked for so far has been done.
    pub(super) fn settle(&self) -> Done<()> {
        self.connection.sync()?;
        Ok(())
    }

    /// Whether the X server has read all that was written to it, which one that a program has seized
    /// does not.
    pub(super) fn has_read_everything(&self) -> bool {
        let mut unread: libc::c_int = 0;
        let socket = self.connection.stream().as_raw_fd();
        // SAFETY: it writes one number to the place that it is given.
        let asked = unsafe { libc::ioctl(socket, libc::TIOCOUTQ, &raw mut unread) };
        asked == 0 && unread == 0
    }

    /// How often the screen has changed so far.
    pub(super) fn changes(&self) -> u64 {
        self.heard().changes
    }

    /// Waits until the screen has changed more often than that; false if it does not in time.
    pub(super) fn wait_for_change(
        &self,
        before: u64,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> bool {
        self.wait(until, stop, |heard| heard.changes != before)
    }

    /// Waits until nothing changed for so long; false if that is not so in time.
    pub(super) fn wait_for_stability(
        &self,
        still: Duration,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> bool {
        self.heard().last_change = Instant::now();
        self.wait(until, stop, |heard| heard.last_change.elapsed() >= still)
    }

    pub(super) fn wait(
        &self,
        until: Instant,
        stop: &dyn Fn() -> bool,
        holds: impl Fn(&Heard) -> bool,
    ) -> bool {
        const LOOK_AGAIN: Duration = Duration::from_millis(10);
        let mut heard = self.heard();
        loop {
            if holds(&heard) {
                return true;
            }
            if heard.gone || Instant::now() >= until || stop() {
                return false;
            }
            let waited = self.news.wait_timeout(heard, LOOK_AGAIN);
            heard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Where a picture of an area is put, where that is possible.
    pub(super) fn shared_pixels(&self, area: Area) -> MutexGuard<'_, Option<SharedPixels>> {
        let mut pixels = self.pixels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(small) = pixels.take_if(|pixels| !pixels.has_room_for(area)) {
            small.give_back(&self.connection);
            *pixels = SharedPixels::open(&self.connection, area.width, area.height);
        }
        pixels
    }

    pub(super) fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether what was drawn is no more than the caret of a text field.
fn is_caret(area: Rectangle) -> bool {
    const WIDEST: u16 = 3;
    const HIGHEST: u16 = 64;
    area.width <= WIDEST && (area.width + 1..=HIGHEST).contains(&area.height)
}

impl From<std::io::Error> for Broken {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_narrow_and_high_is_a_caret() {
        for (width, height, caret) in
            [(1, 15, true), (2, 40, true), (1, 1, false), (8, 15, false), (2, 300, false)]
        {
            assert_eq!(
                is_caret(Rectangle { x: 5, y: 5, width, height }),
                caret,
                "{width}x{height}"
            );
        }
    }
}
