//! Properties of the context, tried on made-up histories: whatever happened, it fits, its pairs are
//! whole, and it never grows by being made smaller.

use bellglass_agent::context::compaction::{CannotShrink, Draft, Room};
use bellglass_agent::context::{Context, Entry, FileUse};
use bellglass_agent::model::Message;
use bellglass_agent::model::pictures::Picture;
use bellglass_agent::tokens::count;
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

/// What nothing can be left out of, with every result in it cut: the task and all from the last turn on.
/// Also whether there is something between the two.
fn smallest(context: &Context) -> (u64, bool) {
    let messages = context.messages();
    let last = messages.iter().rposition(|message| matches!(message, Message::Assistant(_)));
    // Where there are no turns, all that there is are words of the user.
    let last = last.unwrap_or(1);
    let mut left = Context::default();
    for (at, message) in messages.iter().enumerate() {
        match message {
            _ if (1..last).contains(&at) => {}
            Message::User(text) => left.add_note(1, text),
            Message::Assistant(blocks) => left.add_answer(1, blocks),
            Message::ToolResults(results) => {
                for result in results {
                    let entry = Entry::new(1, &result.call_id, &cut(&result.text), false, None);
                    left.add_result(entry.with_pictures(result.pictures.clone()));
                }
            }
        }
    }
    (left.tokens(), last > 1)
}

/// A long result when it is cut, or a little more of it; none that would hardly become shorter.
fn cut(text: &str) -> String {
    if text.len() <= 2_400 {
        return text.to_owned();
    }
    let pointer = "[… 123456 bytes left out to save room; entry 123456 of the history has them: \
                   read_history …] and more";
    let cut = format!("{}\n{pointer}\n{}", &text[..800], &text[text.len() - 800..]);
    if count(&cut) * 5 <= count(text) * 4 { cut } else { text.to_owned() }
}

/// A compaction may fail only if nothing is left to leave out: what stays is too large for the room, or
/// makes it no smaller by a tenth.
fn assert_is_smallest(context: &Context, room: Room, error: &CannotShrink) {
    // The words around a summary.
    const AROUND: u64 = 80;
    let (tokens, has_more) = smallest(context);
    let summary = if has_more { room.summary + AROUND } else { 0 };
    let must = room.most.min(context.tokens() * 9 / 10);
    assert!(tokens + summary > must, "{tokens} + {summary} would fit into {must}: {error}");
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
        let room = room(most);
        match Draft::new(&context, room).complete(summary(length)) {
            Ok(compaction) => {
                context.apply(&compaction);
                prop_assert_eq!(compaction.tokens_before, before);
                prop_assert_eq!(compaction.tokens_after, context.tokens());
                prop_assert!(context.tokens() * 10 <= before * 9);
                prop_assert!(context.tokens() <= most);
            }
            Err(error) => assert_is_smallest(&context, room, &error),
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
            let room = room(context.tokens() * share / 100);
            let compaction = match Draft::new(&context, room).complete(None) {
                Ok(compaction) => compaction,
                Err(error) => {
                    assert_is_smallest(&context, room, &error);
                    break;
                }
            };
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
        let room = room(context.tokens() / 2);
        match Draft::new(&context, room).complete(summary(50)) {
            Ok(compaction) => {
                let line = serde_json::to_string(&compaction).unwrap();
                context.apply(&compaction);
                other.apply(&serde_json::from_str(&line).unwrap());
                prop_assert_eq!(context.to_json(), other.to_json());
            }
            Err(error) => assert_is_smallest(&context, room, &error),
        }
    }
}

/// The newest results are cut too where that is all that makes it smaller by a tenth, though it would fit.
#[test]
fn what_fits_but_is_hardly_smaller_is_cut_further() {
    let large = |count| Happening::Turn { calls: vec![(count, None, false)], text: 5 };
    let context = context_of(&[large(600), large(3_400)]);
    let before = context.tokens();
    let most = before * 97 / 100;
    let room = Room { most, target: most * 6 / 10, summary: before * 8 / 100, pictures: 9 };
    let compaction = Draft::new(&context, room).complete(summary(5_000)).unwrap();
    assert!(compaction.summary.is_some());
    assert_eq!(compaction.trimmed.len(), 1, "{compaction:?}");
    assert!(compaction.tokens_after * 10 <= before * 9);
}

/// What the summary stands for is gone, so to cut it would save nothing.
#[test]
fn results_behind_the_summary_are_cut_and_not_those_before_it() {
    let large = |count| Happening::Turn { calls: vec![(count, None, false)], text: 5 };
    let context = context_of(&[large(3_000), large(3_000), large(3_000)]);
    let room = Room { most: 4_000, target: 2_400, summary: 500, pictures: usize::MAX };
    let compaction = Draft::new(&context, room).complete(summary(20)).unwrap();
    assert!(compaction.tokens_after <= 4_000 && compaction.trimmed.len() == 1, "{compaction:?}");
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
