//! Tries ways out from inside, as a job's Python step, and tells how each of them ended.

use serde_json::{Value, json};

use crate::support::plain_user::PlainUser;
use crate::support::{Options, TestServer, python, step, text};

/// What is defined for an attempt's code.
const VOCABULARY: &str = include_str!("attempt.py");

/// Python code whose last line is the way out, and the errors in which it may end, apart by `|`.
pub(crate) type Attempt<'a> = (&'a str, &'a str);

/// Whose servers a way out is tried on: root's, and those of ordinary users, whose walls are made of less.
/// Whoever is no root can start a server of its own alone, and that is an ordinary user's.
pub(crate) fn users() -> &'static [Option<PlainUser>] {
    const ALL: [Option<PlainUser>; 3] =
        [None, Some(PlainUser::WithRange), Some(PlainUser::WithSingleId)];
    if rustix::process::geteuid().is_root() { &ALL } else { &ALL[..1] }
}

/// Tries each in the sandboxes of all these servers.
pub(crate) async fn assert_refused_to_all(attempts: &[Attempt<'_>]) {
    for user in users() {
        let server = TestServer::with(Options { user: *user, ..Options::default() });
        println!("as {}", user.map_or("this user".to_owned(), |user| format!("{user:?}")));
        assert_refused(&server, attempts).await;
    }
}

/// Tries each as everybody above, and as root of a user namespace of one's own, which has every
/// capability that can be had inside: a job that asks for nested sandboxing may make one.
pub(crate) async fn assert_refused_to_root_too(attempts: &[Attempt<'_>]) {
    assert_refused_to_all(attempts).await;
    println!("as root of a namespace inside");
    assert_refused_to_nested_root(attempts).await;
}

/// Only that.
pub(crate) async fn assert_refused_to_nested_root(attempts: &[Attempt<'_>]) {
    let codes = attempts.iter().map(|(code, _)| format!("become_root()\n{code}"));
    let codes: Vec<String> = codes.collect();
    let attempts =
        codes.iter().zip(attempts).map(|(code, (_, expected))| (code.as_str(), *expected));
    let attempts: Vec<Attempt<'_>> = attempts.collect();
    let nested = json!({ "nested_sandboxing": true });
    assert_refused_in(&TestServer::start(), nested, &attempts).await;
}

/// Tries each in a process of its own, in one sandbox. All must fail as they are said to.
pub(crate) async fn assert_refused(server: &TestServer, attempts: &[Attempt<'_>]) {
    assert_refused_in(server, json!({}), attempts).await;
}

/// The same in a job with more to it, such as a network policy.
pub(crate) async fn assert_refused_in(
    server: &TestServer,
    job: Value,
    attempts: &[Attempt<'_>],
) -> Value {
    assert!(!attempts.is_empty());
    let codes: Vec<&str> = attempts.iter().map(|(code, _)| *code).collect();
    let tries = format!(
        "print(json.dumps([outcome_of(code) for code in json.loads({})]))",
        python_text(&json!(codes).to_string())
    );
    let (outcomes, job) = look_in(server, job, &tries).await;
    let outcomes = outcomes.as_array().expect("a list of outcomes");
    assert_eq!(outcomes.len(), attempts.len());
    for ((code, expected), outcome) in attempts.iter().zip(outcomes) {
        let outcome = outcome.as_str().unwrap();
        assert!(
            expected.split('|').any(|expected| expected == outcome),
            "`{code}` ended with {outcome}, not with {expected}"
        );
    }
    job
}

/// Runs Python code that prints one JSON document, and returns the document.
pub(crate) async fn look(server: &TestServer, code: &str) -> Value {
    look_in(server, json!({}), code).await.0
}

pub(crate) async fn look_in(server: &TestServer, mut job: Value, code: &str) -> (Value, Value) {
    job["steps"] = json!([looking(code)]);
    let job = server.run(&job).await;
    (found(&job, 1), job)
}

/// A step that runs such code.
pub(crate) fn looking(code: &str) -> Value {
    python(&format!("{VOCABULARY}\n{code}\n"))
}

/// What such a step printed.
pub(crate) fn found(job: &Value, n: usize) -> Value {
    let step = step(job, n);
    assert_eq!(step["exit_code"], 0, "{step:#}");
    let said = text(step, "stdout");
    serde_json::from_str(said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// A text as Python code. JSON's strings are Python's too.
pub(crate) fn python_text(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}
