//! What a failure of PostgreSQL means for whoever asked: try elsewhere, try again, or give up.

use std::time::Duration;

use crate::StoreError;

/// What may be done about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The connection is of no use any more, or there is none to be had. Another may do.
    Connection,
    /// Somebody else was in the way. The same may succeed in a moment.
    Conflict,
    /// It will not succeed however often it is tried.
    Statement,
}

impl Fault {
    pub(super) fn of(error: &StoreError) -> Self {
        match error {
            StoreError::Database(error) => Self::of_sql(error),
            _ => Self::Statement,
        }
    }

    pub(super) fn of_sql(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::WorkerCrashed => Self::Connection,
            sqlx::Error::Database(error) => {
                error.code().map_or(Self::Statement, |code| Self::of_code(&code))
            }
            _ => Self::Statement,
        }
    }

    /// By PostgreSQL's codes of errors (appendix A of its manual).
    fn of_code(code: &str) -> Self {
        match code {
            // Shutting down, crashed, starting up, terminated, too many connections, idle for too
            // long within a transaction, and a standby that cannot write.
            "57P01" | "57P02" | "57P03" | "57P05" | "53300" | "25P03" | "25006" => Self::Connection,
            code if code.starts_with("08") => Self::Connection,
            // Serialization, deadlock, lock not available in time, statement not done in time.
            "40001" | "40P01" | "55P03" | "57014" => Self::Conflict,
            _ => Self::Statement,
        }
    }
}

/// How long to wait before the next try: longer each time, up to a second.
#[derive(Debug)]
pub(super) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(Duration::from_millis(20))
    }
}

impl Backoff {
    pub(super) async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 2).min(Duration::from_secs(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_tried_again_and_what_may_not_is_not() {
        for (code, fault) in [
            ("57P01", Fault::Connection),
            ("08006", Fault::Connection),
            ("40P01", Fault::Conflict),
            ("55P03", Fault::Conflict),
            ("23505", Fault::Statement),
            ("53100", Fault::Statement),
        ] {
            assert_eq!(Fault::of_code(code), fault, "{code}");
        }
        assert_eq!(Fault::of(&StoreError::Closed), Fault::Statement);
        assert_eq!(Fault::of_sql(&sqlx::Error::PoolTimedOut), Fault::Connection);
    }
}
