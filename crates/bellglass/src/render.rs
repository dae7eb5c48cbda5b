//! Events as lines for people.

use std::collections::HashSet;
use std::io::{self, IsTerminal as _};

use bellglass_protocol::approval::{Decision, Wish};
use bellglass_protocol::event::{EndStatus, Event, EventBody};
use bellglass_protocol::model::{AnswerBlock, PlanStatus};
use bellglass_protocol::network::Verdict;
use bellglass_protocol::quantity::ByteSize;
use bellglass_protocol::step::StepStatus;

use crate::output::{self, Reader};
use crate::plain_output::{Line, PlainOutput};
use crate::progress::{ERASE, Progress, cut};

/// Prints a job's events as they come.
pub(crate) struct EventPrinter {
    colours: bool,
    /// Steps whose output was shown while they ran.
    shown_live: HashSet<u32>,
    steps_total: Option<usize>,
    /// Whether the last output ended in the middle of a line.
    in_line: bool,
    /// How far the program is in what its terminal is to obey.
    plain: PlainOutput,
    /// The server, under whose address pictures are found.
    server: Option<String>,
    /// Kept up to date at the end of what a terminal shows.
    progress: Option<Progress>,
    /// Whether it stands there now.
    drawn: bool,
}

/// Whether lines have colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Colours {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    Always,
    Never,
}

impl Colours {
    fn wanted(self) -> bool {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        match self {
            Self::Auto => io::stdout().is_terminal() && !plain,
            Self::Always => true,
            Self::Never => false,
        }
    }
}

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const CYAN: &str = "36";

/// So many characters are shown of what cannot be read.
const LONGEST_UNKNOWN: usize = 200;

impl EventPrinter {
    pub(crate) fn for_stdout() -> Self {
        Self {
            colours: Colours::Auto.wanted(),
            shown_live: HashSet::new(),
            steps_total: None,
            in_line: false,
            plain: PlainOutput::default(),
            server: None,
            progress: None,
            drawn: false,
        }
    }

    pub(crate) fn coloured(self, colours: Colours) -> Self {
        Self { colours: colours.wanted(), ..self }
    }

    /// Shows where pictures and other things beside text are found.
    pub(crate) fn with_links_to(self, server: String) -> Self {
        Self { server: Some(server), ..self }
    }

    /// Shows how far the job is, where that can be drawn over.
    pub(crate) fn with_progress(self) -> Self {
        let progress = io::stdout().is_terminal().then(Progress::default);
        Self { progress, ..self }
    }

    pub(crate) fn print(&mut self, event: &Event) -> io::Result<Reader> {
        let text = self.text_of(event);
        output::write(&text)
    }

    fn text_of(&mut self, event: &Event) -> String {
        let mut text = String::new();
        if std::mem::take(&mut self.drawn) {
            text.push_str(ERASE);
        }
        self.write(event, &mut text);
        if let Some(progress) = &mut self.progress {
            progress.take_in(event);
            // Half a line of output is not to be torn apart.
            if let Some(line) = progress.line().filter(|_| !self.in_line) {
                let (on, off) = if self.colours { ("\x1b[36m", "\x1b[0m") } else { ("", "") };
                // Only one row can be drawn over.
                let line = cut(line, output::window().map(|(columns, _)| columns));
                text.push_str(&format!("{on}{line}{off}"));
                self.drawn = true;
            }
        }
        text
    }

    fn write(&mut self, event: &Event, text: &mut String) {
        match &event.body {
            EventBody::Scheduled { spec } => {
                if let bellglass_protocol::job::Work::Steps(steps) = &spec.work {
                    self.steps_total = Some(steps.len());
                }
                let name =
                    spec.name.as_deref().map_or(String::new(), |name| format!(" “{}”", safe(name)));
                self.line(text, DIM, &format!("● job {}{name} scheduled", event.job));
            }
            EventBody::Claimed { worker, generation } => {
                let again = if generation.0 > 1 {
                    format!(", attempt {}", generation.0)
                } else {
                    String::new()
                };
                self.line(text, DIM, &format!("● claimed by worker {worker}{again}"));
            }
            EventBody::Released { .. } => {
                self.line(text, DIM, "● the worker was told to end; the job waits for the next");
            }
            EventBody::SandboxReady { report } => {
                let level = serde_json::to_string(&report.isolation).unwrap_or_default();
                let level = level.trim_matches('"');
                self.line(text, DIM, &format!("● sandbox ready: {level}, image {}", report.image));
                for missing in &report.missing {
                    self.line(text, YELLOW, &format!("  ! {}", safe(missing)));
                }
            }
            EventBody::SandboxLost { reason, kept } => {
                let reason = safe(reason);
                let next = match kept {
                    Some(step) => format!("going on after step {step}"),
                    None => "starting again".into(),
                };
                self.line(text, YELLOW, &format!("● sandbox lost, {next}: {reason}"));
            }
            EventBody::CheckpointStored { left_out, .. } => {
                for file in left_out {
                    self.line(text, YELLOW, &format!("  ! not in the checkpoint: {}", safe(file)));
                }
            }
            EventBody::CheckpointSkipped { step, reason } => {
                let reason = safe(reason);
                self.line(text, YELLOW, &format!("  ! no checkpoint after step {step}: {reason}"));
            }
            EventBody::RestoreRequested { .. } => {}
            EventBody::WorkspaceRestored { step, entries, .. } => {
                let words =
                    format!("● workspace restored: {}, as after step {step}", counted(*entries));
                self.line(text, DIM, &words);
            }
            EventBody::RestoreFailed { step, reason } => {
                let reason = safe(reason);
                let words = format!("● workspace not restored to step {step}: {reason}");
                self.line(text, YELLOW, &words);
            }
            EventBody::StepStarted { n, call } => {
                let total = self.steps_total.map_or(String::new(), |total| format!("/{total}"));
                let what = summary(call);
                self.line(text, BOLD, &format!("▶ {n}{total} {}  {what}", safe(call.name())));
            }
            EventBody::StepOutput { n, text: output, .. } => {
                self.shown_live.insert(*n);
                self.output(text, output);
            }
            EventBody::StepFinished { n, outcome } => {
                if !self.shown_live.contains(n) {
                    let both = format!("{}{}", outcome.stdout, outcome.stderr);
                    let shown = if both.is_empty() { outcome.output.clone() } else { both };
                    self.output(text, &shown);
                }
                let time = format!("{} ms", outcome.duration_ms);
                let (colour, mark, what) = match outcome.status {
                    StepStatus::Succeeded => (GREEN, "✔", "done".to_owned()),
                    StepStatus::TimedOut => (RED, "✘", "timed out".into()),
                    StepStatus::Cancelled => (YELLOW, "✘", "cancelled".into()),
                    StepStatus::Interrupted => (RED, "✘", "interrupted".into()),
                    StepStatus::Failed | StepStatus::Running => (
                        RED,
                        "✘",
                        match outcome.exit_code {
                            Some(code) => format!("failed with exit code {code}"),
                            None => "failed".into(),
                        },
                    ),
                };
                let error = outcome.error.as_ref().map_or(String::new(), |error| {
                    format!(": {} ({})", safe(&error.message), safe(&error.code))
                });
                self.line(text, colour, &format!("  {mark} {what} in {time}{error}"));
                for (k, attachment) in (1..).zip(&outcome.attachments) {
                    let (kind, size) = (safe(&attachment.media_type), ByteSize(attachment.bytes));
                    let place = self.server.as_ref().map_or(String::new(), |server| {
                        format!(" {server}/jobs/{}/steps/{n}/attachments/{k}", event.job)
                    });
                    self.line(text, CYAN, &format!("  ⧉ {kind}, {size}{place}"));
                }
            }
            EventBody::NetworkConnection { connection, count } => {
                let place = format!("{}:{}", safe(&connection.host), connection.port);
                let times = if *count > 1 { format!(", {count} times") } else { String::new() };
                let (colour, what) = match connection.verdict {
                    Verdict::Allowed => {
                        let (sent, got) = (connection.bytes_out, connection.bytes_in);
                        let (sent, got) = (ByteSize(sent), ByteSize(got));
                        (DIM, format!("reached: {sent} out, {got} in"))
                    }
                    Verdict::RefusedByPolicy => (YELLOW, "refused by the job's policy".into()),
                    Verdict::RefusedPrivateAddress => (YELLOW, "refused: not public".into()),
                    Verdict::NotResolved => (DIM, "has no address".into()),
                    Verdict::NotConnected => (DIM, "does not answer".into()),
                    Verdict::CutByPolicy => (YELLOW, "cut by the job's new policy".into()),
                };
                self.line(text, colour, &format!("⇄ {place} {what}{times}"));
            }
            EventBody::ModelAnswered { answer, .. } => {
                for block in &answer.blocks {
                    if let AnswerBlock::Text { text: words } = block {
                        self.output(text, &format!("{}\n", words.trim_end()));
                    }
                }
                let usage = &answer.usage;
                let cost = answer.cost_usd.map_or(String::new(), |usd| format!(", ${usd:.4}"));
                let (model, read, written) = (safe(&answer.model), usage.input, usage.output);
                let line = format!("● {model}: {read} tokens in, {written} out{cost}");
                self.line(text, DIM, &line);
            }
            EventBody::ModelFailed { model, error, retry_in_ms, .. } => {
                let again = match retry_in_ms {
                    Some(wait) => format!("; asking again in {wait} ms"),
                    None => String::new(),
                };
                let (model, message) = (safe(model), safe(&error.message));
                self.line(text, YELLOW, &format!("● {model}: {message}{again}"));
            }
            EventBody::ToolAnswered { tool, output, failed, .. } => {
                let mark = if *failed { "✘" } else { "✔" };
                let first = safe(output.lines().next().unwrap_or_default());
                let first: String = first.chars().take(90).collect();
                self.line(text, DIM, &format!("  {mark} {}  {first}", safe(tool)));
            }
            EventBody::McpConnected { server, tools } => {
                let line = format!("● MCP server {}: {} tools", safe(server), tools.len());
                self.line(text, DIM, &line);
            }
            EventBody::ToolStarted { tool, arguments, .. } => {
                let arguments: String = safe(arguments).chars().take(90).collect();
                self.line(text, BOLD, &format!("▶ {}  {arguments}", safe(tool)));
            }
            EventBody::ToolUsed { by, call, .. } => {
                self.line(text, DIM, &format!("● {} used {}", safe(by), safe(call.name())));
            }
            EventBody::FileWritten { by, path, bytes, .. } => {
                let (by, path) = (safe(by), safe(path));
                self.line(text, DIM, &format!("● {by} wrote {path} ({bytes} bytes)"));
            }
            EventBody::FileDeleted { by, path } => {
                self.line(text, DIM, &format!("● {} deleted {}", safe(by), safe(path)));
            }
            EventBody::LiveOpened { by, place } => {
                let place = place.to_string();
                self.line(text, DIM, &format!("● {} opened {}", safe(by), safe(&place)));
            }
            EventBody::DesktopTaken { by } => {
                self.line(text, YELLOW, &format!("● {} took over the desktop", safe(by)));
            }
            EventBody::DesktopReturned { by } => {
                self.line(text, DIM, &format!("● {} handed the desktop back", safe(by)));
            }
            EventBody::ApprovalRequested { approval } => {
                let wish = match &approval.wish {
                    Wish::Tool { name, arguments } => format!("call {name} {arguments}"),
                    Wish::Host(host) => format!("reach {host}"),
                };
                let wish: String = safe(&wish).chars().take(200).collect();
                self.line(text, BOLD, &format!("? may it {wish} ({})", safe(&approval.id)));
            }
            EventBody::ApprovalDecided { id, decision, by, .. } => {
                let word = match decision {
                    Decision::Allow => "allowed",
                    Decision::Refuse => "refused",
                };
                self.line(text, DIM, &format!("● {} {word} {}", safe(by), safe(id)));
            }
            // Shown when the answer is whole.
            EventBody::ModelSaid { .. } => {}
            EventBody::MemoryKept { texts, .. } => {
                self.line(text, DIM, &format!("● kept {} memories", texts.len()));
            }
            EventBody::MemoryRecalled { texts, .. } => {
                self.line(text, DIM, &format!("● recalled {} memories", texts.len()));
            }
            EventBody::PlanUpdated { steps } => {
                self.line(text, BOLD, "● plan");
                for step in steps {
                    let mark = match step.status {
                        PlanStatus::Pending => "☐",
                        PlanStatus::InProgress => "▸",
                        PlanStatus::Done => "☑",
                    };
                    self.line(text, DIM, &format!("  {mark} {}", safe(&step.title)));
                }
            }
            EventBody::QuestionAsked { question, .. } => {
                self.line(text, BOLD, &format!("? {}", safe(question)));
            }
            EventBody::MessageReceived { by, text: words } => {
                self.line(text, BOLD, &format!("● {}: {}", safe(by), safe(words)));
            }
            EventBody::Paused { by } => {
                self.line(text, YELLOW, &format!("● paused by {}", safe(by)));
            }
            EventBody::Resumed { by } => {
                self.line(text, DIM, &format!("● resumed by {}", safe(by)));
            }
            EventBody::ModelNudged { text: words } => self.line(text, YELLOW, &safe(words)),
            EventBody::ContextCompacted { compaction } => {
                let (before, after) = (compaction.tokens_before, compaction.tokens_after);
                let line = format!("● context made smaller: {before} to {after} tokens");
                self.line(text, DIM, &line);
            }
            EventBody::TaskFinished { summary, .. } => {
                self.output(text, &format!("{}\n", summary.trim_end()));
            }
            EventBody::NetworkChanged { network, by } => {
                let (network, by) = (network.to_string(), safe(by));
                self.line(text, YELLOW, &format!("● network changed by {by}: {}", safe(&network)));
            }
            EventBody::CancelRequested { by } => {
                self.line(text, YELLOW, &format!("● cancel requested by {}", safe(by)));
            }
            EventBody::ResultStored { result } => {
                let size = ByteSize(result.bytes);
                self.line(
                    text,
                    DIM,
                    &format!("● result stored: {}, {size}", counted(result.entries)),
                );
                for skipped in &result.skipped {
                    self.line(text, YELLOW, &format!("  ! left out: {}", safe(skipped)));
                }
            }
            // The end itself follows at once, and says the same.
            EventBody::Concluded { .. } => {}
            EventBody::Finished { end } => {
                let (colour, word) = match end.status {
                    EndStatus::Completed => (GREEN, "completed"),
                    EndStatus::Failed => (RED, "failed"),
                    EndStatus::Cancelled => (YELLOW, "cancelled"),
                };
                let failed = match end.failed_steps.as_slice() {
                    [] => String::new(),
                    steps => format!(" (failed steps: {})", join(steps)),
                };
                let error = end.error.as_ref().map_or(String::new(), |error| {
                    format!(": {} ({})", safe(&error.message), error.code)
                });
                self.line(text, colour, &format!("● job {word}{failed}{error}"));
            }
            EventBody::Unknown(record) => {
                let fields = serde_json::to_string(record.fields()).unwrap_or_default();
                let short: String = safe(&fields).chars().take(LONGEST_UNKNOWN).collect();
                let more = if short.len() < fields.len() { "…" } else { "" };
                self.line(text, DIM, &format!("● of a newer program: {short}{more}"));
            }
        }
    }

    fn line(&mut self, text: &mut String, colour: &str, line: &str) {
        self.plain.reset();
        if std::mem::take(&mut self.in_line) {
            text.push('\n');
        }
        if self.colours {
            text.push_str(&format!("\x1b[{colour}m{line}\x1b[0m\n"));
        } else {
            text.push_str(line);
            text.push('\n');
        }
    }

    fn output(&mut self, text: &mut String, output: &str) {
        let output = self.plain.take(output, if self.in_line { Line::Begun } else { Line::New });
        for piece in output.split_inclusive('\n') {
            if !self.in_line {
                text.push_str("    ");
            }
            text.push_str(&safe(piece.trim_end_matches('\n')));
            self.in_line = !piece.ends_with('\n');
            if !self.in_line {
                text.push('\n');
            }
        }
    }
}

/// What comes out of a sandbox must not command the terminal it is shown on.
pub(crate) fn safe(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// What a call is about, in one short line.
fn summary(call: &bellglass_protocol::tool::ToolCall) -> String {
    let mut lines = call.subject().lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    let mut short: String = safe(first).chars().take(90).collect();
    if lines.next().is_some() || first.chars().count() > 90 {
        short.push('…');
    }
    short
}

/// How many entries there are, in words.
pub(crate) fn counted(entries: u64) -> String {
    if entries == 1 { "1 entry".into() } else { format!("{entries} entries") }
}

fn join(numbers: &[u32]) -> String {
    numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellglass_protocol::id::JobId;
    use bellglass_protocol::step::OutputStream;

    #[test]
    fn output_cannot_command_the_terminal() {
        let mut printer = EventPrinter::for_stdout();
        let body = EventBody::StepOutput {
            n: 1,
            stream: OutputStream::Stdout,
            text: "\x1b]0;owned\x07 ok\nhalf".into(),
        };
        let at = jiff::Timestamp::UNIX_EPOCH;
        let event = Event { seq: 1, at, job: JobId::generate(), body };
        let mut text = String::new();
        printer.write(&event, &mut text);
        assert_eq!(text, "     ok\n    half");
        let body = EventBody::StepOutput {
            n: 1,
            stream: OutputStream::Stdout,
            text: "\r\x1b[32mdone\x1b[0m\u{9b}2J\x08\n".into(),
        };
        let mut text = String::new();
        printer.write(&Event { body, ..event }, &mut text);
        assert_eq!(text, "\n    done\u{fffd}2J\u{fffd}\n");
    }

    fn event(json: serde_json::Value) -> Event {
        let mut event = serde_json::json!({
            "seq": 1, "at": "2026-11-16T00:00:00Z", "job": JobId::generate(),
        });
        event.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
        serde_json::from_value(event).unwrap()
    }

    #[test]
    fn what_a_newer_program_wrote_is_one_dim_line() {
        let mut printer = EventPrinter::for_stdout().coloured(Colours::Always);
        let text = printer.text_of(&event(
            serde_json::json!({ "type": "weather.changed", "to": "\x1b[31mrain" }),
        ));
        let said = r#"{"to":"\u001b[31mrain","type":"weather.changed"}"#;
        assert_eq!(text, format!("\x1b[2m● of a newer program: {said}\x1b[0m\n"));
        let long = printer.text_of(&event(
            serde_json::json!({ "type": "weather.changed", "to": "x".repeat(9000) }),
        ));
        assert!(long.chars().count() < 300 && long.contains("x…"), "{long}");
    }

    fn finished(media_type: &str) -> Event {
        event(serde_json::json!({
            "type": "step.finished", "n": 1,
            "outcome": {
                "status": "succeeded", "exit_code": 0, "signal": null, "stdout": "", "stderr": "",
                "output": "", "output_bytes": 0, "dropped_bytes": 0, "full_output": null,
                "attachments": [{ "media_type": media_type, "bytes": 2048, "artifact": "x" }],
                "error": null, "duration_ms": 7,
            },
        }))
    }

    #[test]
    fn pictures_are_links() {
        let server = "http://localhost:8000".to_owned();
        let mut printer = EventPrinter::for_stdout().coloured(Colours::Never).with_links_to(server);
        let event = finished("image/png\x1b[31m");
        let text = printer.text_of(&event);
        let link = format!("http://localhost:8000/jobs/{}/steps/1/attachments/1", event.job);
        assert!(text.contains("⧉ image/png\u{fffd}[31m, 2 KiB") && text.contains(&link), "{text}");
        assert!(!text.contains('\x1b'), "{text:?}");
    }

    #[test]
    fn progress_stands_at_the_end_and_leaves_nothing_behind() {
        let mut printer = EventPrinter::for_stdout().coloured(Colours::Never);
        printer.progress = Some(Progress::default());
        let claimed = event(serde_json::json!({
            "type": "claimed", "worker": "w", "generation": 1,
        }));
        let first = printer.text_of(&claimed);
        assert!(first.ends_with("\n0 steps; the job prepares the sandbox"), "{first:?}");
        let second = printer.text_of(&finished("image/png"));
        assert!(second.starts_with(ERASE), "{second:?}");
        assert!(second.ends_with("\n1 step; the job prepares the sandbox"), "{second:?}");
        // Half a line stays whole until its end comes.
        let half = event(serde_json::json!({
            "type": "step.output", "n": 2, "stream": "stdout", "text": "half",
        }));
        assert_eq!(printer.text_of(&half), format!("{ERASE}    half"));
        let end = event(serde_json::json!({
            "type": "finished", "end": { "status": "completed", "failed_steps": [], "error": null },
        }));
        let last = printer.text_of(&end);
        assert!(last.starts_with('\n') && last.ends_with("job completed\n"), "{last:?}");
    }
}
