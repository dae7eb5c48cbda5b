//! What a tool gives back, whichever it is.

use bellglass_protocol::step::{StepStatus, ToolError};
use bytes::Bytes;

/// How a call ended and what it gave beside output.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StepStatus,
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    /// Takes the place of output for whoever reads along.
    pub(super) text: Option<String>,
    /// Stands below it.
    pub(super) note: Option<String>,
    pub(super) error: Option<ToolError>,
    pub(super) attachments: Vec<Given>,
}

/// Something beside text.
#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) media_type: String,
    pub(super) content: Bytes,
}

impl Default for Answer {
    fn default() -> Self {
        Self::of(StepStatus::Succeeded)
    }
}

impl Answer {
    pub(super) fn of(status: StepStatus) -> Self {
        Self {
            status,
            exit_code: None,
            signal: None,
            text: None,
            note: None,
            error: None,
            attachments: Vec::new(),
        }
    }

    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), ..Self::default() }
    }

    pub(super) fn of_error(error: ToolError) -> Self {
        Self { error: Some(error), ..Self::of(StepStatus::Failed) }
    }
}
