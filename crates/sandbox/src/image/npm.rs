//! The npm part of an image: packages installed by the host's npm into a staging tree, so that the
//! host's registry, proxy and certificates apply.

use std::path::Path;

use super::enclosure::require_program;
use super::error::{ImageError, Registry};
use super::identity::Architecture;
use super::program::{host_command, run};
use super::progress::{Progress, Stage, StageBoard};
use super::recipe::NpmPart;

const STAGE: Stage = Stage::NpmPackages;

/// Installs the packages globally below `prefix`, as if that were `/usr/local`.
pub(super) async fn fetch(
    npm: &NpmPart,
    architecture: Architecture,
    environment: &[(String, String)],
    prefix: &Path,
    board: &StageBoard<'_>,
) -> Result<(), ImageError> {
    if !npm.packages.is_empty() {
        require_program("npm", "npm")?;
        let packages: Vec<String> =
            npm.packages.iter().map(|package| architecture.fill(package)).collect();
        let detail = format!("fetching {}", packages.join(", "));
        board.update(Progress { detail, ..Progress::start_of(STAGE) });
        let mut command = host_command("npm");
        command.args(["install", "--global", "--no-audit", "--no-fund", "--loglevel=error"]);
        // Code of packages runs in sandboxes, never on the host.
        command.args(["--ignore-scripts", "--no-update-notifier"]);
        command.args(["--fetch-retries=2", "--fetch-retry-mintimeout=500"]);
        command.arg("--fetch-retry-maxtimeout=2000");
        command.arg("--prefix").arg(prefix).arg("--").args(&packages);
        command.envs(environment.iter().cloned()).current_dir(prefix);
        let outcome = run(command, |_| {}).await.map_err(ImageError::io("run npm for", prefix))?;
        if !outcome.status.success() {
            return Err(ImageError::of_outcome(STAGE, "npm", Some(Registry::Npm), &outcome));
        }
        for path in &npm.remove {
            remove(&prefix.join("lib/node_modules").join(architecture.fill(path)))?;
        }
    }
    board.finished(&[STAGE]);
    Ok(())
}

fn remove(path: &Path) -> Result<(), ImageError> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
        // Another version of a package may lack what the recipe does not want anyway.
        Err(_) => Ok(()),
    };
    removed.map_err(ImageError::io("remove", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::progress::Silent;

    #[tokio::test]
    async fn a_registry_that_is_away_is_a_clear_error() {
        let prefix = tempfile::tempdir().unwrap();
        let npm = NpmPart { packages: vec!["is-odd@3.0.1".into()], remove: Vec::new() };
        let nowhere = [
            ("npm_config_registry", "http://127.0.0.1:9/".to_owned()),
            ("npm_config_cache", prefix.path().join("cache").display().to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value));
        let board = StageBoard::new(&Silent);
        let error =
            fetch(&npm, Architecture::Amd64, &nowhere, prefix.path(), &board).await.unwrap_err();
        assert!(
            matches!(&error, ImageError::Unreachable { stage: STAGE, .. }),
            "not seen as unreachable: {error}"
        );
        assert!(error.to_string().contains("npm registry cannot be reached"), "{error}");
    }
}
