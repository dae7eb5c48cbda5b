//! The clipboard and what is selected: given to programs that ask, and asked of programs.
//!
//! Text that the keyboard lacks is pasted, and nothing tells that a program has pasted but its asking
//! for the text. So who asks matters: the X server's own VNC part asks about everything that is offered.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use x11rb::connection::Connection as _;
use x11rb::protocol::Event;
use x11rb::protocol::xproto::{
    AtomEnum, ConnectionExt as _, EventMask, PropMode, SELECTION_NOTIFY_EVENT,
    SelectionNotifyEvent, SelectionRequestEvent, Window,
};
use x11rb::wrapper::ConnectionExt as _;

use super::display::Display;
use super::{Broken, Done};

/// A selection of one request; more would need many small pieces.
pub(super) const LARGEST_SELECTION: usize = 200 << 10;
/// How long another program may take to give its clipboard.
const GIVING: Duration = Duration::from_secs(2);
/// How long a program that pastes from the clipboard may take until it has drawn what it pasted, and
/// how long it is silent when it has asked all that it asks: a page may look at a text before it takes it.
const DRAWING: Duration = Duration::from_secs(1);
const SILENT: Duration = Duration::from_millis(50);
/// For how long a screen rests that shows all that was clicked and typed, and how long that may take.
const RESTING: Duration = Duration::from_millis(40);
const COMING_TO_REST: Duration = Duration::from_millis(200);

/// A program at the X server, by what all its windows have in common. The server itself is nobody.
type Client = u32;
const THE_SERVER: Client = 0;

#[derive(Default)]
pub(super) struct Selections {
    /// What the clipboard holds, and what is selected, while they are ours.
    clipboard: Option<String>,
    selected: Option<String>,
    /// Who was given a text since the keys were pressed by which it is pasted.
    given: HashSet<Client>,
    /// Programs that paste what is selected.
    paste_selected: HashSet<Client>,
    /// When the clipboard was given last, and how often the screen had changed by then.
    taken: Option<(Instant, u64)>,
    /// When a program asked last.
    asked: Option<Instant>,
    /// The answer to our own question for somebody else's clipboard.
    received: Option<Received>,
}

/// What somebody else's clipboard holds.
enum Received {
    Text(String),
    Nothing,
    TooMuch,
}

impl Display {
    /// Puts a text into the clipboard, and where terminals paste from: what is selected.
    pub(super) fn offer(&self, text: &str) -> Done<()> {
        {
            let selections = &mut self.heard().selections;
            selections.clipboard = Some(text.into());
            selections.selected = Some(text.into());
        }
        for selection in [self.atoms.CLIPBOARD, AtomEnum::PRIMARY.into()] {
            self.connection.set_selection_owner(self.own, selection, x11rb::CURRENT_TIME)?;
        }
        self.settle()
    }

    /// Offers a text that is pasted by the keys that are pressed next. Returns whose window has the
    /// keyboard.
    pub(super) fn offer_for_pasting(
        &self,
        text: &str,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> Done<Option<Client>> {
        self.let_take_in();
        let before = self.client_with_keyboard()?;
        self.let_draw(before, until, stop);
        // What was clicked or typed before may have moved the keyboard elsewhere.
        let into = self.client_with_keyboard()?;
        self.offer(text)?;
        self.heard().selections.given.clear();
        Ok(into)
    }

    /// Waits until what was offered is pasted; false if it is not in time.
    pub(super) fn wait_until_pasted(
        &self,
        into: Option<Client>,
        until: Instant,
        stop: &dyn Fn() -> bool,
    ) -> bool {
        let pasted = self.wait(until, stop, |heard| match into {
            Some(client) => heard.selections.given.contains(&client),
            None => !heard.selections.given.is_empty(),
        });
        // Some programs have a second connection for their clipboard.
        pasted || !self.heard().selections.given.is_empty()
    }

    /// Leaves the clipboard as it was before something was pasted.
    pub(super) fn give_back(&self, text: Option<String>) -> Done<()> {
        self.let_take_in();
        let owner = if text.is_some() { self.own } else { x11rb::NONE };
        {
            // What somebody copied meanwhile is newer than what there was.
            let mut heard = self.heard();
            if heard.selections.clipboard.is_none() {
                return Ok(());
            }
            heard.selections.clipboard = text;
        }
        self.connection.set_selection_owner(owner, self.atoms.CLIPBOARD, x11rb::CURRENT_TIME)?;
        self.settle()
    }

    /// Takes back what was selected and not taken: nobody may paste it later, when nobody expects it. The
    /// clipboard is given back in any case.
    pub(super) fn withdraw(&self) -> Done<()> {
        let selected = AtomEnum::PRIMARY.into();
        self.connection.set_selection_owner(x11rb::NONE, selected, x11rb::CURRENT_TIME)?;
        self.settle()?;
        self.heard().selections.selected = None;
        Ok(())
    }

    /// What the clipboard holds, whoever owns it.
    pub(super) fn clipboard(&self) -> Done<Option<String>> {
        let owner = self.connection.get_selection_owner(self.atoms.CLIPBOARD)?.reply()?.owner;
        if owner == x11rb::NONE {
            return Ok(None);
        }
        if owner == self.own {
            return Ok(self.heard().selections.clipboard.clone());
        }
        self.heard().selections.received = None;
        self.connection.convert_selection(
            self.own,
            self.atoms.CLIPBOARD,
            self.atoms.UTF8_STRING,
            self.atoms.BELLGLASS_SELECTION,
            x11rb::CURRENT_TIME,
        )?;
        self.connection.flush()?;
        let until = Instant::now() + GIVING;
        self.wait(until, &|| false, |heard| heard.selections.received.is_some());
        match self.heard().selections.received.take() {
            Some(Received::Text(text)) => Ok(Some(text)),
            Some(Received::TooMuch) => {
                Err(Broken("the clipboard holds more than 200 KiB; save it to a file".into()))
            }
            Some(Received::Nothing) | None => Ok(None),
        }
    }

    /// Whose window has the keyboard, if one has it.
    fn client_with_keyboard(&self) -> Done<Option<Client>> {
        // No window, and whichever is under the pointer.
        const NO_WINDOWS: [Window; 2] = [0, 1];
        let window = self.connection.get_input_focus()?.reply()?.focus;
        let client = self.client_of(window);
        Ok((!NO_WINDOWS.contains(&window) && client != THE_SERVER).then_some(client))
    }

    fn client_of(&self, window: Window) -> Client {
        window & !self.connection.setup().resource_id_mask
    }

    /// A program that was given the clipboard is not through with it yet: Chromium pastes nothing if
    /// the clipboard becomes another one meanwhile. It is through once it has drawn what it pasted.
    /// Terminals paste what is selected, and have it with the first answer.
    fn let_take_in(&self) {
        let Some((given, changes)) = self.heard().selections.taken.take() else { return };
        self.wait(given + DRAWING, &|| false, |heard| {
            let is_silent = heard.selections.asked.is_none_or(|asked| asked.elapsed() >= SILENT);
            heard.changes > changes && is_silent
        });
    }

    /// What is drawn from now on must be what is pasted, not a click or a key of before, if it shall tell that
    /// the program is through with it.
    fn let_draw(&self, into: Option<Client>, until: Instant, stop: &dyn Fn() -> bool) {
        let until = until.min(Instant::now() + COMING_TO_REST);
        self.wait(until, stop, |heard| {
            let pastes_selected =
                into.is_some_and(|it| heard.selections.paste_selected.contains(&it));
            pastes_selected || heard.last_change.elapsed() >= RESTING
        });
    }

    pub(super) fn hear_of_selections(&self, event: &Event) -> Done<()> {
        match event {
            Event::SelectionRequest(request) => return self.give(request),
            Event::SelectionClear(event) => {
                let selections = &mut self.heard().selections;
                match event.selection == self.atoms.CLIPBOARD {
                    true => selections.clipboard = None,
                    false => selections.selected = None,
                }
            }
            Event::SelectionNotify(event) => {
                let received = self.receive(event).unwrap_or(Received::Nothing);
                self.heard().selections.received = Some(received);
            }
            _ => {}
        }
        Ok(())
    }

    fn give(&self, request: &SelectionRequestEvent) -> Done<()> {
        let (atoms, connection) = (&self.atoms, &self.connection);
        let SelectionRequestEvent { requestor, target, .. } = *request;
        // Old programs name no place for it.
        let property = if request.property == x11rb::NONE { target } else { request.property };
        let is_clipboard = request.selection == atoms.CLIPBOARD;
        let text = {
            let selections = &self.heard().selections;
            let text = if is_clipboard { &selections.clipboard } else { &selections.selected };
            text.clone()
        };
        let is_question = target == atoms.TARGETS;
        let is_text = [atoms.UTF8_STRING, atoms.TEXT_PLAIN].contains(&target);
        let answered = match text {
            Some(_) if is_question => {
                let targets = [atoms.TARGETS, atoms.UTF8_STRING, atoms.TEXT_PLAIN];
                let (mode, kind) = (PropMode::REPLACE, AtomEnum::ATOM);
                connection.change_property32(mode, requestor, property, kind, &targets)?;
                true
            }
            Some(text) if is_text => {
                let (mode, text) = (PropMode::REPLACE, text.as_bytes());
                connection.change_property8(mode, requestor, property, target, text)?;
                true
            }
            _ => false,
        };
        let notice = SelectionNotifyEvent {
            response_type: SELECTION_NOTIFY_EVENT,
            sequence: 0,
            time: request.time,
            requestor,
            selection: request.selection,
            target,
            property: if answered { property } else { x11rb::NONE },
        };
        connection.send_event(false, requestor, EventMask::NO_EVENT, notice)?;
        connection.flush()?;
        let client = self.client_of(requestor);
        if client == THE_SERVER || !answered {
            return Ok(());
        }
        let mut heard = self.heard();
        let (now, changes) = (Instant::now(), heard.changes);
        heard.selections.asked = Some(now);
        if is_text {
            heard.selections.given.insert(client);
            heard.selections.taken = is_clipboard.then_some((now, changes));
            // Another program may have got the number of one that is gone.
            match is_clipboard {
                true => heard.selections.paste_selected.remove(&client),
                false => heard.selections.paste_selected.insert(client),
            };
        }
        Ok(())
    }

    fn receive(&self, event: &SelectionNotifyEvent) -> Done<Received> {
        if event.property == x11rb::NONE {
            return Ok(Received::Nothing);
        }
        let most = (LARGEST_SELECTION / 4) as u32;
        let any = AtomEnum::ANY;
        let connection = &self.connection;
        let value =
            connection.get_property(true, self.own, event.property, any, 0, most)?.reply()?;
        if value.type_ == self.atoms.INCR || value.bytes_after > 0 {
            connection.delete_property(self.own, event.property)?;
            return Ok(Received::TooMuch);
        }
        Ok(Received::Text(String::from_utf8_lossy(&value.value).into_owned()))
    }
}
