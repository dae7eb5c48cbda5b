//! How the program says how it ended. These numbers are documented and stable.

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Success = 0,
    /// Something went wrong; the message says what.
    Failure = 1,
    // 2 is clap's: the command line was not understood.
    /// The job itself failed or was cancelled, or a log was tampered with.
    JobFailed = 3,
    /// The server cannot be reached.
    Unreachable = 4,
    /// The server refused the request; the message says why.
    Refused = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The exit for an error that reached the top.
pub(crate) fn of_error(error: &anyhow::Error) -> Exit {
    match error.downcast_ref::<crate::api_client::ApiError>() {
        Some(crate::api_client::ApiError::Unreachable { .. }) => Exit::Unreachable,
        Some(crate::api_client::ApiError::Problem { .. }) => Exit::Refused,
        _ => Exit::Failure,
    }
}
