//! Code in kernels: from nothing to the first result, and a round trip in one that is there.

use serde_json::json;

use crate::peer::{InsideSpeaker, figure};
use crate::subject::{Failure, OURS, Ours};
use crate::{Plan, Times};

/// The tool, what it runs, what that gives, and what its kernel is called by others.
const LANGUAGES: [(&str, &str, &str); 2] =
    [("python", "1 + 41", "python3"), ("typescript", "1 + 41", "deno")];

pub(crate) async fn measure(ours: &Ours, plan: &Plan, times: &mut Times) -> Result<(), Failure> {
    for (tool, code, kernel) in LANGUAGES {
        let (first, again) = (format!("{tool} first"), format!("{tool} again"));
        let call = || json!({ "tool": tool, "code": code });
        for _ in 0..plan.starts {
            let hands = ours.start().await?;
            let mut client = client(&hands, plan).await?;
            let done = hands.call(call()).await?;
            expect(&done.output)?;
            times.add(&first, OURS, done.time);
            let answer = client.ask(&format!("first {kernel}")).await?;
            times.add_ms(&first, "jupyter_client", figure(&answer, "ms")?);
            hands.destroy().await?;
        }
        let hands = ours.start().await?;
        let mut client = client(&hands, plan).await?;
        client.ask(&format!("first {kernel}")).await?;
        hands.call(call()).await?;
        for _ in 0..plan.runs {
            let done = hands.call(call()).await?;
            expect(&done.output)?;
            times.add(&again, OURS, done.time);
            let answer = client.ask("again").await?;
            times.add_ms(&again, "jupyter_client", figure(&answer, "ms")?);
        }
        hands.destroy().await?;
    }
    Ok(())
}

/// Python's own client, with what it needs imported already. It measures itself.
async fn client(hands: &crate::subject::Hands, plan: &Plan) -> Result<InsideSpeaker, Failure> {
    let command = ["python3".into(), "-c".into(), plan.kernel_client.clone()];
    InsideSpeaker::start(hands, "jupyter_client", &command).await
}

fn expect(output: &[u8]) -> Result<(), Failure> {
    match output {
        b"42\n" => Ok(()),
        other => Err(format!("a kernel gave {:?}", String::from_utf8_lossy(other)).into()),
    }
}
