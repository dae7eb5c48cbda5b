//! Calls of the tools that work on the desktop.

use serde::{Deserialize, Serialize};

use crate::quantity::Seconds;

/// What a picture of the screen shows, and how large it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Screenshot {
    /// The window that it shows, by the id that `computer` lists under `windows`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// The part of the screen that it shows, in pixels of the screen; all of it by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<Region>,
    /// One that is wider than this is scaled down to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_width: Option<u32>,
    /// Scales it down to a size that models are shown as it is. For models that is always so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fit: bool,
}

impl From<&Screenshot> for Computer {
    fn from(shot: &Screenshot) -> Self {
        let Screenshot { window, region, max_width, fit } = *shot;
        Self { action: Action::Screenshot, window, region, max_width, fit, ..Self::default() }
    }
}

/// One thing to do with the screen, the pointer, the keyboard, the windows or the clipboard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Computer {
    /// What to do.
    pub action: Action,
    /// Where: pixels from the left of the last screenshot that was given, whatever part of the
    /// screen it showed and however it was scaled. Of the screen itself before the first. A job's own
    /// steps and others who use its sandbox each have theirs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<i32>,
    /// Where: pixels from the top, as `x`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub y: Option<i32>,
    /// Where a drag ends, or a window's left edge is to be; as `x`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_x: Option<i32>,
    /// Where a drag ends, or a window's upper edge is to be; as `y`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_y: Option<i32>,
    /// The text to type, or to put into the clipboard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Keys that are pressed together, such as `ctrl+shift+t`, `Return`, `alt+F4` or `a`; several
    /// combinations one after the other are separated by spaces. With a click: keys that are held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<String>,
    /// Where to scroll.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direction: Option<Direction>,
    /// How many notches of the wheel to scroll; 3 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amount: Option<u32>,
    /// How long to hold a key, or how long the screen must stand still; half a second by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<Seconds>,
    /// The window that is meant, by the id that `windows` shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    /// The part of the screen that a screenshot shows, in pixels of the screen; all of it by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<Region>,
    /// A screenshot that is wider than this is scaled down to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_width: Option<u32>,
    /// Scales a screenshot down to a size that models are shown as it is. For models that is always
    /// so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fit: bool,
    /// Seconds to wait at the most, for actions that wait; 10 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Seconds>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// A picture of the screen, of a region of it, or of a window.
    #[default]
    Screenshot,
    /// Where the pointer is.
    Cursor,
    Move,
    Click,
    DoubleClick,
    TripleClick,
    RightClick,
    MiddleClick,
    /// Presses at x and y, moves to to_x and to_y, and lets go.
    Drag,
    Scroll,
    /// Types any text, exactly once. Characters that the keyboard lacks go through the clipboard,
    /// which gets back the text that it held.
    Type,
    /// Presses keys.
    Key,
    /// Holds keys down for some seconds.
    HoldKey,
    /// Waits until something on the screen has changed since the last action or screenshot; carets
    /// that blink do not count.
    WaitForChange,
    /// Waits until the screen stands still.
    WaitForStability,
    /// Lists the windows.
    Windows,
    /// Brings a window to the front.
    FocusWindow,
    /// Moves a window.
    MoveWindow,
    GetClipboard,
    SetClipboard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    Up,
    Down,
    Left,
    Right,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Region {
    pub x: i32,
    pub y: i32,
    pub width: u32,
    pub height: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Xdot {
    /// Commands in xdotool's own words, such as `mousemove 10 10 click 1`. Several lines run one
    /// after the other.
    pub command: String,
    /// Seconds until it is killed; 30 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Seconds>,
}

/// One thing to do in the browser.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Browser {
    /// What to do.
    pub action: Browse,
    /// The address to open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// What is meant, by the number in brackets that the page was last shown with.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    pub node: Option<u64>,
    /// What is meant, by the words in quotes that the page shows it with, where exactly one thing has
    /// them. For those who write their steps before they see the page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What to fill in (for a box to tick `true` or `false`, for a date `2026-12-24`), or the script
    /// to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Scales a screenshot down to a size that models are shown as it is. For models that is always
    /// so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fit: bool,
    /// Seconds to wait at the most; 60 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Seconds>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Browse {
    /// Opens an address and shows the page as `read` does.
    Open,
    /// Shows the page: its text, and what can be worked on with its number.
    #[default]
    Read,
    Click,
    /// Puts a text into a field, in place of what is there.
    Fill,
    Back,
    /// Runs JavaScript in the page and gives its value.
    Script,
    /// A picture of the page. As with `computer`, later points are points of it.
    Screenshot,
    /// What the page wrote to its console, and what went wrong, since this was asked last.
    Console,
}

impl Browser {
    /// The first field that is missing for the action, and why.
    pub(super) fn fault(&self) -> Option<(&'static str, &'static str)> {
        const NEEDED: &str = "is needed for this action";
        match self.action {
            Browse::Read | Browse::Back | Browse::Screenshot | Browse::Console => None,
            Browse::Open => self.url.is_none().then_some(("url", NEEDED)),
            Browse::Click | Browse::Fill if self.node.is_none() && self.name.is_none() => {
                Some(("ref", "or `name` is needed for this action"))
            }
            Browse::Click => None,
            Browse::Fill | Browse::Script => self.text.is_none().then_some(("text", NEEDED)),
        }
    }
}

impl Computer {
    /// How long the call may take, where it says so or waits for something that may never come.
    pub(super) fn time(&self) -> Option<Seconds> {
        let waits = matches!(self.action, Action::WaitForChange | Action::WaitForStability);
        self.timeout.or(waits.then(|| Seconds::whole(10)))
    }

    /// The first field that is missing for the action, and why.
    pub(super) fn fault(&self) -> Option<(&'static str, &'static str)> {
        use Action::*;
        let place = || match (self.x, self.y) {
            (Some(_), Some(_)) => None,
            (None, _) => Some(("x", "is needed for this action")),
            (_, None) => Some(("y", "is needed for this action")),
        };
        let goal = || match (self.to_x, self.to_y) {
            (Some(_), Some(_)) => None,
            (None, _) => Some(("to_x", "is needed for this action")),
            (_, None) => Some(("to_y", "is needed for this action")),
        };
        let present =
            |is_there: bool, field| (!is_there).then_some((field, "is needed for this action"));
        match self.action {
            Screenshot | Cursor | WaitForChange | WaitForStability | Windows | GetClipboard => None,
            Move => place(),
            // Without a place they happen where the pointer is.
            Click | DoubleClick | TripleClick | RightClick | MiddleClick => {
                (self.x.is_some() || self.y.is_some()).then(place).flatten()
            }
            Drag => place().or_else(goal),
            Scroll => present(self.direction.is_some(), "direction"),
            Type | SetClipboard => present(self.text.is_some(), "text"),
            Key | HoldKey => present(self.keys.is_some(), "keys"),
            FocusWindow => present(self.window.is_some(), "window"),
            MoveWindow => present(self.window.is_some(), "window").or_else(goal),
        }
    }
}
