//! How long a tool call takes in a sandbox that is there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bellglass_protocol::id::CallId;
use bellglass_protocol::tool::ToolCall;
use serde_json::{Value, json};

use crate::peer::Peer;
use crate::starts::milliseconds;
use crate::subject::{Failure, Ours, Output};

/// What is asked for, and the name it has among the figures.
const CALLS: [(&str, &str); 3] = [
    ("read_file", r#"{"tool": "read_file", "path": "small.txt"}"#),
    ("write_file", r#"{"tool": "write_file", "path": "small.txt", "content": "a line\n"}"#),
    ("shell", r#"{"tool": "shell", "command": "true"}"#),
];

/// Round trips, one at a time, one of each in turn. Milliseconds.
pub(crate) async fn measure(ours: &Ours, execs: &[Peer], calls: usize) -> Result<Value, Failure> {
    let sandbox = ours.start().await?;
    let mut times: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut number = 0;
    let mut call = async |text: &str| {
        number += 1;
        let id = CallId::of_step(number);
        let call: ToolCall = serde_json::from_str(text)?;
        let began = Instant::now();
        let guest = sandbox.guest();
        let time = Duration::from_secs(60);
        let result = guest.call(&id, &call, time, 0, &mut Output::default()).await?;
        let time = began.elapsed();
        // The worker says this too, after it has recorded the result; nobody waits for it.
        guest.forget_call(&id).await?;
        if let Some(error) = result.error {
            return Err(Failure::from(error.message));
        }
        Ok(time)
    };
    call(CALLS[1].1).await?;
    for round in 0..calls {
        for (name, text) in CALLS {
            times.entry(name).or_default().push(milliseconds(call(text).await?));
        }
        // A process of its own for each call costs so much more that fewer of them say enough.
        for exec in execs.iter().filter(|_| round % 10 == 0) {
            let time = tokio::task::block_in_place(|| exec.until_end(round))?;
            times.entry(&exec.name).or_default().push(milliseconds(time));
        }
    }
    sandbox.destroy().await?;
    Ok(json!(times))
}
