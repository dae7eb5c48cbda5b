//! The tools: what a step may ask for. One definition for playbooks, for models and for the guest.
//!
//! A tool is one line of [`tools!`] and a type for its fields. From these come the JSON that steps are
//! written in, the schemas that models and the API document show, and `docs/tools.md`.
//!
//! A call that comes from a client or a model is read strictly. One that comes from the store may be a newer
//! program's, and what cannot be read of it is kept as it stands.

mod desktop;
mod faults;
mod files;
mod programs;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::quantity::Seconds;
use crate::unknown::UnknownCall;

pub use desktop::{Action, Browse, Browser, Computer, Direction, Region, Screenshot, Xdot};
pub use files::{
    CopyFile, DeleteFile, DiffFiles, Edit, EditFile, Encoding, FindFiles, ListFiles, MoveFile,
    MultiEdit, ReadFile, SearchFiles, WriteFile,
};
pub use programs::{
    CloseSession, Code, ListPorts, SendInput, Shell, Until, WaitFor, check_session_name,
};

/// Makes the closed list of tools from one line for each: its words, its name, its fields.
macro_rules! tools {
    ($($(#[doc = $words:tt])+ tool $name:tt => $variant:ident($fields:ty),)+) => {
        /// One tool call as a client, a model or a playbook writes it:
        /// `{"tool": "shell", "command": "ls"}`.
        #[derive(Clone, Debug, PartialEq, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[serde(tag = "tool")]
        pub enum ToolCall {
            $($(#[doc = $words])+ #[serde(rename = $name)] $variant($fields),)+
            /// A stored call that a newer program made and this one cannot read. Nobody can ask for one.
            #[serde(skip)]
            Unknown(UnknownCall),
        }

        impl Serialize for ToolCall {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {
                    $(Self::$variant(fields) => Named { tool: $name, fields }.serialize(serializer),)+
                    Self::Unknown(call) => call.serialize(serializer),
                }
            }
        }

        impl ToolCall {
            /// Every tool's name, in the order in which documents list them.
            pub const NAMES: [&str; [$($name),+].len()] = [$($name),+];

            pub fn name(&self) -> &str {
                match self { $(Self::$variant(_) => $name,)+ Self::Unknown(call) => call.tool() }
            }

            /// What the tool of this name does, for whoever chooses one.
            pub fn description(name: &str) -> Option<&'static str> {
                match name { $($name => Some(concat!($($words),+).trim_ascii()),)+ _ => None }
            }
        }
    };
}

tools! {
    /// Runs a command line in bash. Without a session: a process of its own, with standard output
    /// and standard error apart. With `session`: in a terminal that lives on, for servers, prompts
    /// and full-screen programs.
    tool "shell" => Shell(Shell),
    /// Types text or presses keys in a terminal session: answers a prompt, steers an editor or a
    /// pager, interrupts with `ctrl-c`. Answers with what the terminal shows afterwards.
    tool "send_input" => SendInput(SendInput),
    /// Waits until a pattern is written, a port is open, the terminal is quiet or the command of a
    /// session is over. Answers with what was written meanwhile and what the terminal shows.
    tool "wait_for" => WaitFor(WaitFor),
    /// Ends a terminal session with all that runs in it. A later call may open one of the same name
    /// again.
    tool "close_session" => CloseSession(CloseSession),
    /// Runs Python code in the job's kernel. What it defines is there in the next call; figures,
    /// tables and other rich results are kept; `await` works at the top level.
    tool "python" => Python(Code),
    /// Runs TypeScript code in the job's kernel (Deno). What it defines is there in the next call;
    /// `await` and imports from npm work at the top level.
    tool "typescript" => TypeScript(Code),
    /// Creates a file or replaces its content. Missing folders are made. Use `edit_file` to change a
    /// part of a file.
    tool "write_file" => WriteFile(WriteFile),
    /// Reads lines of a text file, each with its number. A long file is read in parts by `offset`
    /// and `limit`. A picture (PNG, JPEG, GIF, WebP) comes as a picture.
    tool "read_file" => ReadFile(ReadFile),
    /// Replaces a piece of text in a file. The text must occur exactly once, unless all occurrences are
    /// to be replaced. A text that occurs nowhere as it is given, but once with other spaces at the ends
    /// of lines, another indentation or `\r\n`, is replaced there, with the new text written as the
    /// file is; the answer says so.
    tool "edit_file" => EditFile(EditFile),
    /// Makes several replacements in one file, one after the other, each as `edit_file` does: all of
    /// them, or none if one of them cannot be made.
    tool "multi_edit" => MultiEdit(MultiEdit),
    /// Copies a file of the workspace, of any size and content, or a folder with all that is in it.
    /// Nothing may stand at the new path; missing folders are made.
    tool "copy_file" => CopyFile(CopyFile),
    /// Moves or renames a file or a folder of the workspace. Nothing may stand at the new path;
    /// missing folders are made.
    tool "move_file" => MoveFile(MoveFile),
    /// Deletes a file of the workspace, or a folder with all that is in it where `recursive` is set.
    /// There is no way back.
    tool "delete_file" => DeleteFile(DeleteFile),
    /// Lists a folder of the workspace as a tree with the sizes of files, leaving out what
    /// `.gitignore` names.
    tool "list_files" => ListFiles(ListFiles),
    /// Finds lines that match a regular expression in the files of the workspace, leaving out what
    /// `.gitignore` names.
    tool "search_files" => SearchFiles(SearchFiles),
    /// Finds files of the workspace whose name or path matches a glob, leaving out what `.gitignore`
    /// names.
    tool "find_files" => FindFiles(FindFiles),
    /// Shows how two text files of the workspace differ, as a unified diff that `patch` understands.
    tool "diff_files" => DiffFiles(DiffFiles),
    /// Takes a picture of the desktop, of a part of it or of a window; as `computer` does. The desktop
    /// starts with the first call.
    tool "screenshot" => Screenshot(Screenshot),
    /// Looks at the desktop and works on it: screenshots, pointer, keyboard, windows, clipboard. The
    /// desktop starts with the first call. Look at a screenshot before and after you act.
    tool "computer" => Computer(Computer),
    /// Runs xdotool commands on the desktop, for those who have them already. `computer` is faster
    /// and types any text.
    tool "xdot" => Xdot(Xdot),
    /// Drives the Chromium on the desktop: opens pages, reads them as text with a number for all that
    /// can be worked on, clicks and fills by these numbers. Downloads go to `downloads` in the
    /// workspace.
    tool "browser" => Browser(Browser),
    /// Lists the TCP ports that programs of the sandbox listen on, with the program of each.
    tool "list_ports" => ListPorts(ListPorts),
}

/// A tool's fields with its name before them. Written out, because a derived form could not leave a call as it
/// stands.
#[derive(Serialize)]
struct Named<'a, T> {
    tool: &'static str,
    #[serde(flatten)]
    fields: &'a T,
}

/// Reads a call from the store: one that cannot be read whole is kept whole.
pub(crate) fn stored_call<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<ToolCall, D::Error> {
    let call = Value::deserialize(deserializer)?;
    ToolCall::deserialize(&call).or_else(|error| {
        match call {
            Value::Object(fields) => UnknownCall::new(fields).map(ToolCall::Unknown),
            _ => None,
        }
        .ok_or_else(|| D::Error::custom(error))
    })
}

/// The same for a list of calls.
pub(crate) fn stored_calls<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<ToolCall>, D::Error> {
    let calls = Vec::<Value>::deserialize(deserializer)?;
    calls.into_iter().map(|call| stored_call(call).map_err(D::Error::custom)).collect()
}

impl ToolCall {
    /// The time limit that the call itself asks for.
    pub fn timeout(&self) -> Option<Seconds> {
        match self {
            Self::Shell(call) => call.timeout,
            Self::SendInput(call) => call.timeout,
            Self::WaitFor(call) => call.timeout,
            Self::Python(code) | Self::TypeScript(code) => code.timeout,
            Self::Computer(call) => call.time(),
            Self::Browser(call) => call.timeout.or(Some(Seconds::whole(60))),
            Self::Xdot(call) => call.timeout.or(Some(Seconds::whole(30))),
            _ => None,
        }
    }

    /// The call as it is made for a model: its pictures of the screen are taken in a size that the
    /// model is shown as it is. So the points that the model names are points of the picture that the
    /// desktop knows.
    pub fn for_models(mut self) -> Self {
        match &mut self {
            Self::Screenshot(call) => call.fit = true,
            Self::Computer(call) => call.fit |= call.action == Action::Screenshot,
            Self::Browser(call) => call.fit |= call.action == Browse::Screenshot,
            _ => {}
        }
        self
    }

    /// The call's fields without the tool's name.
    pub fn arguments(&self) -> serde_json::Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        if let Some(fields) = value.as_object_mut() {
            fields.remove("tool");
        }
        value
    }

    /// The one text that says best what the call is about: a command, a path, a pattern.
    pub fn subject(&self) -> &str {
        match self {
            Self::Shell(call) => &call.command,
            Self::SendInput(call) => &call.session,
            Self::WaitFor(call) => call.session.as_deref().unwrap_or_default(),
            Self::CloseSession(call) => &call.session,
            Self::Python(code) | Self::TypeScript(code) => &code.code,
            Self::WriteFile(file) => &file.path,
            Self::ReadFile(file) => &file.path,
            Self::EditFile(file) => &file.path,
            Self::MultiEdit(file) => &file.path,
            Self::CopyFile(file) => &file.from,
            Self::FindFiles(find) => &find.glob,
            Self::DiffFiles(files) => &files.from,
            Self::MoveFile(file) => &file.from,
            Self::DeleteFile(file) => &file.path,
            Self::ListFiles(folder) => folder.path.as_deref().unwrap_or_default(),
            Self::SearchFiles(search) => &search.pattern,
            Self::Computer(call) => call.text.as_deref().unwrap_or_default(),
            Self::Xdot(call) => &call.command,
            Self::Browser(call) => call.url.as_deref().or(call.text.as_deref()).unwrap_or_default(),
            Self::Screenshot(_) | Self::ListPorts(_) | Self::Unknown(_) => "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_read_as_documented() {
        let call: ToolCall =
            serde_json::from_str(r#"{"tool":"shell","command":"ls","timeout":2}"#).unwrap();
        assert_eq!(call.name(), "shell");
        assert_eq!(call.timeout().unwrap().get(), 2.0);
        assert_eq!(call.arguments(), serde_json::json!({"command": "ls", "timeout": 2.0}));
    }

    #[test]
    fn only_pictures_of_the_screen_are_made_to_fit_models() {
        for (call, fits) in [
            (r#"{"tool":"screenshot"}"#, true),
            (r#"{"tool":"screenshot","max_width":9000}"#, true),
            (r#"{"tool":"computer","action":"screenshot","window":7}"#, true),
            (r#"{"tool":"computer","action":"click"}"#, false),
            (r#"{"tool":"browser","action":"screenshot"}"#, true),
            (r#"{"tool":"browser","action":"read"}"#, false),
            (r#"{"tool":"shell","command":"scrot"}"#, false),
        ] {
            let asked: ToolCall = serde_json::from_str(call).unwrap();
            let made = asked.clone().for_models();
            assert_eq!(made.arguments()["fit"] == true, fits, "{call}");
            assert_eq!(made == asked, !fits, "{call}");
        }
    }

    #[test]
    fn what_may_wait_for_ever_has_a_time() {
        for (call, time) in [
            (r#"{"tool":"computer","action":"wait_for_change"}"#, Some(10.0)),
            (r#"{"tool":"computer","action":"wait_for_change","timeout":3}"#, Some(3.0)),
            (r#"{"tool":"computer","action":"click"}"#, None),
            (r#"{"tool":"xdot","command":"x"}"#, Some(30.0)),
        ] {
            let call: ToolCall = serde_json::from_str(call).unwrap();
            assert_eq!(call.timeout().map(|time| time.get()), time, "{call:?}");
        }
    }

    #[test]
    fn unknown_fields_and_tools_are_refused() {
        for bad in [
            r#"{"tool":"shell","command":"ls","sudo":true}"#,
            r#"{"tool":"teleport"}"#,
            r#"{"tool":"shell"}"#,
            r#"{"command":"ls"}"#,
            r#"{"tool":"shell","command":5}"#,
        ] {
            assert!(serde_json::from_str::<ToolCall>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_list_of_names_is_complete() {
        let error = serde_json::from_str::<ToolCall>(r#"{"tool":"?"}"#).unwrap_err().to_string();
        for name in ToolCall::NAMES {
            assert!(error.contains(&format!("`{name}`")), "{name} is not in: {error}");
        }
        assert_eq!(error.matches('`').count(), 2 * (ToolCall::NAMES.len() + 1));
    }
}
