//! What is wrong with a call before anything of it is tried.

use super::{ToolCall, Until, check_session_name};

impl ToolCall {
    /// The first field that makes no sense, and why; in words that follow the field's name.
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Shell(call) => source("command", &call.command)
                .or_else(|| call.session.as_deref().and_then(session))
                .or_else(|| {
                    let alone = call.session.is_none() && call.wait_for.is_some();
                    alone.then_some(("wait_for", "needs a `session` that lives on"))
                })
                .or_else(|| until(call.wait_for.as_ref())),
            Self::Python(code) | Self::TypeScript(code) => source("code", &code.code),
            Self::SendInput(call) => {
                session(&call.session).or_else(|| until(call.wait_for.as_ref()))
            }
            Self::WaitFor(call) => {
                let needs_none = matches!(call.until, Some(Until::Port(_)));
                if call.session.is_none() && !needs_none {
                    return Some(("session", "is needed to wait for anything but a port"));
                }
                let named = call.session.as_deref().and_then(session);
                named.or_else(|| until(call.until.as_ref()))
            }
            Self::CloseSession(call) => session(&call.session),
            Self::Computer(call) => call.fault(),
            Self::Browser(call) => call.fault(),
            Self::Xdot(call) => source("command", &call.command),
            Self::Unknown(_) => Some((
                "tool",
                "is of a newer program, or has fields that only a newer program knows",
            )),
            _ => None,
        }
    }
}

fn source(field: &'static str, text: &str) -> Option<(&'static str, &'static str)> {
    if text.trim().is_empty() {
        return Some((field, "is empty"));
    }
    text.contains('\0').then_some((field, "contains a NUL character"))
}

fn session(name: &str) -> Option<(&'static str, &'static str)> {
    check_session_name(name).err().map(|why| ("session", why))
}

fn until(condition: Option<&Until>) -> Option<(&'static str, &'static str)> {
    match condition {
        Some(Until::Pattern(pattern)) if pattern.is_empty() => {
            Some(("wait_for", "has an empty pattern, which everything matches"))
        }
        Some(Until::Pattern(pattern)) if pattern.len() > 4096 => {
            Some(("wait_for", "has a pattern of more than 4096 bytes"))
        }
        Some(Until::Port(0)) => Some(("wait_for", "names port 0, which cannot be open")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_found() {
        for (call, field) in [
            (r#"{"tool":"shell","command":" "}"#, Some("command")),
            (r#"{"tool":"shell","command":"ls"}"#, None),
            (r#"{"tool":"shell","command":"ls","session":"a b"}"#, Some("session")),
            (r#"{"tool":"shell","command":"ls","wait_for":{"port":80}}"#, Some("wait_for")),
            (r#"{"tool":"shell","command":"x","session":"a","wait_for":{"quiet":1}}"#, None),
            (r#"{"tool":"wait_for"}"#, Some("session")),
            (r#"{"tool":"wait_for","until":{"port":80}}"#, None),
            (r#"{"tool":"wait_for","until":{"port":0}}"#, Some("wait_for")),
            (r#"{"tool":"send_input","session":""}"#, Some("session")),
            (r#"{"tool":"python","code":"\u0000"}"#, Some("code")),
            (r#"{"tool":"computer","action":"screenshot"}"#, None),
            (r#"{"tool":"computer","action":"click"}"#, None),
            (r#"{"tool":"computer","action":"click","x":1}"#, Some("y")),
            (r#"{"tool":"computer","action":"drag","x":1,"y":1}"#, Some("to_x")),
            (r#"{"tool":"computer","action":"type"}"#, Some("text")),
            (r#"{"tool":"xdot","command":""}"#, Some("command")),
            (r#"{"tool":"browser","action":"open"}"#, Some("url")),
            (r#"{"tool":"browser","action":"fill","ref":3}"#, Some("text")),
            (r#"{"tool":"browser","action":"click","ref":3}"#, None),
        ] {
            let read: ToolCall = serde_json::from_str(call).unwrap();
            assert_eq!(read.fault().map(|(field, _)| field), field, "{call}");
        }
    }
}
