//! What a model is shown of a tool's result: bounded, with a word about where the rest is.

use bellglass_protocol::step::{StepOutcome, StepStatus, workspace_relative};
use bellglass_protocol::tool::ToolCall;

use crate::context::FileUse;

/// The most bytes of a result that are shown at first: all that a worker keeps of a long output, with
/// its remarks.
const MOST_SHOWN: usize = 34_000;

/// The result of a step.
pub(super) fn of_step(n: u32, outcome: &StepOutcome) -> String {
    let mut text = cut(&outcome.output, &format!("read_output with step {n} reads them"));
    if text.trim().is_empty() {
        text = "(no output)".into();
    }
    let status = match outcome.status {
        StepStatus::Succeeded => "succeeded",
        StepStatus::Failed | StepStatus::Running => "failed",
        StepStatus::TimedOut => "timed out",
        StepStatus::Cancelled => "cancelled",
        StepStatus::Interrupted => "interrupted",
    };
    let seconds = outcome.duration_ms as f64 / 1000.0;
    let rest = match &outcome.full_output {
        Some(_) => format!(
            "; {} bytes of output in all: read_output with step {n} reads any of it",
            outcome.output_bytes
        ),
        None => String::new(),
    };
    let separator = if text.ends_with('\n') { "" } else { "\n" };
    format!("{text}{separator}[step {n} {status} in {seconds:.1} s{rest}]")
}

/// A text that is not too long, with a word about the entry that has it whole.
pub(super) fn bounded(text: &str, seq: u64) -> String {
    cut(text, &format!("entry {seq} has them: read_history"))
}

fn cut(text: &str, where_to_look: &str) -> String {
    if text.len() <= MOST_SHOWN {
        return text.to_owned();
    }
    let head = &text[..text.floor_char_boundary(MOST_SHOWN * 2 / 3)];
    let tail = &text[text.ceil_char_boundary(text.len() - MOST_SHOWN / 3)..];
    let left_out = text.len() - head.len() - tail.len();
    format!("{head}\n[… {left_out} bytes left out; {where_to_look} …]\n{tail}")
}

/// What a call does with a file, as far as that makes older views of it useless.
pub(super) fn file_use(call: &ToolCall) -> Option<FileUse> {
    let path = |path: &str| workspace_relative(path).to_owned();
    match call {
        // A part of a file does not stand for another part.
        ToolCall::ReadFile(read) if read.offset.is_none() && read.limit.is_none() => {
            Some(FileUse::View(path(&read.path)))
        }
        ToolCall::WriteFile(write) => Some(FileUse::Change(path(&write.path))),
        ToolCall::EditFile(edit) => Some(FileUse::Change(path(&edit.path))),
        ToolCall::DeleteFile(delete) => Some(FileUse::Change(path(&delete.path))),
        ToolCall::MoveFile(moved) => Some(FileUse::Change(path(&moved.from))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(output: &str) -> StepOutcome {
        StepOutcome {
            status: StepStatus::Failed,
            exit_code: Some(1),
            signal: None,
            stdout: String::new(),
            stderr: String::new(),
            output: output.into(),
            output_bytes: 7,
            dropped_bytes: 0,
            unkept_bytes: 0,
            full_output: Some("x".into()),
            attachments: Vec::new(),
            error: None,
            duration_ms: 1234,
        }
    }

    #[test]
    fn a_result_says_how_it_went_and_where_the_rest_is() {
        let text = of_step(3, &outcome("oops"));
        assert!(text.starts_with("oops\n[step 3 failed in 1.2 s; 7 bytes"), "{text}");
        assert!(of_step(3, &outcome("")).starts_with("(no output)\n"));
    }

    #[test]
    fn long_results_are_bounded() {
        let long = "ü".repeat(MOST_SHOWN);
        for (text, place) in [
            (of_step(3, &outcome(&long)), "read_output with step 3"),
            (bounded(&long, 9), "entry 9 has them"),
        ] {
            assert!(text.len() < MOST_SHOWN + 300 && text.contains(place), "{}", text.len());
        }
    }
}
