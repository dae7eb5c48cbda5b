//! The guest's connection to the X server, and the thread that hears what happens there.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use x11rb::connection::Connection as _;
use x11rb::protocol::Event;
use x11rb::protocol::damage::{ConnectionExt as _, ReportLevel};
use x11rb::protocol::xproto::{
    AtomEnum, ChangeWindowAttributesAux, ConnectionExt as _, CreateWindowAux, EventMask, PropMode,
    SELECTION_NOTIFY_EVENT, SelectionNotifyEvent, SelectionRequestEvent, Window, WindowClass,
};
use x11rb::rust_connection::{DefaultStream, RustConnection};
use x11rb::wrapper::ConnectionExt as _;

use super::{Broken, Done};

/// A selection of one request; more would need many small pieces.
pub(super) const LARGEST_SELECTION: usize = 200 << 10;
/// How long another program may take to give its clipboard.
const GIVING: Duration = Duration::from_secs(2);

x11rb::atom_manager! {
    /// Names of the X server that are used here.
    pub(super) Atoms: AtomsCookie {
        CLIPBOARD,
        TARGETS,
        TIMESTAMP,
        UTF8_STRING,
        TEXT_PLAIN: b"text/plain;charset=utf-8",
        BELLGLASS_SELECTION,
        _NET_ACTIVE_WINDOW,
        _NET_CLIENT_LIST,
        _NET_FRAME_EXTENTS,
        _NET_REQUEST_FRAME_EXTENTS,
        _NET_WM_NAME,
    }
}

pub(super) struct Display {
    pub(super) connection: RustConnection,
    pub(super) root: Window,
    pub(super) width: u16,
    pub(super) height: u16,
    pub(super) atoms: Atoms,
    /// A window that nobody sees, which owns the clipboard.
    own: Window,
    heard: Mutex<Heard>,
    news: Condvar,
}

/// What the events have told.
struct Heard {
    /// How often the screen has changed, and when it did last.
    changes: u64,
    last_change: Instant,
    /// What the clipboard holds, while it is ours.
    clipboard: Option<String>,
    /// How often it was given to somebody, and how often somebody asked what it can be given as.
    given: u64,
    asked: u64,
    /// The answer to our own question for somebody else's clipboard.
    received: Option<Option<String>>,
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
        let damage = connection.generate_id()?;
        connection.damage_create(damage, root, ReportLevel::RAW_RECTANGLES)?;
        let properties = ChangeWindowAttributesAux::new().event_mask(EventMask::PROPERTY_CHANGE);
        connection.change_window_attributes(root, &properties)?;
        connection.sync()?;
        let heard = Mutex::new(Heard {
            changes: 0,
            last_change: Instant::now(),
            clipboard: None,
            given: 0,
            asked: 0,
            received: None,
            gone: false,
        });
        let news = Condvar::new();
        let display = Arc::new(Self { connection, root, width, height, atoms, own, heard, news });
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
                Event::DamageNotify(_) => {
                    let mut heard = self.heard();
                    heard.changes += 1;
                    heard.last_change = Instant::now();
                }
                Event::SelectionRequest(request) => drop(self.give(&request)),
                Event::SelectionClear(event) if event.selection == self.atoms.CLIPBOARD => {
                    self.heard().clipboard = None;
                }
                Event::SelectionNotify(event) => {
                    let text = self.receive(&event).unwrap_or_default();
                    self.heard().received = Some(text);
                }
                _ => {}
            }
            self.news.notify_all();
        }
        self.heard().gone = true;
        self.news.notify_all();
    }

    pub(super) fn is_gone(&self) -> bool {
        self.heard().gone
    }

    /// Makes sure that all that was asked for so far has been done.
    pub(super) fn settle(&self) -> Done<()> {
        self.connection.sync()?;
        Ok(())
    }

    /// Waits until the screen changes; false if it does not in time.
    pub(super) fn wait_for_change(&self, until: Instant, stop: &dyn Fn() -> bool) -> bool {
        let before = self.heard().changes;
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

    fn wait(
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

    /// Puts a text where programs paste from: both the clipboard and what is selected.
    pub(super) fn offer(&self, text: &str) -> Done<()> {
        self.heard().clipboard = Some(text.into());
        for selection in [self.atoms.CLIPBOARD, AtomEnum::PRIMARY.into()] {
            self.connection.set_selection_owner(self.own, selection, x11rb::CURRENT_TIME)?;
        }
        self.settle()
    }

    /// Offers a text that is to be pasted at once. Programs that follow the clipboard ask about each
    /// new content; a paste that comes before they know is lost on them.
    pub(super) fn offer_for_pasting(&self, text: &str) -> Done<()> {
        const ASKING: Duration = Duration::from_millis(40);
        const TAKING_IN: Duration = Duration::from_millis(20);
        let before = self.heard().asked;
        self.offer(text)?;
        if self.wait(Instant::now() + ASKING, &|| false, |heard| heard.asked > before) {
            std::thread::sleep(TAKING_IN);
        }
        Ok(())
    }

    /// How often what we offer was taken.
    pub(super) fn times_given(&self) -> u64 {
        self.heard().given
    }

    pub(super) fn wait_until_given(&self, more_than: u64, within: Duration) -> bool {
        self.wait(Instant::now() + within, &|| false, |heard| heard.given > more_than)
    }

    /// What the clipboard holds, whoever owns it.
    pub(super) fn clipboard(&self) -> Done<Option<String>> {
        let owner = self.connection.get_selection_owner(self.atoms.CLIPBOARD)?.reply()?.owner;
        if owner == x11rb::NONE {
            return Ok(None);
        }
        if owner == self.own {
            return Ok(self.heard().clipboard.clone());
        }
        self.heard().received = None;
        self.connection.convert_selection(
            self.own,
            self.atoms.CLIPBOARD,
            self.atoms.UTF8_STRING,
            self.atoms.BELLGLASS_SELECTION,
            x11rb::CURRENT_TIME,
        )?;
        self.connection.flush()?;
        let until = Instant::now() + GIVING;
        self.wait(until, &|| false, |heard| heard.received.is_some());
        Ok(self.heard().received.take().flatten())
    }

    fn give(&self, request: &SelectionRequestEvent) -> Done<()> {
        let atoms = &self.atoms;
        let property =
            if request.property == x11rb::NONE { request.target } else { request.property };
        let text = self.heard().clipboard.clone().unwrap_or_default();
        let (connection, requestor) = (&self.connection, request.requestor);
        let string: u32 = AtomEnum::STRING.into();
        let is_text = [atoms.UTF8_STRING, atoms.TEXT_PLAIN, string].contains(&request.target);
        let answered = if request.target == atoms.TARGETS {
            let targets = [atoms.TARGETS, atoms.UTF8_STRING, atoms.TEXT_PLAIN];
            connection.change_property32(
                PropMode::REPLACE,
                requestor,
                property,
                AtomEnum::ATOM,
                &targets,
            )?;
            property
        } else if is_text && request.target != string {
            let kind = request.target;
            connection.change_property8(
                PropMode::REPLACE,
                requestor,
                property,
                kind,
                text.as_bytes(),
            )?;
            property
        } else {
            x11rb::NONE
        };
        let notice = SelectionNotifyEvent {
            response_type: SELECTION_NOTIFY_EVENT,
            sequence: 0,
            time: request.time,
            requestor,
            selection: request.selection,
            target: request.target,
            property: answered,
        };
        connection.send_event(false, requestor, EventMask::NO_EVENT, notice)?;
        connection.flush()?;
        let mut heard = self.heard();
        heard.given += u64::from(is_text && answered != x11rb::NONE);
        heard.asked += u64::from(request.target == atoms.TARGETS);
        Ok(())
    }

    fn receive(&self, event: &SelectionNotifyEvent) -> Done<Option<String>> {
        if event.property == x11rb::NONE {
            return Ok(None);
        }
        let most = (LARGEST_SELECTION / 4) as u32;
        let any = AtomEnum::ANY;
        let connection = &self.connection;
        let value =
            connection.get_property(true, self.own, event.property, any, 0, most)?.reply()?;
        Ok(Some(String::from_utf8_lossy(&value.value).into_owned()))
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<std::io::Error> for Broken {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}
