//! A worker that is killed at random moments counts to 200 all the same, exactly once each.

use std::time::Duration;

use serde_json::{Value, json};

use crate::chaos::Dice;
use crate::support::{TestServer, archive, shell};

const STEPS: u32 = 200;

/// How often the worker is killed.
const KILLS: usize = 12;

#[tokio::test]
async fn two_hundred_steps_are_counted_once_each_whenever_the_worker_is_killed() {
    let mut dice = Dice::thrown("BELLGLASS_COUNTING_SEED");
    let mut server = TestServer::start();
    let steps: Vec<Value> =
        (1..=STEPS).map(|n| shell(&format!("echo {n} >> count; echo {n}"))).collect();
    let job = server.submit(&json!({ "steps": steps })).await;
    for _ in 0..KILLS {
        // Somewhere within one of the next steps, so that every kill hits the job at work.
        let done =
            server.json(&format!("/status/{job}")).await["steps_done"].as_u64().unwrap() as u32;
        let goal = (done + 1 + dice.below(2 * STEPS / KILLS as u32)).min(STEPS);
        server.wait_for_step(&job, "step.started", goal).await;
        tokio::time::sleep(Duration::from_micros(dice.below(20_000).into())).await;
        server.kill();
        server.start_again();
    }
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "completed", "{:#}", ended["error"]);
    let count = archive::text(&mut server.archive(&job).await, "count");
    let expected: String = (1..=STEPS).map(|n| format!("{n}\n")).collect();
    assert_eq!(count, expected);
    for n in 1..=STEPS {
        assert_eq!(ended["steps"][n as usize - 1]["stdout"], format!("{n}\n"));
    }
}
