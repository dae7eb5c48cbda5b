//! Limits that hold: each is tried to be broken, and the sandbox goes on.

use std::time::Duration;

use bellglass_protocol::job::Limits;
use bellglass_protocol::quantity::ByteSize;
use bellglass_protocol::step::StepStatus;
use bellglass_sandbox::SandboxOrder;
use serde_json::json;

use crate::fixture::{Fixture, call, call_within, shell};

pub(crate) async fn memory_is_bounded_and_the_sandbox_goes_on(fixture: &Fixture) {
    let limits = Limits { memory: ByteSize::mib(256), ..Limits::default() };
    let order = SandboxOrder { limits, ..fixture.order() };
    let sandbox = fixture.start_with(&order).await;
    let code = "held = []\nwhile True:\n    held.append(bytearray(8 << 20))";
    let done = call(&sandbox, 1, json!({ "tool": "python", "fresh": true, "code": code })).await;
    assert_eq!(done.result.status, StepStatus::Failed, "{done:?}");
    // Where no control group counts, the guest does.
    assert!(sandbox.out_of_memory_kills().await + done.result.memory_kills > 0, "{done:?}");
    assert_eq!(shell(&sandbox, 2, "echo still here").await.stdout, "still here\n");
    sandbox.destroy().await.unwrap();
}

pub(crate) async fn processes_are_bounded_and_the_sandbox_goes_on(fixture: &Fixture) {
    let limits = Limits { processes: 40, memory: ByteSize::gib(1), ..Limits::default() };
    let order = SandboxOrder { limits, ..fixture.order() };
    let sandbox = fixture.start_with(&order).await;
    let code = "import os, signal, time\n\
                made = []\n\
                try:\n\
                \x20   while True:\n\
                \x20       made.append(os.fork() or time.sleep(1000))\n\
                except OSError as error:\n\
                \x20   print(30 < len(made) < 41, error.errno)\n\
                for pid in made: os.kill(pid, signal.SIGKILL)";
    let done = call(&sandbox, 1, json!({ "tool": "python", "fresh": true, "code": code })).await;
    assert_eq!(done.stdout, "True 11\n", "{done:?}");
    let bomb = json!({ "tool": "shell", "command": "bomb() { bomb | bomb & }; bomb; sleep 1000" });
    let done = call_within(&sandbox, 2, bomb, Duration::from_secs(2)).await;
    assert_eq!(done.result.status, StepStatus::TimedOut, "{:?}", done.result);
    assert_eq!(shell(&sandbox, 3, "echo works; pgrep -cx sleep; true").await.stdout, "works\n0\n");
    sandbox.destroy().await.unwrap();
}

pub(crate) async fn a_full_disk_is_full_inside_only(fixture: &Fixture) {
    let limits =
        Limits { disk: ByteSize::mib(40), memory: ByteSize::mib(512), ..Limits::default() };
    let order = SandboxOrder { limits, ..fixture.order() };
    let sandbox = fixture.start_with(&order).await;
    for (n, place) in (1..).zip(["/workspace", "/tmp", "/home/agent"]) {
        let fill = format!("head -c 100M /dev/zero > {place}/big");
        let done = shell(&sandbox, n, &fill).await;
        assert!(done.stderr.contains("No space left on device"), "{place}: {done:?}");
    }
    let tidy = "rm -f /workspace/big /tmp/big /home/agent/big; echo room > small; cat small";
    assert_eq!(shell(&sandbox, 9, tidy).await.stdout, "room\n");
    sandbox.destroy().await.unwrap();
}

pub(crate) async fn a_time_limit_ends_everything(fixture: &Fixture) {
    let sandbox = fixture.start().await;
    let hidden = json!({ "tool": "shell", "command":
        "setsid sh -c 'sleep 1000 & sleep 1000' & (sleep 1000 &); sleep 1000" });
    let done = call_within(&sandbox, 1, hidden, Duration::from_secs(1)).await;
    assert_eq!(done.result.status, StepStatus::TimedOut, "{done:?}");
    assert_eq!(shell(&sandbox, 2, "pgrep -cx sleep; true").await.stdout, "0\n");
    sandbox.destroy().await.unwrap();
}
