//! Names for things, each with a type of its own so that they cannot be mixed up.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A job's name for life: a version 7 UUID, so ids sort by the time of scheduling.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "openapi", schema(value_type = String, format = "uuid"))]
#[serde(transparent)]
pub struct JobId(Uuid);

impl JobId {
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }

    /// The number behind the name, for databases that have a type for it.
    pub fn uuid(self) -> Uuid {
        self.0
    }
}

impl From<Uuid> for JobId {
    fn from(id: Uuid) -> Self {
        Self(id)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a job id.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a job id; ids look like 01890a5d-ac96-774b-bcce-b302099a8057")]
pub struct InvalidJobId(String);

impl FromStr for JobId {
    type Err = InvalidJobId;

    /// Only the canonical hyphenated form is accepted, so that one job has one URL.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shown = || InvalidJobId(text.chars().take(64).collect());
        let id = Uuid::try_parse(text).map_err(|_| shown())?;
        let job = Self(id);
        if job.to_string() == text { Ok(job) } else { Err(shown()) }
    }
}

/// Names one tool call within its sandbox. A call repeated with the same id is the same call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallId(String);

impl CallId {
    /// The id of a job's `n`th step. It is a function of the step so that a worker which comes
    /// back after a crash asks with the id that its predecessor used.
    pub fn of_step(n: u32) -> Self {
        Self(format!("step-{n}"))
    }

    /// The id of a call that nobody will ask for again.
    pub fn unique() -> Self {
        Self(format!("use-{}", JobId::generate()))
    }

    /// Whether the job itself made the call, as one of its steps.
    pub fn is_of_step(&self) -> bool {
        self.0.starts_with("step-")
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Counts how often a job has been claimed. A write that carries an older one is refused.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Generation(pub u32);

/// Who holds a job's lease: a name that no two worker processes share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct WorkerId(String);

impl WorkerId {
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_id_reads_back_what_it_prints() {
        let id = JobId::generate();
        assert_eq!(id.to_string().parse::<JobId>().unwrap(), id);
    }

    #[test]
    fn only_the_canonical_form_is_an_id() {
        let id = JobId::generate().to_string();
        for bad in [id.to_uppercase(), id.replace('-', ""), format!("{{{id}}}"), "../x".into()] {
            if bad != id {
                assert!(bad.parse::<JobId>().is_err(), "{bad}");
            }
        }
    }
}
