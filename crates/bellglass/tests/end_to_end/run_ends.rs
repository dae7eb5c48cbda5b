//! However `bellglass run` ends, nothing of its job is left.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{TestServer, bellglass, host, shell, signal, text};

/// A `bellglass run --json` whose temporary files lie in a folder of the test's.
struct Run {
    folder: TempDir,
    process: Child,
    events: Option<BufReader<ChildStdout>>,
    job: String,
}

impl Run {
    fn start(steps: &[Value]) -> Self {
        let folder = tempfile::Builder::new().prefix("bellglass-test-").tempdir().unwrap();
        fs::write(folder.path().join("job.json"), json!({ "steps": steps }).to_string()).unwrap();
        fs::create_dir(folder.path().join("tmp")).unwrap();
        let mut command = bellglass(folder.path());
        command.args(["run", "--json", "job.json"]).env("TMPDIR", folder.path().join("tmp"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let events = process.stdout.take().map(BufReader::new);
        let mut run = Self { folder, process, events, job: String::new() };
        run.job = text(&run.next_line().unwrap(), "job").to_owned();
        run
    }

    fn next_line(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.events.as_mut().unwrap().read_line(&mut line).unwrap();
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
    }

    fn until(&mut self, kind: &str) {
        while self.next_line().expect("the event comes")["type"] != kind {}
    }

    /// Closes the pipe, as `head` does when it has seen enough.
    fn stop_reading(&mut self) {
        self.events = None;
    }

    fn signal(&self, number: Signal) {
        signal(self.process.id() as i32, number);
    }

    /// Folders of runs that are there.
    fn runs(&self) -> Vec<PathBuf> {
        let parents = fs::read_dir(self.folder.path().join("tmp")).unwrap().flatten();
        let entries = parents.flat_map(|parent| fs::read_dir(parent.path()).unwrap()).flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }

    /// Waits for the end, checks that nothing is left, and returns the exit code.
    fn end(mut self) -> Option<i32> {
        let mut said = BufReader::new(self.process.stderr.take().unwrap());
        let said = std::io::read_to_string(&mut said).unwrap();
        let code = self.process.wait().unwrap().code();
        assert!(!said.contains("panicked"), "{said}");
        assert_eq!(host::guests_of(&self.job), Vec::<i32>::new(), "{said}");
        assert_eq!(host::control_groups_of(&self.job), Vec::<PathBuf>::new(), "{said}");
        assert_eq!(self.runs(), Vec::<PathBuf>::new(), "{said}");
        code
    }
}

impl Drop for Run {
    /// A test that fails must not leave what it was looking for.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        host::guests_of(&self.job).into_iter().for_each(host::kill_and_wait);
    }
}

#[test]
fn every_signal_cancels_the_job_and_keeps_its_work() {
    for number in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut run = Run::start(&[shell("echo kept > kept; echo up; sleep 1000")]);
        run.until("step.output");
        run.signal(number);
        run.until("finished");
        let result = run.next_line().unwrap();
        assert_eq!(result["result"], "job.zip", "{number:?}");
        assert!(run.folder.path().join("job.zip").is_file());
        assert_eq!(run.end(), Some(3), "{number:?}");
    }
}

#[test]
fn a_second_signal_takes_the_sandbox_along() {
    let mut run = Run::start(&[shell("echo up; sleep 1000")]);
    run.until("step.output");
    run.signal(Signal::TERM);
    run.until("cancel.requested");
    run.signal(Signal::TERM);
    // The job may have been over before the second came.
    assert!(matches!(run.end(), Some(1 | 3)));
}

/// Not even the process itself can clean up then; the next one does.
#[test]
fn what_a_killed_run_leaves_the_next_one_removes() {
    let mut run = Run::start(&[shell("echo up; sleep 1000")]);
    run.until("step.output");
    run.process.kill().unwrap();
    run.process.wait().unwrap();
    assert_eq!(run.runs().len(), 1);
    assert_ne!(host::control_groups_of(&run.job), Vec::<PathBuf>::new());
    let mut next = bellglass(run.folder.path());
    next.args(["run", "--json", "next.json"]).env("TMPDIR", run.folder.path().join("tmp"));
    fs::write(run.folder.path().join("next.json"), json!({ "steps": [shell("true")] }).to_string())
        .unwrap();
    assert!(next.output().unwrap().status.success());
    assert_eq!(run.runs(), Vec::<PathBuf>::new());
    assert_eq!(host::guests_of(&run.job), Vec::<i32>::new());
    assert_eq!(host::control_groups_of(&run.job), Vec::<PathBuf>::new());
}

#[test]
fn a_job_goes_on_when_nobody_reads_its_events() {
    let mut run = Run::start(&[shell("echo one"), shell("echo two")]);
    run.stop_reading();
    assert_eq!(run.end(), Some(0));
}

#[test]
fn thousands_of_events_are_shown_to_the_last() {
    let step = json!({ "tool": "write_file", "path": "a", "content": "x" });
    let mut run = Run::start(&vec![step; 600]);
    run.until("finished");
    assert_eq!(run.next_line().unwrap()["result"], "job.zip");
    assert_eq!(run.end(), Some(0));
}

#[tokio::test]
async fn following_a_log_ends_quietly_when_nobody_reads() {
    let server = TestServer::start();
    let job = server.submit(&json!({ "steps": [shell("echo up; sleep 1000")] })).await;
    server.wait_for_step(&job, "step.output", 1).await;
    for format in [None, Some("--json")] {
        let mut command = bellglass(server.folder());
        command.args(["logs", "--follow", &job, "--server", &server.url("")]).args(format);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(process.stdout.take());
        let output = process.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    }
}
