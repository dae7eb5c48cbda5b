//! A desktop from nothing: until the window manager is ready, and until a viewer is greeted too.

use std::time::Instant;

use bellglass_protocol::job::Screen;
use bellglass_protocol::tunnel::Inside;
use tokio::io::AsyncReadExt as _;

use crate::peer::{Speaker, figure};
use crate::subject::{Failure, OURS, Ours};
use crate::{Plan, Times};

pub(crate) async fn measure(ours: &Ours, plan: &Plan, times: &mut Times) -> Result<(), Failure> {
    let speakers = plan.speakers.get("desktop").into_iter().flatten();
    let mut speakers = speakers.map(Speaker::start).collect::<Result<Vec<_>, _>>()?;
    for _ in 0..plan.starts {
        let hands = ours.start().await?;
        let began = Instant::now();
        hands.sandbox.guest().start_desktop(Screen::default()).await?;
        times.add("desktop ready", OURS, began.elapsed());
        // A viewer that comes at once is let in when all of the desktop is there.
        let mut viewer =
            hands.sandbox.guest().tunnel(Inside::Desktop { screen: Screen::default() }).await?;
        let mut greeting = [0; 4];
        viewer.read_exact(&mut greeting).await?;
        times.add("desktop whole", OURS, began.elapsed());
        if greeting != *b"RFB " {
            return Err(format!("a viewer was greeted by {greeting:?}").into());
        }
        hands.destroy().await?;
        for speaker in &mut speakers {
            let answer = tokio::task::block_in_place(|| speaker.ask("start"))?;
            times.add_ms("desktop ready", &speaker.name, figure(&answer, "ready")?);
            times.add_ms("desktop whole", &speaker.name, figure(&answer, "whole")?);
        }
    }
    speakers.into_iter().try_for_each(Speaker::end)
}
