//! A data folder without room: what cannot be written is said to be so, and everything goes on once there is
//! room again.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{TestServer, shell, text};

/// A small file system of its own in the place of a folder. It needs root.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn at(folder: &Path) -> Self {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"]).arg(folder);
        assert!(mount.status().unwrap().success());
        Self(folder.to_owned())
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    fn fill(&self) {
        let mut filler = fs::File::options().create(true).append(true).open(self.filler()).unwrap();
        for size in [1 << 20, 1 << 12, 1] {
            while filler.write_all(&vec![0; size]).is_ok() {}
        }
    }

    fn make_room(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Whatever still holds on to it keeps it, unseen.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_data_folder_refuses_jobs_and_fails_those_that_run_but_not_the_server() {
    let mut server = TestServer::start();
    server.stop();
    fs::remove_dir_all(server.data()).unwrap();
    fs::create_dir(server.data()).unwrap();
    let disk = SmallDisk::at(&server.data());
    server.start_again();
    let before = server.run(&json!({ "steps": [shell("echo before")] })).await;
    assert_eq!(before["status"], "completed", "{:#}", before["error"]);
    let talk = "for n in $(seq 150); do echo line $n; sleep 0.02; done";
    let steps = json!([shell(talk), shell("echo more")]);
    let running = server.submit(&json!({ "steps": steps, "limits": { "time": 30 } })).await;
    server.wait_for_step(&running, "step.output", 1).await;

    disk.fill();
    let body = json!({ "steps": [shell("true")] }).to_string();
    // What is small may still find a place in a page that is there.
    let mut refused = None;
    for _ in 0..500 {
        let response = server.post("/schedule", body.clone()).await;
        disk.fill();
        if response.status() != 202 {
            refused = Some((response.status().as_u16(), response.json::<Value>().await.unwrap()));
            break;
        }
    }
    let (status, problem) = refused.expect("a full disk refuses");
    assert_eq!((status, text(&problem, "code")), (507, "store_full"), "{problem:#}");
    assert!(text(&problem, "hint").contains("room"), "{problem:#}");
    // Those who only look are answered.
    assert_eq!(server.get("/healthz").await.status(), 200);
    assert_eq!(server.job(text(&before, "job_id")).await["status"], "completed");

    disk.make_room();
    let ended = server.wait_for_end(&running).await;
    assert!(["completed", "failed"].contains(&text(&ended, "status")), "{ended:#}");
    // All that were accepted come to an end, and what comes now is done as before.
    let after = server.run(&json!({ "steps": [shell("echo after")] })).await;
    assert_eq!(after["status"], "completed", "{:#}", after["error"]);
    let jobs = server.json("/jobs?limit=100").await;
    for job in jobs["jobs"].as_array().unwrap() {
        let ended = server.wait_for_end(text(job, "job_id")).await;
        assert!(["completed", "failed"].contains(&text(&ended, "status")), "{ended:#}");
    }
    assert!(server.stop().success());
    for job in [&before, &ended, &after] {
        let mut verify = crate::support::bellglass(server.folder());
        verify.args(["verify", text(job, "job_id"), "--data"]).arg(server.data());
        let verified = verify.output().unwrap();
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    }
}
