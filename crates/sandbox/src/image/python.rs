//! The Python part of an image: wheels fetched by the host's pip, so that the host's index, proxy
//! and certificates apply, but chosen for the image's Python.

use std::path::Path;

use super::enclosure::require_program;
use super::error::{ImageError, Registry};
use super::identity::Architecture;
use super::program::{host_command, run};
use super::progress::{Progress, Stage, StageBoard};
use super::recipe::PythonPart;

const STAGE: Stage = Stage::PythonPackages;

/// Fetches the packages and all they need as wheels into `wheels`, which must exist.
pub(super) async fn fetch(
    python: Option<&PythonPart>,
    architecture: Architecture,
    environment: &[(String, String)],
    wheels: &Path,
    board: &StageBoard<'_>,
) -> Result<(), ImageError> {
    if let Some(python) = python.filter(|python| !python.packages.is_empty()) {
        require_pip().await?;
        let mut command = host_command("python3");
        command.args(["-m", "pip", "download", "--only-binary=:all:", "--implementation=cp"]);
        command.args(["--disable-pip-version-check", "--no-input", "--retries=2"]);
        command.arg(format!("--python-version={}", python.version));
        command.args(platforms(architecture).map(|platform| format!("--platform={platform}")));
        command.arg("--dest").arg(wheels).arg("--").args(&python.packages);
        command.envs(environment.iter().cloned()).current_dir(wheels);
        let mut done = 0;
        let outcome = run(command, |line| {
            if let Some(requirement) = line.strip_prefix("Collecting ") {
                done += 1;
                let detail = format!("fetching {requirement}");
                board.update(Progress { stage: STAGE, done, total: 0, detail });
            }
        })
        .await
        .map_err(ImageError::io("run pip for", wheels))?;
        if !outcome.status.success() {
            return Err(ImageError::of_outcome(STAGE, "pip", Some(Registry::Python), &outcome));
        }
    }
    board.finished(&[STAGE]);
    Ok(())
}

async fn require_pip() -> Result<(), ImageError> {
    require_program("python3", "python3")?;
    let mut command = host_command("python3");
    let found = command.args(["-c", "import pip"]).output().await;
    if found.is_ok_and(|output| output.status.success()) {
        Ok(())
    } else {
        Err(ImageError::MissingProgram { program: "pip", package: "python3-pip" })
    }
}

/// Tags of wheels that run on Debian's glibc. pip does not work out by itself that a newer
/// glibc also takes wheels for older ones.
fn platforms(architecture: Architecture) -> impl Iterator<Item = String> {
    let machine = architecture.wheel_name();
    let named = ["manylinux2014", "linux"].into_iter().map(move |name| format!("{name}_{machine}"));
    (17..=36).rev().map(move |minor| format!("manylinux_2_{minor}_{machine}")).chain(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::progress::Silent;

    #[tokio::test]
    async fn an_index_that_is_away_is_a_clear_error() {
        let wheels = tempfile::tempdir().unwrap();
        let python = PythonPart { version: "3.11".into(), packages: vec!["requests".into()] };
        let nowhere = [
            ("PIP_INDEX_URL", "http://127.0.0.1:9/simple/"),
            ("PIP_FIND_LINKS", ""),
            ("PIP_EXTRA_INDEX_URL", ""),
            ("PIP_NO_CACHE_DIR", "1"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()));
        let board = StageBoard::new(&Silent);
        let error = fetch(Some(&python), Architecture::Amd64, &nowhere, wheels.path(), &board)
            .await
            .unwrap_err();
        assert!(
            matches!(&error, ImageError::Unreachable { stage: STAGE, .. }),
            "not seen as unreachable: {error}"
        );
        assert!(error.to_string().contains("Python package index cannot be reached"), "{error}");
    }
}
