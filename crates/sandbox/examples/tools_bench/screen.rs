//! Pictures of the screen, the pointer and the keyboard.

use serde_json::{Value, json};

use crate::subject::{Failure, Hands, OURS, Ours};
use crate::{Plan, Times};

fn computer(action: &str, more: Value) -> Value {
    let mut call = json!({ "tool": "computer", "action": action });
    if let (Some(call), Some(more)) = (call.as_object_mut(), more.as_object()) {
        call.extend(more.clone());
    }
    call
}

/// Returns how many of the texts that were typed arrived as they were.
pub(crate) async fn measure(ours: &Ours, plan: &Plan, times: &mut Times) -> Result<Value, Failure> {
    let hands = ours.start().await?;
    look(&hands, plan, times).await?;
    let texts = write(&hands, plan, times).await?;
    hands.destroy().await?;
    Ok(texts)
}

async fn look(hands: &Hands, plan: &Plan, times: &mut Times) -> Result<(), Failure> {
    // Something to look at: text in two sizes, and a window with icons.
    let command = "(setsid xterm -geometry 100x40+20+20 -fa DejaVuSansMono -fs 9 -e 'ls -l --color \
        /usr/bin; sleep 1000' & setsid xterm -geometry 60x20+640+380 -fa DejaVuSansMono -fs 12 -e \
        'cat /etc/passwd; sleep 1000' & setsid pcmanfm /usr &) >/dev/null 2>&1; \
        for name in xterm pcmanfm; do until xdotool search --onlyvisible --class $name >/dev/null \
        2>&1; do sleep 0.1; done; done";
    hands.call(computer("screenshot", json!({}))).await?;
    hands.call(json!({ "tool": "shell", "command": command, "timeout": 60 })).await?;
    hands.call(computer("wait_for_stability", json!({ "seconds": 1, "timeout": 60 }))).await?;
    let picture = hands.call(computer("screenshot", json!({}))).await?.attachment;
    std::fs::write(&plan.picture, picture)?;
    if let Some((program, arguments)) = plan.show_picture.split_first() {
        // Whether it was painted is seen in the peers' pictures; what paints it fails when it is done.
        std::process::Command::new(program).args(arguments).status()?;
    }
    for run in 0..plan.runs {
        let done = hands.call(computer("screenshot", json!({}))).await?;
        times.add("screenshot", OURS, done.time);
        times.add("screenshot", "inside", done.inside);
        others(plan, "screenshot", times)?;
        // Never twice to the same place, on an empty part of the screen.
        let place = json!({ "x": 1100 + run % 100, "y": 40 + run % 50 });
        let done = hands.call(computer("click", place)).await?;
        times.add("click", OURS, done.time);
        times.add("click", "inside", done.inside);
        others(plan, "click", times)?;
    }
    Ok(())
}

async fn write(hands: &Hands, plan: &Plan, times: &mut Times) -> Result<Value, Failure> {
    let command = "(setsid xterm -T typing -geometry 120x20+300+300 -fa DejaVuSansMono -e 'stty -echo; \
        cat > typed.txt' &) >/dev/null 2>&1; until xdotool search --onlyvisible --name typing \
        >/dev/null 2>&1; do sleep 0.1; done";
    hands.call(json!({ "tool": "shell", "command": command, "timeout": 60 })).await?;
    hands.call(computer("wait_for_stability", json!({ "seconds": 0.5, "timeout": 60 }))).await?;
    hands.call(computer("click", json!({ "x": 500, "y": 400 }))).await?;
    let mut typed = Vec::new();
    for (what, text) in [("type", &plan.plain_text), ("type any", &plan.any_text)] {
        for _ in 0..plan.texts {
            let done = hands.call(computer("type", json!({ "text": format!("{text}\n") }))).await?;
            times.add(what, OURS, done.time);
            times.add(what, "inside", done.inside);
            typed.push(text.as_str());
            others(plan, what, times)?;
        }
    }
    // The terminal has taken all when the last line is in the file.
    let until = format!(
        "for try in $(seq 300); do [ $(wc -l < typed.txt) -ge {} ] && break; sleep 0.1; done; cat typed.txt",
        typed.len()
    );
    let got = hands.call(json!({ "tool": "shell", "command": until, "timeout": 60 })).await?;
    let got = String::from_utf8_lossy(&got.output).into_owned();
    let right = got.lines().zip(&typed).skip(plan.texts).filter(|(got, typed)| got == *typed);
    let lines = got.lines().count();
    Ok(
        json!({ "typed": plan.texts, "right": right.count(), "lines": lines, "lines_typed": typed.len() }),
    )
}

/// The peers' turn.
pub(crate) fn others(plan: &Plan, what: &str, times: &mut Times) -> Result<(), Failure> {
    for peer in plan.commands.get(what).into_iter().flatten() {
        let (time, _) = tokio::task::block_in_place(|| peer.run())?;
        times.add(what, &peer.name, time);
    }
    Ok(())
}
