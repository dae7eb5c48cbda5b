//! The pointer: moved, clicked, dragged and scrolled through the X server's own test extension.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bellglass_protocol::tool::{Action, Computer, Direction};
use x11rb::connection::Connection as _;
use x11rb::protocol::xproto::{
    BUTTON_PRESS_EVENT, BUTTON_RELEASE_EVENT, ConnectionExt as _, MOTION_NOTIFY_EVENT,
};
use x11rb::protocol::xtest::ConnectionExt as _;

use super::{Done, Live, point};

/// Notches of the wheel at once.
const MOST_NOTCHES: u32 = 100;
/// Clicks of a double or triple click. Times of the X server are milliseconds.
const BETWEEN_CLICKS: Duration = Duration::from_millis(10);
/// Steps of a drag: programs want to see the pointer on its way.
const DRAG_STEPS: i32 = 20;
const BETWEEN_STEPS: Duration = Duration::from_millis(5);
/// How long a drag waits for a program at its start and before its end, and when that one has drawn.
const REACTING: Duration = Duration::from_millis(500);
const STILL: Duration = Duration::from_millis(60);

impl Live {
    pub(super) fn pointer(&self) -> Done<(i16, i16)> {
        let display = &self.display;
        let at = display.connection.query_pointer(display.root)?.reply()?;
        Ok((at.root_x, at.root_y))
    }

    /// Tells the X server of a plain move or click, and does not wait until it has been done: all
    /// that is asked of the server later comes after it. None if the call is of another kind, or if
    /// the server has not read yet what it was told before, for then somebody must wait for it.
    pub(super) fn point_at_once(&self, call: &Computer) -> Option<Done<()>> {
        let button = match call.action {
            Action::Move => None,
            Action::Click => Some(1),
            Action::MiddleClick => Some(2),
            Action::RightClick => Some(3),
            _ => return None,
        };
        if call.keys.is_some() || !self.display.has_read_everything() {
            return None;
        }
        self.note_changes();
        Some(self.go_to(call).and_then(|()| {
            if let Some(button) = button {
                self.display.connection.flush()?;
                self.clicked.store(true, Ordering::Relaxed);
                self.button(BUTTON_PRESS_EVENT, button)?;
                self.button(BUTTON_RELEASE_EVENT, button)?;
            }
            Ok(self.display.connection.flush()?)
        }))
    }

    /// What is asked for afterwards comes after it; nobody has to wait in between.
    pub(super) fn go_to(&self, call: &Computer) -> Done<()> {
        if call.x.is_some() {
            let (x, y) = point(call.x, call.y);
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

    pub(super) fn click(&self, call: &Computer, button: u8, times: u32) -> Done<()> {
        self.clicked.store(true, Ordering::Relaxed);
        self.go_to(call)?;
        self.holding(call.keys.as_deref(), || {
            for n in 0..times {
                // To Chromium, two clicks at the same time are one.
                if n > 0 {
                    self.display.settle()?;
                    std::thread::sleep(BETWEEN_CLICKS);
                }
                self.button(BUTTON_PRESS_EVENT, button)?;
                self.button(BUTTON_RELEASE_EVENT, button)?;
            }
            Ok(())
        })
    }

    pub(super) fn drag(&self, call: &Computer) -> Done<()> {
        let (from, to) = (point(call.x, call.y), point(call.to_x, call.to_y));
        self.clicked.store(true, Ordering::Relaxed);
        self.holding(call.keys.as_deref(), || {
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

    pub(super) fn scroll(&self, call: &Computer) -> Done<()> {
        self.go_to(call)?;
        let button = match call.direction {
            Some(Direction::Up) => 4,
            Some(Direction::Down) | None => 5,
            Some(Direction::Left) => 6,
            Some(Direction::Right) => 7,
        };
        self.holding(call.keys.as_deref(), || {
            for _ in 0..call.amount.unwrap_or(3).min(MOST_NOTCHES) {
                self.button(BUTTON_PRESS_EVENT, button)?;
                self.button(BUTTON_RELEASE_EVENT, button)?;
            }
            Ok(())
        })
    }
}
