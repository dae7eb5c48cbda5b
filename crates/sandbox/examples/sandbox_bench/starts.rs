//! How long a sandbox takes to start: one at a time, many at once, one after the other.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::sync::Barrier;

use crate::peer::Peer;
use crate::subject::{Failure, Ours};

/// Runs that only warm caches up.
const WARM_UP: usize = 3;

/// Who is started.
#[derive(Clone, Copy)]
enum Subject<'a> {
    Warm,
    Cold,
    Peer(&'a Peer),
}

/// One of each in turn, so that whatever disturbs the machine disturbs all of them, and in another order each time:
/// an engine tidies up for a while after its command has ended, and who comes next must not always be the same one.
/// Milliseconds.
pub(crate) async fn in_turn(
    ours: &mut Ours,
    peers: &[Peer],
    runs: usize,
) -> Result<Value, Failure> {
    let mut times: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    ours.open_pool().await?;
    let mut subjects: Vec<Subject> = [Subject::Warm, Subject::Cold].into();
    subjects.extend(peers.iter().map(Subject::Peer));
    for round in 0..WARM_UP + runs {
        shuffle(&mut subjects, round as u64);
        for subject in &subjects {
            ours.until_all_is_quiet().await;
            let (name, time) = match subject {
                Subject::Warm => ("warm", ours.warm().await?),
                Subject::Cold => ("cold", ours.cold().await?),
                Subject::Peer(peer) => {
                    let time = tokio::task::block_in_place(|| peer.until_output(round))?;
                    (&*peer.name, time)
                }
            };
            if round >= WARM_UP {
                times.entry(name).or_default().push(milliseconds(time));
            }
        }
    }
    ours.close_pool().await;
    Ok(json!(times))
}

/// The same order in every run of the benchmark, as nobody could choose it.
fn shuffle(subjects: &mut [Subject], round: u64) {
    for place in (1..subjects.len()).rev() {
        let mut chance = DefaultHasher::new();
        (round, place).hash(&mut chance);
        subjects.swap(place, (chance.finish() % (place as u64 + 1)) as usize);
    }
}

/// Many start at the same moment; each time is from that moment to its own first output.
pub(crate) async fn at_once(ours: &Ours, peers: &[Peer], count: usize) -> Result<Value, Failure> {
    let mut found = BTreeMap::new();
    found.insert("cold", burst_of_ours(ours, count).await);
    for peer in peers.iter().filter(|peer| peer.in_bursts) {
        found.insert(&peer.name, tokio::task::block_in_place(|| burst_of_peers(peer, count)));
    }
    Ok(json!(found))
}

async fn burst_of_ours(ours: &Ours, count: usize) -> Value {
    let began = Instant::now();
    let runs = (0..count).map(|_| async {
        let result = async {
            let sandbox = ours.start().await?;
            let said = crate::subject::first_output(&sandbox).await;
            Ok::<_, Failure>((sandbox, said? - began))
        };
        result.await
    });
    let done = join_all(runs).await;
    let times: Vec<f64> = done.iter().flatten().map(|(_, time)| milliseconds(*time)).collect();
    let errors: Vec<String> =
        done.iter().filter_map(|run| run.as_ref().err()).map(ToString::to_string).collect();
    for (sandbox, _) in done.iter().flatten() {
        let _ = sandbox.destroy().await;
    }
    json!({ "count": count, "times": times, "errors": errors })
}

fn burst_of_peers(peer: &Peer, count: usize) -> Value {
    let barrier = Arc::new(std::sync::Barrier::new(count));
    let threads: Vec<_> = (0..count)
        .map(|number| {
            let (peer, barrier) = (peer.clone(), barrier.clone());
            std::thread::spawn(move || {
                barrier.wait();
                peer.until_output(1_000_000 + number)
            })
        })
        .collect();
    let done: Vec<_> = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    let times: Vec<f64> = done.iter().flatten().map(|time| milliseconds(*time)).collect();
    let errors: Vec<String> =
        done.iter().filter_map(|run| run.as_ref().err()).map(ToString::to_string).collect();
    json!({ "count": count, "times": times, "errors": errors })
}

/// Sandboxes started, used and ended in one second, by as many hands as there are cores.
pub(crate) async fn rate(ours: &Ours, count: usize) -> Result<f64, Failure> {
    let hands = std::thread::available_parallelism().map_or(1, usize::from);
    let barrier = Barrier::new(hands);
    let began = Instant::now();
    let hand = async || {
        barrier.wait().await;
        for _ in 0..count / hands {
            ours.cold().await?;
        }
        Ok::<_, Failure>(())
    };
    for done in join_all((0..hands).map(|_| hand())).await {
        done?;
    }
    Ok((count / hands * hands) as f64 / began.elapsed().as_secs_f64())
}

pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
