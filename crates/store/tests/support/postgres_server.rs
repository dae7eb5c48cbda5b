//! A PostgreSQL server of a test's own, for tests that stop it.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A server that ends with the test.
pub(crate) struct TestServer {
    folder: TempDir,
    pub(crate) url: String,
}

impl TestServer {
    pub(crate) fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("bg-pg").tempdir().unwrap();
        let url = script(&["start", folder.path().to_str().unwrap(), "fsync=off"]);
        Self { folder, url: url.trim().into() }
    }

    /// Stops it: `fast` cuts connections and shuts down, `immediate` is a crash.
    pub(crate) fn stop(&self, mode: &str) {
        script(&["stop", self.path(), mode]);
    }

    pub(crate) fn start_again(&self) {
        script(&["start", self.path()]);
    }

    fn path(&self) -> &str {
        self.folder.path().to_str().unwrap()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if self.folder.path().join("data/postmaster.pid").exists() {
            self.stop("immediate");
        }
    }
}

fn script(arguments: &[&str]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/postgres.sh");
    let ran = Command::new(script).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "postgres.sh {arguments:?}: {errors}");
    String::from_utf8(ran.stdout).unwrap()
}
