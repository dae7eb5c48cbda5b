//! Calls of the tools that run programs: one-shot commands, terminal sessions, code in kernels.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::quantity::Seconds;

/// The longest name of a session.
const LONGEST_SESSION_NAME: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Shell {
    /// The command line, given to bash. It may have several lines.
    pub command: String,
    /// Where to run it; relative to the workspace. The workspace itself by default. A session goes
    /// there and stays there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// More environment variables. A session keeps them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Seconds until the command and all it started is killed. In a session it is interrupted
    /// instead, as by ctrl-c, and the session goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Seconds>,
    /// Runs the command in the terminal session of this name, which is opened if there is none:
    /// folder, variables and background jobs live on from call to call. Without it the command gets
    /// a process of its own and no terminal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// In a session: return as soon as this holds and leave the command running, such as a server
    /// once its port is open or an editor once its screen stands still. A pattern or a port may also
    /// come from what the command leaves in the background; one that never comes is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for: Option<Until>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SendInput {
    /// The session whose program gets the input.
    pub session: String,
    /// Text to type. It is not followed by enter unless it ends with a line break.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Keys to press after the text: `enter`, `tab`, `escape`, `backspace`, `up`, `down`, `left`,
    /// `right`, `home`, `end`, `page-up`, `page-down`, `insert`, `delete`, `f1` to `f12`, `ctrl-c` and
    /// the like, `alt-x` and the like, or one character.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<String>,
    /// When to return; once the terminal was quiet for a moment or the command is over, by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_for: Option<Until>,
    /// Seconds to wait at the most. The program goes on in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Seconds>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WaitFor {
    /// The session to watch. Only a port can be waited for without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// What to wait for; that the command of the session is over, by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Until>,
    /// Seconds to wait at the most. What is waited for goes on in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Seconds>,
}

/// What a call waits for. It is over in any case when the session's command has ended; where a pattern or
/// a port is waited for, when that has failed, or nothing runs in the session any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// Output that matches this regular expression (Rust's syntax), counted from the call on.
    Pattern(String),
    /// A TCP port of the sandbox's own loopback that takes connections.
    Port(u16),
    /// That the terminal writes nothing for so many seconds.
    Quiet(Seconds),
    /// That the command ends.
    Exit {},
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CloseSession {
    /// The session to end, with all that runs in it.
    pub session: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Code {
    /// The source text. It runs with the workspace as its current folder.
    pub code: String,
    /// Seconds until it is interrupted. What it had defined until then is kept. TypeScript that awaits cannot be
    /// interrupted: its kernel is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Seconds>,
    /// Starts a new kernel first, in which nothing is defined.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub restart: bool,
    /// Runs the code as a program of its own instead of in the kernel: it knows nothing of earlier
    /// calls, leaves nothing to later ones, and has an exit code.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fresh: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ListPorts {}

/// Says why a text cannot name a session; `Ok` if it can.
pub fn check_session_name(name: &str) -> Result<(), &'static str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() {
        return Err("is empty");
    }
    if name.len() > LONGEST_SESSION_NAME {
        return Err("is longer than 64 characters");
    }
    if !name.chars().all(fits) {
        return Err("may have letters, digits, `-`, `_` and `.` only");
    }
    Ok(())
}
