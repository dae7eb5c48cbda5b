//! Tries a real static embedding model, whose folder is the first argument. Called by
//! `scripts/local-model.sh`; panics where something is not as it should be. With more arguments, prints the
//! vector of each instead.

use std::path::PathBuf;

use bellglass_agent::static_model::StaticModel;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().expect("the folder of a static model"));
    let model = StaticModel::open(&folder).unwrap_or_else(|error| panic!("{error}"));
    let texts: Vec<String> = arguments.collect();
    for text in &texts {
        println!("{}", serde_json::to_string(&embed(&model, text)).unwrap());
    }
    if texts.is_empty() {
        finds_what_is_meant(&model);
    }
}

/// Of three memories the one that is about the question is the nearest, though it shares no word with it.
fn finds_what_is_meant(model: &StaticModel) {
    let memories = [
        "Unit tests run with make check.",
        "The shop sells bread and cheese.",
        "Releases get a git tag on Fridays.",
    ];
    for (question, expected) in [
        ("How do I verify that my code works?", 0),
        ("Which food can customers buy?", 1),
        ("When is a new version published?", 2),
    ] {
        let asked = embed(model, question);
        let near: Vec<f32> =
            memories.iter().map(|memory| nearness(&asked, &embed(model, memory))).collect();
        let best = (0..near.len()).max_by(|one, other| near[*one].total_cmp(&near[*other]));
        assert_eq!(best, Some(expected), "{question}: {near:?}");
        println!("static model: {question} → {} {near:.2?}", memories[expected]);
    }
}

fn embed(model: &StaticModel, text: &str) -> Vec<f32> {
    model.embed(text).unwrap_or_else(|error| panic!("{error}"))
}

fn nearness(one: &[f32], other: &[f32]) -> f32 {
    let product = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f32>();
    product(one, other) / (product(one, one) * product(other, other)).sqrt()
}
