//! Memories: kept once, found by words and by meaning, changed and forgotten.

use std::sync::Arc;

use bellglass_store::{MemoryQuery, NewMemory, Store, Whose};

fn new(project: &str, text: &str, vector: Option<[f32; 2]>) -> NewMemory {
    let (project, text) = (project.to_owned(), text.to_owned());
    NewMemory { owner: None, project, text, job: None, vector: vector.map(Vec::from) }
}

fn query(project: &str, words: Option<&str>, vector: Option<[f32; 2]>) -> MemoryQuery {
    MemoryQuery {
        whose: Whose::Of(None),
        project: Some(project.into()),
        words: words.map(Into::into),
        vector: vector.map(Vec::from),
        limit: 10,
    }
}

async fn texts(store: &dyn Store, query: MemoryQuery) -> Vec<String> {
    store.memories(&query).await.unwrap().into_iter().map(|memory| memory.text).collect()
}

pub(crate) async fn memories_are_kept_found_and_forgotten(store: Arc<dyn Store>) {
    let tests = "Tests run with make test.";
    let style = "Code is formatted with four spaces.";
    let first = store.add_memory(new("shop", tests, Some([1.0, 0.0]))).await.unwrap().unwrap();
    assert_eq!((first.project.as_str(), first.job), ("shop", None));
    assert_eq!(store.add_memory(new("shop", tests, None)).await.unwrap(), None, "kept already");
    store.add_memory(new("shop", style, Some([0.0, 1.0]))).await.unwrap().unwrap();
    store.add_memory(new("other", tests, None)).await.unwrap().unwrap();

    assert_eq!(texts(&*store, query("shop", None, None)).await, [style, tests]);
    // By another form of the word, and of one project only.
    assert_eq!(texts(&*store, query("shop", Some("how to run a testing"), None)).await, [tests]);
    assert_eq!(texts(&*store, query("shop", Some("zebra"), None)).await, [""; 0]);
    // What looks like syntax is none.
    assert_eq!(texts(&*store, query("shop", Some("\"* OR text:x) NEAR"), None)).await, [""; 0]);
    assert_eq!(texts(&*store, query("shop", None, Some([0.1, 0.9]))).await, [style, tests]);
    let both = query("shop", Some("make"), Some([0.1, 0.9]));
    assert_eq!(texts(&*store, both).await, [tests, style]);

    let edited =
        store.edit_memory(first.id, "Run just test.".into(), None, "ada").await.unwrap().unwrap();
    assert_eq!((edited.id, edited.text.as_str()), (first.id, "Run just test."));
    assert_eq!(texts(&*store, query("shop", Some("make"), None)).await, [""; 0]);
    assert_eq!(texts(&*store, query("shop", Some("just"), None)).await, ["Run just test."]);
    assert!(store.delete_memory(first.id, "ada").await.unwrap().is_some());
    assert!(store.delete_memory(first.id, "ada").await.unwrap().is_none());
    assert!(store.edit_memory(first.id, "x".into(), None, "ada").await.unwrap().is_none());
    assert_eq!(texts(&*store, query("shop", Some("just"), None)).await, [""; 0]);
}
