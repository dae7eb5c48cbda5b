//! `memory.json`: the history of a job's actions and their results, for people and for later jobs.

use jiff::Timestamp;
use serde::Serialize;

use crate::id::JobId;
use crate::job::Work;
use crate::step::{StepStatus, ToolError};
use crate::view::{JobView, StepView};

/// The document for a job as far as it has come. It borrows, since a history can be long.
pub fn memory_document(view: &JobView) -> impl Serialize + '_ {
    #[derive(Serialize)]
    struct Document<'a> {
        job_id: JobId,
        name: &'a Option<String>,
        task: Option<&'a str>,
        scheduled_at: Timestamp,
        started_at: Option<Timestamp>,
        failed_steps: &'a [u32],
        history: Vec<Action<'a>>,
    }
    #[derive(Serialize)]
    struct Action<'a> {
        n: u32,
        tool: &'a str,
        arguments: &'a serde_json::Value,
        status: StepStatus,
        exit_code: Option<i32>,
        result: &'a str,
        error: &'a Option<ToolError>,
        started_at: Timestamp,
        duration_ms: Option<u64>,
    }
    fn action(step: &StepView) -> Action<'_> {
        Action {
            n: step.n,
            tool: &step.tool,
            arguments: &step.arguments,
            status: step.status,
            exit_code: step.exit_code,
            result: &step.output,
            error: &step.error,
            started_at: step.started_at,
            duration_ms: step.duration_ms,
        }
    }
    Document {
        job_id: view.job_id,
        name: &view.spec.name,
        task: match &view.spec.work {
            Work::Task(task) => Some(task.as_str()),
            Work::Steps(_) | Work::Session(_) => None,
        },
        scheduled_at: view.scheduled_at,
        started_at: view.started_at,
        failed_steps: &view.failed_steps,
        history: view.steps.iter().map(action).collect(),
    }
}
