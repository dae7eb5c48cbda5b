//! `memory.json`: the history of a job's actions and their results, for people and for later jobs.

use serde::Serialize;

use crate::job::Work;
use crate::view::JobView;

/// Writes the document for a job as far as it has come.
pub fn memory_document(view: &JobView) -> serde_json::Value {
    #[derive(Serialize)]
    struct Action<'a> {
        n: u32,
        tool: &'a str,
        arguments: &'a serde_json::Value,
        status: crate::step::StepStatus,
        exit_code: Option<i32>,
        result: &'a str,
        error: &'a Option<crate::step::ToolError>,
        started_at: jiff::Timestamp,
        duration_ms: Option<u64>,
    }
    let history: Vec<_> = view
        .steps
        .iter()
        .map(|step| Action {
            n: step.n,
            tool: &step.tool,
            arguments: &step.arguments,
            status: step.status,
            exit_code: step.exit_code,
            result: &step.output,
            error: &step.error,
            started_at: step.started_at,
            duration_ms: step.duration_ms,
        })
        .collect();
    let task = match &view.spec.work {
        Work::Task(task) => Some(task.as_str()),
        Work::Steps(_) => None,
    };
    serde_json::json!({
        "job_id": view.job_id,
        "name": view.spec.name,
        "task": task,
        "scheduled_at": view.scheduled_at,
        "started_at": view.started_at,
        "failed_steps": view.failed_steps,
        "history": history,
    })
}
