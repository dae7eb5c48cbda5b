//! Where the things of a job are found. Paths, so that they hold under any host name.

use bellglass_protocol::event::ResultSummary;
use bellglass_protocol::id::JobId;
use serde::Serialize;
use utoipa::ToSchema;

use crate::Server;

/// The addresses that go with every answer about a job.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Links {
    pub status_url: String,
    /// The page on which people watch the job.
    pub page_url: String,
    /// The history as server-sent events.
    pub events_url: String,
    /// The history as JSON lines.
    pub logs_url: String,
    /// The page of the job's desktop. It says so where the image has none.
    pub desktop_url: String,
    /// The JupyterLab of the sandbox. Its page says so where the image has none.
    pub jupyter_url: String,
    /// A port of the server's machine for the desktop alone, where `vnc_ports` is configured.
    #[schema(required)]
    pub vnc_port: Option<u16>,
}

impl Links {
    pub(crate) fn of(server: &Server, job: JobId) -> Self {
        Self {
            status_url: status_url(job),
            page_url: page_url(job),
            events_url: format!("/jobs/{job}/events"),
            logs_url: format!("/jobs/{job}/events?format=jsonl"),
            desktop_url: format!("/jobs/{job}/desktop/"),
            jupyter_url: format!("/jobs/{job}/jupyter/"),
            vnc_port: server.vnc.as_ref().and_then(|vnc| vnc.port(job)),
        }
    }
}

pub(crate) fn status_url(job: JobId) -> String {
    format!("/status/{job}")
}

pub(crate) fn page_url(job: JobId) -> String {
    format!("/watch/{job}")
}

pub(crate) fn job_url(job: JobId) -> String {
    format!("/jobs/{job}")
}

/// Where the ZIP will be, whether it is there yet or not.
pub(crate) fn download_url(job: JobId) -> String {
    format!("/jobs/{job}/output.zip")
}

/// Where the ZIP is, once it is stored.
pub(crate) fn result_url(job: JobId, result: Option<&ResultSummary>) -> Option<String> {
    result.map(|_| download_url(job))
}
