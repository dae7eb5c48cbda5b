//! What the record of a step says, put together from its output and from what the guest tells.
//!
//! The guest's words are hostile: they are bounded, and what can be measured here is.

use std::time::Duration;

use bellglass_protocol::job::Limits;
use bellglass_protocol::step::{StepOutcome, StepStatus, ToolError};
use bellglass_protocol::tool::ToolCall;
use bellglass_protocol::wire::CallResult;

use crate::capture::Capture;
use crate::recording::Recording;
use crate::stop::StopReason;

/// The record of a step that the guest saw to its end.
pub(crate) fn of_result(
    capture: &Capture,
    result: CallResult,
    stopped: Option<StopReason>,
) -> StepOutcome {
    let recording = capture.recording();
    // A tool that answers with a text writes nothing else: that is its output.
    let answered = result.text.as_ref().map_or(0, |text| text.len() as u64);
    let shown = match result.text {
        Some(text) => clip(text, recording),
        None => capture.shown(),
    };
    let error = result.error.map(|error| ToolError {
        code: recording.fit(error.code.chars().take(64).collect()),
        message: clip(error.message, recording),
    });
    let status = match result.status {
        // A guest that claims to be still running has broken its word.
        StepStatus::Running => StepStatus::Failed,
        status => status,
    };
    let mut outcome = StepOutcome {
        status,
        exit_code: result.exit_code,
        signal: result.signal,
        stdout: capture.stdout(),
        stderr: capture.stderr(),
        output: shown,
        output_bytes: capture.total().max(answered),
        dropped_bytes: capture.dropped(),
        unkept_bytes: 0,
        full_output: None,
        attachments: Vec::new(),
        error: None,
        duration_ms: result.duration_us / 1000,
    };
    if let Some(error) = error {
        add_line(&mut outcome, &format!("{}: {}", error.code, error.message));
        outcome.error = Some(error);
    }
    match (status, result.exit_code, result.signal) {
        // The guest has said what became of it.
        (StepStatus::TimedOut | StepStatus::Cancelled, ..) if outcome.error.is_some() => {}
        (StepStatus::TimedOut, ..) => add_line(&mut outcome, "killed: the time limit was reached"),
        (StepStatus::Cancelled, ..) if stopped == Some(StopReason::TimeLimit) => {
            add_line(&mut outcome, "killed: the job's time limit was reached");
        }
        (StepStatus::Cancelled, ..) => add_line(&mut outcome, "killed: the job was cancelled"),
        (_, Some(code), _) if code != 0 => add_line(&mut outcome, &format!("exit code {code}")),
        (_, _, Some(signal)) => add_line(&mut outcome, &format!("killed by signal {signal}")),
        _ => {}
    }
    if let Some(note) = result.note {
        let note: String = note.chars().take(LONGEST_NOTE).collect();
        add_line(&mut outcome, &recording.fit(note));
    }
    outcome
}

/// The longest remark of a guest that is taken over.
const LONGEST_NOTE: usize = 500;

/// The record of a step whose end nobody saw.
pub(crate) fn of_interruption(
    capture: &Capture,
    code: &str,
    message: String,
    after: Duration,
) -> StepOutcome {
    let result = CallResult {
        status: StepStatus::Interrupted,
        exit_code: None,
        signal: None,
        text: None,
        error: Some(ToolError { code: code.into(), message }),
        duration_us: u64::try_from(after.as_micros()).unwrap_or(u64::MAX),
        output_bytes: capture.total(),
        memory_kills: 0,
        note: None,
        attachments: Vec::new(),
    };
    of_result(capture, result, None)
}

/// The record of a call that only a newer program could make.
pub(crate) fn of_unknown_call(capture: &Capture, call: &ToolCall) -> StepOutcome {
    let (field, why) = call.fault().unwrap_or(("tool", "is not known"));
    let message = format!("`{field}` {why}");
    let mut outcome = of_interruption(capture, "invalid_argument", message, Duration::ZERO);
    outcome.status = StepStatus::Failed;
    outcome
}

/// Says that processes were ended for want of memory, if some were.
pub(crate) fn note_out_of_memory(outcome: &mut StepOutcome, kills: u64, limits: &Limits) {
    if kills == 0 {
        return;
    }
    let processes = if kills == 1 { "1 process was" } else { &format!("{kills} processes were") };
    let message = format!(
        "{processes} ended because the sandbox reached its memory limit of {}",
        limits.memory
    );
    add_line(outcome, &format!("out_of_memory: {message}"));
    // A step may get over the end of a process of its own.
    if outcome.status.is_failure() {
        outcome.error.get_or_insert(ToolError { code: "out_of_memory".into(), message });
    }
}

/// Adds a remark of ours to what a model is shown.
fn add_line(outcome: &mut StepOutcome, remark: &str) {
    let shown = &mut outcome.output;
    if !shown.is_empty() && !shown.ends_with('\n') {
        shown.push('\n');
    }
    shown.push_str(&format!("[{remark}]"));
}

/// Whether a guest's text does not go into the record as it is.
pub(crate) fn is_clipped(text: &str, recording: Recording) -> bool {
    text.len() > recording.most_guest_text() || !recording.keeps(text)
}

fn clip(mut text: String, recording: Recording) -> String {
    let most = recording.most_guest_text();
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.push_str("\n[cut]");
    }
    recording.fit(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellglass_protocol::step::OutputStream;

    fn result(status: StepStatus, exit_code: Option<i32>) -> CallResult {
        CallResult {
            status,
            exit_code,
            signal: None,
            text: None,
            error: None,
            duration_us: 5,
            output_bytes: 0,
            memory_kills: 0,
            note: None,
            attachments: Vec::new(),
        }
    }

    #[test]
    fn remarks_stand_below_the_output() {
        let mut capture = Capture::new(Recording::Full);
        capture.push(OutputStream::Stdout, b"half a line");
        let shown =
            |status, code, stopped| of_result(&capture, result(status, code), stopped).output;
        assert_eq!(shown(StepStatus::Succeeded, Some(0), None), "half a line");
        assert_eq!(shown(StepStatus::Failed, Some(2), None), "half a line\n[exit code 2]");
        assert_eq!(
            shown(StepStatus::Cancelled, None, Some(StopReason::TimeLimit)),
            "half a line\n[killed: the job's time limit was reached]"
        );
    }

    #[test]
    fn a_guest_cannot_flood_the_record() {
        for recording in [Recording::Full, Recording::Short] {
            let most = recording.most_guest_text();
            let mut long = result(StepStatus::Running, None);
            long.text = Some("ü".repeat(most));
            let outcome = of_result(&Capture::new(recording), long, None);
            assert!(outcome.output.len() <= most + 10);
            assert_eq!(outcome.output_bytes, 2 * most as u64);
            assert_eq!(outcome.status, StepStatus::Failed);
        }
    }
}
