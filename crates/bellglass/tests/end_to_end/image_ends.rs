//! However `bellglass image build` ends, nothing half-made is left of the image.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::{bellglass, signal};

/// Large enough that its build is under way for a while, from the sources that this host's apt uses.
const RECIPE: &str = r#"
name = "interrupted"
suite = "bookworm"
[debian]
packages = ["bash"]
[user]
name = "agent"
id = 1000
home = "/home/agent"
shell = "/bin/bash"
"#;

/// A real build in a folder of its own.
struct Build {
    folder: TempDir,
    process: Child,
}

impl Build {
    fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("bellglass-test-").tempdir().unwrap();
        fs::write(folder.path().join("recipe.toml"), RECIPE).unwrap();
        let mut command = bellglass(folder.path());
        command.args(["image", "build", "--recipe", "recipe.toml", "--images"]);
        command.arg(folder.path().join("images"));
        let process = command.stderr(Stdio::piped()).spawn().unwrap();
        Self { folder, process }
    }

    /// Waits until the build is at a stage, sends it a signal, and returns what it said to its end.
    fn interrupt_at(&mut self, stage: &str, number: Signal) -> String {
        let mut said = BufReader::new(self.process.stderr.take().unwrap());
        let mut line = String::new();
        while !line.ends_with(&format!(" {stage}\n")) {
            line.clear();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "the build ended before {stage}");
        }
        let begun = entries(&self.images());
        assert!(begun.iter().any(|name| name.starts_with(".building-")), "{begun:?}");
        signal(self.process.id() as i32, number);
        let said = std::io::read_to_string(said).unwrap();
        assert_eq!(self.process.wait().unwrap().code(), Some(1), "{said}");
        said
    }

    fn images(&self) -> PathBuf {
        self.folder.path().join("images")
    }
}

impl Drop for Build {
    /// A test that fails must not leave what it was looking for.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn entries(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
}

/// Living programs that were told of a folder.
fn programs_about(folder: &Path) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(folder.to_str().unwrap())).collect()
}

#[test]
fn every_signal_ends_a_build_and_takes_along_what_it_made() {
    // One in the middle of the work, with mounts and programs in namespaces of their own.
    for (stage, number, name) in [
        ("1/6 resolve packages", Signal::INT, "Ctrl-C"),
        ("2/6 essential packages", Signal::TERM, "SIGTERM"),
        ("1/6 resolve packages", Signal::HUP, "SIGHUP"),
    ] {
        let mut build = Build::start();
        let said = build.interrupt_at(stage, number);
        let told = format!("interrupted by {name}; nothing half-made is left");
        assert!(said.contains(&told), "{said}");
        assert_eq!(entries(&build.images()), [".lock"], "{name}");
        // They are killed before the program ends, and gone a moment later.
        while !programs_about(build.folder.path()).is_empty() {
            std::thread::yield_now();
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(build.folder.path().to_str().unwrap()), "{mounts}");
    }
}
