//! Names of artifacts. Made from a job's id and numbers only, so no text of a user is ever a path.
//!
//! What a worker writes while it holds a job lies under the number of its claim: a worker that lost the
//! job without noticing never writes over what its successor keeps, nor deletes it. Events name what
//! counts. Before there were such numbers, the same lay beside them.

use std::fmt;

use bellglass_protocol::checkpoint::CheckpointNumber;
use bellglass_protocol::event::ResultSummary;
use bellglass_protocol::id::{Generation, JobId};
use object_store::path::Path;

use super::ArtifactError;

/// The name of one artifact.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ArtifactKey(Path);

impl ArtifactKey {
    /// The workspace as a ZIP.
    pub fn result(job: JobId) -> Self {
        Self(folder_of(job).join("output.zip"))
    }

    /// The output of the job's `n`th step in full.
    pub fn step_output(job: JobId, n: u32) -> Self {
        Self(folder_of(job).join("steps").join(format!("{n}.log")))
    }

    /// Something beside text that the job's `n`th step gave, counted from 1.
    pub fn step_attachment(job: JobId, n: u32, number: u32) -> Self {
        Self(folder_of(job).join("steps").join(format!("{n}-{number}")))
    }

    /// The same as it is written under a claim.
    pub fn written_under(self, claim: Generation) -> Self {
        let mut parts = self.0.parts();
        let mut path = Path::from_iter(parts.by_ref().take(2));
        path = path.join(format!("g{}", claim.0));
        Self(parts.fold(path, |path, part| path.join(part)))
    }

    /// The ZIP of a job whose result is stored.
    pub fn of_result(job: JobId, result: &ResultSummary) -> Self {
        let named = result.artifact.as_deref().and_then(|name| Self::named(job, name));
        named.unwrap_or_else(|| Self::result(job))
    }

    /// The result, the output or the attachment of a step that an event names. Nothing if the name is no
    /// such one: what stands in a log is a text, and a text is never a path by itself.
    pub fn named(job: JobId, name: &str) -> Option<Self> {
        let folder = folder_of(job);
        let mut rest = name.strip_prefix(folder.as_ref())?.strip_prefix('/')?;
        let mut claim = None;
        if let Some((first, inner)) = rest.split_once('/')
            && let Some(number) = first.strip_prefix('g')
        {
            claim = Some(Generation(number.parse().ok()?));
            rest = inner;
        }
        let key = match (rest.strip_prefix("steps/"), rest) {
            (Some(step), _) => match (step.strip_suffix(".log"), step.split_once('-')) {
                (Some(n), _) => Self::step_output(job, n.parse().ok()?),
                (None, Some((n, number))) => {
                    Self::step_attachment(job, n.parse().ok()?, number.parse().ok()?)
                }
                (None, None) => return None,
            },
            (None, "output.zip") => Self::result(job),
            (None, _) => return None,
        };
        let key = match claim {
            Some(claim) => key.written_under(claim),
            None => key,
        };
        (key.as_str() == name).then_some(key)
    }

    /// A checkpoint of the workspace: bytes of files, and what is to be known about them.
    pub fn checkpoint(job: JobId, number: CheckpointNumber) -> Self {
        Self(folder_of(job).join("checkpoints").join(format!("{:016x}", number.0)))
    }

    /// The history of actions and results.
    pub fn memory(job: JobId) -> Self {
        Self(folder_of(job).join("memory.json"))
    }

    /// The conversation with the model as it stands, or as it stood at the job's end.
    pub fn context(job: JobId) -> Self {
        Self(folder_of(job).join("context").join("current.json"))
    }

    /// The conversation as it was before it was made smaller; `seq` is the newest event in it.
    pub fn context_at(job: JobId, seq: u64) -> Self {
        Self(folder_of(job).join("context").join(format!("{seq:010}.json")))
    }

    pub fn as_str(&self) -> &str {
        self.0.as_ref()
    }

    pub(super) fn of_path(path: Path) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// What an error of the object store means for this artifact.
    pub(super) fn error(&self, action: &'static str, source: object_store::Error) -> ArtifactError {
        match source {
            object_store::Error::NotFound { .. } => ArtifactError::NotFound(self.clone()),
            source => ArtifactError::Failed { action, key: self.clone(), source },
        }
    }
}

impl fmt::Display for ArtifactKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether nobody but one holder of the job ever writes under this name.
pub(super) fn is_written_by_one(path: &Path) -> bool {
    path.parts().next_back().is_none_or(|name| name.as_ref() != "current.json")
}

/// Below this lie the conversations of a job.
pub(super) fn contexts_of(job: JobId) -> ArtifactKey {
    ArtifactKey(folder_of(job).join("context"))
}

/// Below this lies everything of a job.
pub(super) fn folder_of(job: JobId) -> Path {
    Path::from("jobs").join(job.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_as_documented() {
        let job = JobId::generate();
        assert_eq!(ArtifactKey::result(job).as_str(), format!("jobs/{job}/output.zip"));
        assert_eq!(ArtifactKey::step_output(job, 12).as_str(), format!("jobs/{job}/steps/12.log"));
        assert_eq!(ArtifactKey::memory(job).as_str(), format!("jobs/{job}/memory.json"));
        assert_eq!(ArtifactKey::context(job).as_str(), format!("jobs/{job}/context/current.json"));
        let picture = ArtifactKey::step_attachment(job, 3, 1);
        let odd = [
            "",
            "3-1",
            "../../x/3-1",
            &format!("jobs/{job}/steps/03-1"),
            &format!("jobs/{job}/g07/steps/3-1"),
            &format!("jobs/{job}/g7/../output.zip"),
            &format!("jobs/{job}/g7/memory.json"),
        ];
        for odd in odd {
            assert_eq!(ArtifactKey::named(job, odd), None, "{odd}");
        }
        let under = picture.clone().written_under(Generation(7));
        assert_eq!(under.as_str(), format!("jobs/{job}/g7/steps/3-1"));
        for key in [picture, ArtifactKey::step_output(job, 3), ArtifactKey::result(job)] {
            for key in [key.clone(), key.written_under(Generation(7))] {
                assert_eq!(ArtifactKey::named(job, key.as_str()), Some(key.clone()));
                assert_eq!(ArtifactKey::named(JobId::generate(), key.as_str()), None);
            }
        }
        let earlier = ArtifactKey::context_at(job, 57);
        assert_eq!(earlier.as_str(), format!("jobs/{job}/context/0000000057.json"));
    }
}
