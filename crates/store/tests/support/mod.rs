//! Jobs and logs for the tests of the store.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use bellglass_protocol::chain::Verifier;
use bellglass_protocol::event::{EndStatus, EventBody, JobEnd, ResultSummary};
use bellglass_protocol::id::{JobId, WorkerId};
use bellglass_protocol::job::{
    Budget, DEFAULT_IMAGE, IsolationLevel, JobSpec, Limits, OnError, Priority, Work,
};
use bellglass_protocol::network::NetworkPolicy;
use bellglass_protocol::step::{OutputStream, StepOutcome, StepStatus};
use bellglass_protocol::tool::{Shell, ToolCall};
use bellglass_store::Store;

pub(crate) fn steps_job(command: &str) -> JobSpec {
    let shell = Shell { command: command.into(), ..Default::default() };
    JobSpec {
        name: None,
        work: Work::Steps(vec![ToolCall::Shell(shell)]),
        on_error: OnError::Continue,
        priority: Priority(0),
        image: DEFAULT_IMAGE.into(),
        limits: Limits::default(),
        network: NetworkPolicy::None,
        isolation: IsolationLevel::Namespace,
        nested_sandboxing: false,
        desktop: None,
        secrets: Default::default(),
        files: Vec::new(),
        model: None,
        budget: Budget::default(),
        plan: Default::default(),
        mcp: Default::default(),
        approve: Vec::new(),
        project: None,
        fork: None,
        owner: None,
    }
}

pub(crate) fn task_job(task: &str) -> JobSpec {
    JobSpec { work: Work::Task(task.into()), ..steps_job("") }
}

pub(crate) fn with_priority(priority: i32) -> JobSpec {
    JobSpec { priority: Priority(priority), ..steps_job("true") }
}

pub(crate) fn worker(name: &str) -> WorkerId {
    WorkerId::new(name)
}

pub(crate) fn output(text: &str) -> EventBody {
    EventBody::StepOutput { n: 1, stream: OutputStream::Stdout, text: text.into() }
}

pub(crate) fn finished(status: EndStatus) -> EventBody {
    EventBody::Finished { end: JobEnd { status, failed_steps: Vec::new(), error: None } }
}

pub(crate) fn step_finished(n: u32, status: StepStatus) -> EventBody {
    let outcome = StepOutcome {
        status,
        exit_code: None,
        signal: None,
        stdout: "out".into(),
        stderr: String::new(),
        output: "out".into(),
        output_bytes: 3,
        dropped_bytes: 0,
        unkept_bytes: 0,
        full_output: None,
        attachments: Vec::new(),
        error: None,
        duration_ms: 1,
    };
    EventBody::StepFinished { n, outcome: Box::new(outcome) }
}

pub(crate) fn result_stored() -> EventBody {
    let result = ResultSummary {
        bytes: 7,
        sha256: "x".into(),
        entries: 1,
        skipped: Vec::new(),
        artifact: None,
    };
    EventBody::ResultStored { result }
}

/// Reads the whole log in small pages and checks its chain; returns the kinds of its events.
pub(crate) async fn verified_kinds(store: &dyn Store, job: JobId) -> Vec<String> {
    let mut verifier = Verifier::new(Some(job));
    let mut kinds = Vec::new();
    loop {
        let page = store.events_after(job, kinds.len() as u64, 3).await.unwrap();
        if page.is_empty() {
            break;
        }
        assert!(page.len() <= 3);
        for sealed in page {
            assert_eq!(verifier.line(&sealed.line).unwrap(), sealed.event);
            kinds.push(sealed.event.body.kind().to_owned());
        }
    }
    let (lines, _) = verifier.finish().unwrap();
    assert_eq!(lines, kinds.len() as u64);
    kinds
}
