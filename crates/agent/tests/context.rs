//! Properties of the context, tried on made-up histories: whatever happened, it fits, its pairs are
//! whole, and it never grows by being made smaller.

use bellglass_agent::context::compaction::{Draft, Room};
use bellglass_agent::context::{Context, Entry, FileUse};
use bellglass_agent::model::Message;
use bellglass_agent::model::pictures::Picture;
use bellglass_protocol::model::{AnswerBlock, Summary, Usage};
use proptest::prelude::*;

/// One thing that happened.
#[derive(Clone, Debug)]
enum Happening {
    Note {
        words: usize,
    },
    /// Calls with results of so many words, of a file, with a picture.
    Turn {
        calls: Vec<(usize, Option<u8>, bool)>,
        text: usize,
    },
}

fn happening() -> impl Strategy<Value = Happening> {
    let words = prop_oneof![0..30usize, 30..600usize, 600..6000usize];
    let call = (words, prop::option::of(0..4u8), prop::bool::weighted(0.1));
    prop_oneof![
        1 => (0..200usize).prop_map(|words| Happening::Note { words }),
        6 => (prop::collection::vec(call, 0..4), 0..80usize)
            .prop_map(|(calls, text)| Happening::Turn { calls, text }),
    ]
}

fn words(count: usize, salt: u64) -> String {
    (0..count)
        .map(|n| {
            format!("word{} ", (n as u64).wrapping_mul(2_654_435_761).wrapping_add(salt) % 9973)
        })
        .collect()
}

fn context_of(happenings: &[Happening]) -> Context {
    let mut context = Context::default();
    context.add_note(1, "Do something with these files.");
    let mut seq = 1;
    for happening in happenings {
        seq += 1;
        match happening {
            Happening::Note { words: count } => context.add_note(seq, &words(*count, seq)),
            Happening::Turn { calls, text } => {
                let mut blocks = vec![AnswerBlock::Text { text: words(*text, seq) }];
                blocks.extend((0..calls.len()).map(|at| AnswerBlock::ToolCall {
                    id: format!("{seq}-{at}"),
                    name: "read_file".into(),
                    arguments: format!("{{\"path\":\"f{at}\"}}"),
                }));
                let turn = seq;
                context.add_answer(turn, &blocks);
                for (at, (count, file, picture)) in calls.iter().enumerate() {
                    seq += 1;
                    let file = file.map(|file| match file {
                        0 => FileUse::Change("a".into()),
                        file => FileUse::View(["a", "b", "c"][usize::from(file) % 3].into()),
                    });
                    let entry =
                        Entry::new(seq, &format!("{turn}-{at}"), &words(*count, seq), false, file);
                    let given = Picture { artifact: format!("{seq}").into(), bytes: 1 };
                    let pictures = if *picture { vec![given] } else { Vec::new() };
                    context.add_result(entry.with_pictures(pictures));
                }
            }
        }
    }
    context
}

/// Every call has its result, in order, right behind it; and no result is without a call.
fn assert_pairs(context: &Context) {
    let messages = context.messages();
    let mut expected: Vec<String> = Vec::new();
    for message in messages.iter() {
        let got: Vec<String> = match message {
            Message::ToolResults(results) => {
                results.iter().map(|result| result.call_id.to_string()).collect()
            }
            Message::User(_) | Message::Assistant(_) => Vec::new(),
        };
        assert_eq!(got, expected);
        expected = match message {
            Message::Assistant(blocks) => blocks
                .iter()
                .filter_map(|block| match block {
                    AnswerBlock::ToolCall { id, .. } => Some(id.clone()),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        };
    }
    assert!(expected.is_empty());
    assert!(
        matches!(messages.first(), Some(Message::User(task)) if task.starts_with("Do something"))
    );
}

fn room(most: u64) -> Room {
    Room { most, target: most * 6 / 10, summary: (most / 8).min(8_000), pictures: usize::MAX }
}

/// What a model might write: nothing, a little, or far too much.
fn summary(length: usize) -> Option<Summary> {
    let usage = Some(Usage { input: 10, output: 10, ..Usage::default() });
    (length > 0).then(|| Summary { through: 0, text: words(length, 7), usage, cost_usd: None })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_compaction_fits_shrinks_and_breaks_nothing(
        happenings in prop::collection::vec(happening(), 1..40),
        share in 2..95u64,
        length in prop_oneof![Just(0usize), 1..400usize, 20_000..30_000usize],
    ) {
        let mut context = context_of(&happenings);
        assert_pairs(&context);
        let before = context.tokens();
        let most = before * share / 100;
        match Draft::new(&context, room(most)).complete(summary(length)) {
            Ok(compaction) => {
                context.apply(&compaction);
                prop_assert_eq!(compaction.tokens_before, before);
                prop_assert_eq!(compaction.tokens_after, context.tokens());
                prop_assert!(context.tokens() * 10 <= before * 9);
                prop_assert!(context.tokens() <= most);
            }
            // Then there is nothing left to leave out: the task and the last turn alone fill it.
            Err(error) => prop_assert!(error.after > most || error.after * 10 > before * 9),
        }
        assert_pairs(&context);
    }

    #[test]
    fn compacting_again_and_again_comes_to_an_end(
        happenings in prop::collection::vec(happening(), 1..40),
        share in 20..95u64,
    ) {
        let mut context = context_of(&happenings);
        let mut rounds = 0;
        loop {
            let most = context.tokens() * share / 100;
            let Ok(compaction) = Draft::new(&context, room(most)).complete(None) else { break };
            let before = context.tokens();
            context.apply(&compaction);
            prop_assert!(context.tokens() * 10 <= before * 9);
            assert_pairs(&context);
            rounds += 1;
            prop_assert!(rounds < 200);
        }
    }

    #[test]
    fn a_recorded_compaction_gives_the_same_context_again(
        happenings in prop::collection::vec(happening(), 5..30),
    ) {
        let mut context = context_of(&happenings);
        let mut other = context_of(&happenings);
        let most = context.tokens() / 2;
        if let Ok(compaction) = Draft::new(&context, room(most)).complete(summary(50)) {
            let line = serde_json::to_string(&compaction).unwrap();
            context.apply(&compaction);
            other.apply(&serde_json::from_str(&line).unwrap());
            prop_assert_eq!(context.to_json(), other.to_json());
        }
    }
}

#[test]
fn pictures_go_first_and_the_newest_stay() {
    let picture = |words| Happening::Turn { calls: vec![(words, None, true)], text: 5 };
    let context = context_of(&[picture(2_000), picture(10), picture(10), picture(10), picture(10)]);
    assert_eq!(context.pictures().len(), 5);
    // Of the oldest turn nothing but its picture goes, though its text is long.
    let most = context.tokens() * 7 / 10;
    let room = Room { most, target: most, summary: 500, pictures: usize::MAX };
    let compaction = Draft::new(&context, room).complete(None).unwrap();
    assert_eq!((compaction.pictures.len(), compaction.trimmed.len()), (3, 0));
    assert!(compaction.dropped.is_empty() && compaction.summary.is_none());
    let mut after = context.clone();
    after.apply(&compaction);
    let names: Vec<_> = after.pictures().iter().map(|picture| picture.artifact.clone()).collect();
    assert_eq!(
        names,
        context.pictures()[3..].iter().map(|p| p.artifact.clone()).collect::<Vec<_>>()
    );
    assert_pairs(&after);

    // However new they are, there are never more than may be.
    let less = context.tokens() * 9 / 10;
    let room = Room { most: less, target: less, summary: 500, pictures: 1 };
    let compaction = Draft::new(&context, room).complete(None).unwrap();
    after = context.clone();
    after.apply(&compaction);
    assert_eq!(after.pictures().len(), 1);
    assert_eq!(after.pictures()[0], context.pictures()[4]);
}

#[test]
fn stages_come_in_order_and_the_last_is_needed_least() {
    // Old results alone are large: trimming is enough.
    let large = |count| Happening::Turn { calls: vec![(count, None, false)], text: 5 };
    let mut happenings = vec![large(5_000); 4];
    happenings.extend(vec![large(10); 8]);
    let context = context_of(&happenings);
    let draft = Draft::new(&context, room(context.tokens() * 8 / 10));
    assert!(draft.to_summarise.is_none());
    let compaction = draft.complete(None).unwrap();
    assert!(!compaction.trimmed.is_empty() && compaction.dropped.is_empty());

    // Many small turns: only a summary helps.
    let context = context_of(&vec![large(60); 60]);
    let draft = Draft::new(&context, room(context.tokens() * 8 / 10));
    let text = draft.to_summarise.clone().unwrap();
    assert!(text.contains("called read_file"), "{text}");
    let compaction = draft.complete(summary(20)).unwrap();
    assert!(compaction.trimmed.is_empty() && compaction.summary.is_some());
}
