//! A made-up history, turn by turn: nothing of it is kept but where it stands.

use bellglass_agent::{Mind as _, TaskMind};
use bellglass_protocol::event::{Event, EventBody};
use bellglass_protocol::id::JobId;
use bellglass_protocol::model::{AnswerBlock, ModelAnswer, StopCause, Usage};
use bellglass_protocol::step::{StepOutcome, StepStatus};
use bellglass_protocol::tool::{Shell, ToolCall};
use jiff::Timestamp;

pub(crate) struct Log {
    job: JobId,
    seq: u64,
}

impl Default for Log {
    fn default() -> Self {
        Self { job: JobId::generate(), seq: 0 }
    }
}

impl Log {
    /// Something to begin with, which is never left out.
    pub(crate) fn begin(&mut self, mind: &mut TaskMind) {
        let text = "Look at all parts of the program.".into();
        self.hear(mind, vec![EventBody::MessageReceived { by: "a user".into(), text }]);
    }

    pub(crate) fn hear(&mut self, mind: &mut TaskMind, bodies: Vec<EventBody>) {
        for body in bodies {
            self.seq += 1;
            let (seq, at, job) = (self.seq, Timestamp::UNIX_EPOCH, self.job);
            mind.take_in(&Event { seq, at, job, body });
        }
    }

    /// An answer with a call, its step, and the step's result.
    pub(crate) fn turn(turn: u64) -> Vec<EventBody> {
        let command = format!("sed -n {turn},{}p src/main.rs", turn + 50);
        let arguments = serde_json::json!({ "command": command }).to_string();
        let answer = ModelAnswer {
            model: "local/x".into(),
            blocks: vec![
                AnswerBlock::Text { text: format!("Now I look at part {turn} of the program.") },
                AnswerBlock::ToolCall { id: format!("c{turn}"), name: "shell".into(), arguments },
            ],
            stop: StopCause::ToolCalls,
            usage: Usage::default(),
            cost_usd: None,
            duration_ms: 1,
        };
        let n = turn as u32;
        let call = ToolCall::Shell(Shell { command, ..Default::default() });
        vec![
            EventBody::ModelAnswered { answer: Box::new(answer), heard: None },
            EventBody::StepStarted { n, call },
            EventBody::StepFinished { n, outcome: Box::new(outcome(turn)) },
        ]
    }
}

fn outcome(turn: u64) -> StepOutcome {
    let output = format!("fn part_{turn}() -> u64 {{ {turn} }}\n").repeat(40);
    StepOutcome {
        status: StepStatus::Succeeded,
        exit_code: Some(0),
        signal: None,
        stdout: String::new(),
        stderr: String::new(),
        output_bytes: output.len() as u64,
        output,
        dropped_bytes: 0,
        unkept_bytes: 0,
        full_output: None,
        attachments: Vec::new(),
        error: None,
        duration_ms: 5,
    }
}
