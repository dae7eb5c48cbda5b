//! Tasks: a scripted model over real HTTP drives the real worker and a real sandbox.

use serde_json::{Value, json};

use crate::scripted::{Reply, Said, Scripted};
use crate::support::{Options, TestServer, archive, step, text};

const KEY: &str = "sk-canary-3f9c0d1e7b";

pub(crate) fn say(name: &str, arguments: Value) -> Reply {
    Reply::Say(Said::call(name, arguments))
}

pub(crate) fn shell(command: &str) -> Reply {
    say("shell", json!({ "command": command }))
}

pub(crate) fn finish() -> Reply {
    Reply::Say(Said { usage: Some((500, 100, 20)), ..Said::finish("It is done.") })
}

/// A server whose tasks go to the scripted model by Chat Completions.
pub(crate) fn server_with(model: &Scripted, config: &str) -> TestServer {
    TestServer::with(Options {
        config: config.to_owned().leak(),
        environment: vec![("OPENAI_BASE_URL", model.base_url()), ("OPENAI_API_KEY", KEY.into())],
        ..Options::default()
    })
}

/// The same, where tasks that get no answer from it are left to the second model.
pub(crate) fn server_with_fallback(first: &Scripted, second: &Scripted) -> TestServer {
    let config = format!(
        "[model]\ndefault = \"openai/a\"\nfallback = \"local/b\"\nbase_url = \"{}\"\n",
        second.base_url()
    );
    server_with(first, &config)
}

pub(crate) async fn run(
    script: impl IntoIterator<Item = Reply>,
    more: Value,
) -> (Value, TestServer, Scripted) {
    let model = Scripted::start(script).await;
    let server = server_with(&model, "");
    let mut body = json!({ "task": "Make a file." });
    for (field, value) in more.as_object().into_iter().flatten() {
        body[field] = value.clone();
    }
    let job = server.run(&body).await;
    (job, server, model)
}

pub(crate) async fn events(server: &TestServer, job: &Value, kind: &str) -> Vec<Value> {
    let log = server.log(text(job, "job_id")).await;
    let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["type"] == kind).collect()
}

#[tokio::test]
async fn a_task_is_worked_on_and_its_files_are_handed_over() {
    let plan = json!({ "steps": [
        { "title": "write it", "status": "in_progress" },
        { "title": "read it", "status": "pending" },
    ] });
    let both = Said::call("plan", plan)
        .and_call("write_file", json!({ "path": "hello.txt", "content": "Hello!\n" }));
    let both = Said {
        reasoning: Some("Easy.".into()),
        text: "I begin.".into(),
        usage: Some((400, 0, 30)),
        ..both
    };
    let script = [Reply::Say(both), shell("cat hello.txt"), finish()];
    let (job, server, model) = run(script, json!({})).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    assert_eq!(job["spec"]["model"], "openai/default");
    assert_eq!(job["summary"], "It is done.");
    assert_eq!(job["plan"][0]["title"], "write it");
    assert_eq!(step(&job, 1)["tool"], "write_file");
    assert_eq!(step(&job, 2)["stdout"], "Hello!\n");
    let usage = &job["usage"];
    assert_eq!(
        (&usage["model_calls"], &usage["input"], &usage["output"]),
        (&json!(3), &json!(900), &json!(50))
    );

    let mut result = server.archive(text(&job, "job_id")).await;
    assert_eq!(archive::text(&mut result, "hello.txt"), "Hello!\n");
    let context: Value =
        serde_json::from_str(&archive::text(&mut result, "context/current.json")).unwrap();
    assert_eq!(context["messages"].as_array().unwrap().len(), 4);

    // What the model was asked: everything before, word for word, and the results in their order.
    let asked = model.asked();
    assert_eq!(asked.len(), 3);
    let last = asked[2].body["messages"].as_array().unwrap();
    let roles: Vec<&str> = last.iter().map(|message| text(message, "role")).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "tool", "assistant", "tool"]);
    assert!(text(&last[1], "content").starts_with("Make a file."));
    assert_eq!(last[2]["reasoning_content"], "Easy.");
    assert!(text(&last[6], "content").starts_with("Hello!\n[step 2 succeeded"), "{:#}", last[6]);
    for pair in asked.windows(2) {
        let [before, after] = pair else { unreachable!() };
        let before = before.body["messages"].as_array().unwrap();
        assert_eq!(before[..], after.body["messages"].as_array().unwrap()[..before.len()]);
        assert_eq!(pair[0].body["tools"], pair[1].body["tools"]);
    }
}

#[tokio::test]
async fn every_wire_drives_a_task() {
    for wire in ["chat", "responses", "messages"] {
        let script = [shell("echo made > it.txt"), finish()];
        let model = Scripted::start(script).await;
        let config = format!("[model]\nbase_url = \"{}\"\nwire = \"{wire}\"\n", model.base_url());
        let server = TestServer::with(Options { config: config.leak(), ..Options::default() });
        let job = server.run(&json!({ "prompt": "Make it.", "model": "local/any" })).await;
        assert_eq!(job["status"], "completed", "{wire} {:#}", job["error"]);
        let mut result = server.archive(text(&job, "job_id")).await;
        assert_eq!(archive::text(&mut result, "it.txt"), "made\n", "{wire}");
        assert_eq!(model.asked()[0].body["model"], "any");
    }
}

#[tokio::test]
async fn keys_are_nowhere_but_in_requests() {
    // The marks around what is looked for keep this command from finding itself.
    let look = "env; \
                cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/maps 2>/dev/null; \
                ls -l /proc/[0-9]*/fd 2>/dev/null; \
                grep -rsaF --exclude-dir=proc --exclude-dir=sys 'canary-3f''9c' / ; echo looked";
    for provider in ["openai", "anthropic", "local"] {
        let body = json!({ "error": { "message": format!("the key {KEY} is tired") } }).to_string();
        let refusal = Reply::Fail { status: 503, body, header: Some(("retry-after-ms", "1")) };
        let model = Scripted::start([refusal, shell(look), finish()]).await;
        let url = model.base_url();
        let local = format!("[model]\nbase_url = \"{url}\"\nwire = \"responses\"\n");
        let (config, environment) = match provider {
            "openai" => ("", vec![("OPENAI_BASE_URL", url), ("OPENAI_API_KEY", KEY.into())]),
            "anthropic" => {
                ("", vec![("ANTHROPIC_BASE_URL", url), ("ANTHROPIC_API_KEY", KEY.into())])
            }
            _ => (&*local.leak(), vec![("BELLGLASS_MODEL_KEY", KEY.into())]),
        };
        let server = TestServer::with(Options { config, environment, ..Options::default() });
        let job = server.run(&json!({ "task": "Look around." })).await;
        assert_eq!(job["status"], "completed", "{provider} {:#}", job["error"]);
        assert!(text(&job["spec"], "model").starts_with(provider), "{:#}", job["spec"]);
        assert_no_key(&job, &server, &model).await;
    }
}

/// The key was used, and is neither in what the sandbox found nor in anything that is kept.
async fn assert_no_key(job: &Value, server: &TestServer, model: &Scripted) {
    assert!(model.asked()[0].headers.iter().any(|line| line.contains(KEY)));
    let found = text(step(job, 1), "stdout");
    assert!(found.contains("HOME=/home/agent") && found.ends_with("looked\n"), "{found}");
    assert!(!found.contains("canary-3f9c"), "{found}");

    let id = text(job, "job_id");
    assert!(!server.log(id).await.contains(KEY));
    let mut result = server.archive(id).await;
    for name in archive::names(&result) {
        let content = archive::content(&mut result, &name);
        assert!(!String::from_utf8_lossy(&content).contains(KEY), "{name}");
    }
    let mut folders = vec![server.folder().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else if let Ok(content) = std::fs::read(entry.path()) {
                let holds = content.windows(KEY.len()).any(|bytes| bytes == KEY.as_bytes());
                assert!(!holds, "{}", entry.path().display());
            }
        }
    }
}

#[tokio::test]
async fn a_killed_server_goes_on_with_the_same_step_and_repeats_nothing() {
    let wait = "echo one >> count; echo waiting; until [ -e go ]; do sleep 0.02; done; echo went";
    let script = [
        shell(wait),
        // Asked, and then the server dies before the answer.
        Reply::SayLater(Said::call("shell", json!({ "command": "echo lost >> count" }))),
        shell("echo two >> count"),
        finish(),
    ];
    let model = Scripted::start(script).await;
    let mut server = server_with(&model, "");
    let id = server.submit(&json!({ "task": "Count." })).await;
    server.wait_for_step(&id, "step.output", 1).await;
    server.kill();
    server.start_again();
    server.events(&id).await.until(|event| event["generation"] == 2).await;
    while server.put_file(&id, "go", "").await.status() != 204 {
        tokio::task::yield_now().await;
    }
    model.asked_times(2).await;
    server.kill();
    model.go_on();
    server.start_again();
    let job = server.wait_for_end(&id).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    assert!(text(step(&job, 1), "stdout").ends_with("went\n"));
    let mut result = server.archive(&id).await;
    assert_eq!(archive::text(&mut result, "count"), "one\ntwo\n");
    assert_eq!(events(&server, &job, "step.started").await.len(), 2);
    assert_eq!((model.asked().len(), model.left()), (4, 0));
    // The question that was asked twice was the same one.
    let asked = model.asked();
    assert_eq!(asked[1].body, asked[2].body);
}

#[tokio::test]
async fn a_model_that_misbehaves_by_chat_is_asked_again_and_told_what_is_wrong() {
    misbehaves("chat").await;
}

#[tokio::test]
async fn a_model_that_misbehaves_by_responses_is_asked_again_and_told_what_is_wrong() {
    misbehaves("responses").await;
}

#[tokio::test]
async fn a_model_that_misbehaves_by_messages_is_asked_again_and_told_what_is_wrong() {
    misbehaves("messages").await;
}

/// Every way to fail, each followed by an answer, so that none has to wait for long.
async fn misbehaves(wire: &str) {
    let soon = Some(("retry-after-ms", "1"));
    let fail = |status| Reply::Fail { status, body: "{}".into(), header: soon };
    let broken = vec![("shell".into(), "{\"command\": \"ec".into())];
    let script = [
        fail(429),
        Reply::Say(Said { calls: broken, ..Said::default() }),
        fail(529),
        say("teleport", json!({ "to": "the moon" })),
        Reply::Cut(Said::text("I was about to say something of importance, but")),
        Reply::Say(Said::text("")),
        Reply::CutCall(Said::call("shell", json!({ "command": "ls" }))),
        shell("echo one > one.txt"),
        Reply::ErrorInside { kind: "overloaded_error", message: "busy" },
        shell("echo two > two.txt"),
        Reply::NoChoices,
        shell("echo three > three.txt"),
        Reply::Silence,
        finish(),
    ];
    let model = Scripted::start(script).await;
    let config = format!(
        "[model]\nbase_url = \"{}\"\nwire = \"{wire}\"\nidle_time = \"1s\"\n",
        model.base_url()
    );
    let server = TestServer::with(Options { config: config.leak(), ..Options::default() });
    let job = server.run(&json!({ "task": "Make files." })).await;
    assert_eq!(job["status"], "completed", "{wire} {:#}", job["error"]);
    let failures = events(&server, &job, "model.failed").await;
    let codes: Vec<&str> = failures.iter().map(|event| text(&event["error"], "code")).collect();
    let expected = [
        "model_busy",
        "model_busy",
        "model_answer_cut",
        "model_answer_cut",
        "model_busy",
        "model_answer_invalid",
        "model_idle",
    ];
    assert_eq!(codes, expected, "{wire}");
    let answers = events(&server, &job, "tool.answered").await;
    assert!(text(&answers[0], "output").contains("not valid JSON"), "{wire}");
    assert!(text(&answers[1], "output").contains("no tool named `teleport`"), "{wire}");
    assert_eq!(events(&server, &job, "model.nudged").await.len(), 1, "{wire}");
    // What came through half was never done.
    assert_eq!(job["steps"].as_array().unwrap().len(), 3, "{wire}");
    assert_eq!(model.left(), 0, "{wire}");
}

#[tokio::test]
async fn a_model_that_refuses_ends_the_task_or_leaves_it_to_the_fallback() {
    let refusal = || Reply::Fail {
        status: 401,
        body: json!({ "error": { "message": "no such key" } }).to_string(),
        header: None,
    };
    let (job, ..) = run([refusal()], json!({})).await;
    assert_eq!(job["status"], "failed");
    assert_eq!(job["error"]["code"], "model_key_refused");

    let first = Scripted::start([refusal()]).await;
    let second = Scripted::start([shell("true"), finish()]).await;
    let server = server_with_fallback(&first, &second);
    let job = server.run(&json!({ "task": "Do it." })).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    // The one that refused is not asked at every turn.
    assert_eq!((first.asked().len(), second.asked().len()), (1, 2));
    let answers = events(&server, &job, "model.answered").await;
    assert!(answers.iter().all(|event| event["answer"]["model"] == "local/b"));
}

#[tokio::test]
async fn budgets_are_hard_and_the_work_is_kept() {
    let usage = Some((1000, 0, 100));
    let write = |n: usize| {
        let said = Said::call(
            "shell",
            json!({ "command": format!("echo {n} > {n}.txt; head -c 1000 /dev/zero") }),
        );
        Reply::Say(Said { usage, ..said })
    };
    let config = "[model.prices]\n\"openai/\" = { input = 1000, output = 0 }\n";
    for (budget, files) in [
        (json!({ "steps": 2 }), 2),
        (json!({ "tokens": 2200 }), 1),
        (json!({ "usd": 1.5 }), 1),
        (json!({ "output": 1500 }), 2),
        (json!({ "time": "1ms" }), 0),
    ] {
        let model = Scripted::start((1..10).map(write)).await;
        let server = server_with(&model, config);
        let job = server.run(&json!({ "task": "Write.", "budget": budget })).await;
        assert_eq!(job["status"], "failed", "{budget}");
        assert_eq!(job["error"]["code"], "budget_exhausted", "{budget} {:#}", job["error"]);
        assert_eq!(job["steps"].as_array().unwrap().len(), files, "{budget}");
        let result = server.archive(text(&job, "job_id")).await;
        let kept = archive::names(&result).iter().filter(|name| name.ends_with(".txt")).count();
        assert_eq!(kept, files, "{budget}");
    }
}

#[tokio::test]
async fn a_budget_that_cannot_be_kept_is_refused() {
    let model = Scripted::start([]).await;
    let server = server_with(&model, "");
    let body = json!({ "task": "x", "budget": { "usd": 1 } }).to_string();
    let problem: Value = server.post("/schedule", body).await.json().await.unwrap();
    assert_eq!(
        (text(&problem, "code"), text(&problem, "pointer")),
        ("invalid_request", "budget.usd")
    );
    let body = json!({ "task": "x", "model": "anthropic/claude" }).to_string();
    let problem: Value = server.post("/schedule", body).await.json().await.unwrap();
    assert!(text(&problem, "detail").contains("ANTHROPIC_API_KEY"), "{problem:#}");
}

#[tokio::test]
async fn going_round_in_circles_ends_after_one_warning() {
    let script: Vec<Reply> = (0..20).map(|_| shell("echo again")).collect();
    let (job, server, _) = run(script, json!({})).await;
    assert_eq!(job["status"], "failed");
    assert_eq!(job["error"]["code"], "stuck", "{:#}", job["error"]);
    // The steps differ in their numbers and times alone, which is no progress.
    assert_eq!(job["steps"].as_array().unwrap().len(), 8);
    assert_eq!(events(&server, &job, "model.nudged").await.len(), 1);
}

#[tokio::test]
async fn an_impossible_task_says_why() {
    let end = json!({ "outcome": "impossible", "summary": "There is no moon." });
    let (job, ..) = run([say("finish", end)], json!({})).await;
    assert_eq!(job["status"], "failed");
    assert_eq!(job["error"], json!({ "code": "task_impossible", "message": "There is no moon." }));
}

#[tokio::test]
async fn a_long_conversation_is_made_smaller_and_nothing_is_lost() {
    let mut script = vec![shell("echo the secret word is xylophone; seq 1 3000")];
    script.extend((0..6).map(|n| shell(&format!("echo part {n}; seq {n}000 {}500", n + 2))));
    script.push(Reply::Say(Said::text("summary: we counted")));
    script.extend((7..9).map(|n| shell(&format!("echo part {n}; seq {n}000 {}500", n + 2))));
    let model = Scripted::start(script).await;
    let server = server_with(&model, "[model]\ncontext_tokens = 40000\n");
    let id = server.submit(&json!({ "task": "Count for long." })).await;
    let ended = server.wait_for_end(&id).await;
    // The script ends somewhere; what matters is what happened before.
    let compacted = events(&server, &ended, "context.compacted").await;
    assert!(!compacted.is_empty());
    for event in &compacted {
        let (before, after) =
            (&event["compaction"]["tokens_before"], &event["compaction"]["tokens_after"]);
        assert!(after.as_u64().unwrap() * 10 <= before.as_u64().unwrap() * 9, "{event:#}");
    }
    let largest = model.asked().iter().map(|asked| asked.body.to_string().len()).max().unwrap();
    assert!(largest < 40_000 * 4, "{largest}");

    // The conversation as it was each time before is in the ZIP, and can be had from the log too.
    let mut result = server.archive(&id).await;
    let names = archive::names(&result);
    let earlier: Vec<&String> = names.iter().filter(|name| name.starts_with("context/0")).collect();
    assert_eq!(earlier.len(), compacted.len(), "{names:?}");
    let current = archive::text(&mut result, "context/current.json");
    let mut before: Value = serde_json::from_str(&archive::text(&mut result, earlier[0])).unwrap();
    assert!(before.to_string().contains("xylophone") && !before.to_string().contains("left out"));
    assert!(current.contains("left out") || current.contains("[Summary"), "{current}");
    let seq: u64 = earlier[0]["context/".len()..].trim_end_matches(".json").parse().unwrap();
    let at_that_time = server.json(&format!("/jobs/{id}/context?at={seq}")).await;
    assert_eq!(before.take(), at_that_time);
}

/// Results too short to be cut, so that nothing but a summary helps.
#[tokio::test]
async fn a_summary_that_the_model_writes_is_what_it_goes_on_with() {
    let words = "WE LISTED MANY THINGS AND THE SECRET WORD IS XYLOPHONE";
    let some = |n: usize| {
        let calls = (0..12).fold(Said::default(), |said, at| {
            let command = format!("echo thing {n} {at}; seq -s ' ' 100 400");
            said.and_call("shell", json!({ "command": command }))
        });
        Reply::Say(calls)
    };
    let model = Scripted::start((0..6).map(some).chain([finish()])).await;
    model.answer_aside(Said { usage: Some((3000, 0, 30)), ..Said::text(words) });
    let server = server_with(&model, "[model]\ncontext_tokens = 40000\n");
    let job = server.run(&json!({ "task": "List much." })).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    let asked = model.asked();
    let at = asked.iter().position(|asked| asked.body["tools"].is_null()).expect("a summary");
    let shown = asked[at].body["messages"].to_string();
    assert!(shown.contains("thing 0 0") && !shown.contains(words), "{shown}");
    let next = &asked[at + 1].body["messages"];
    let note = text(&next[2], "content");
    assert!(note.starts_with("[Summary of what happened") && note.ends_with(words), "{next:#}");
    assert!(!next.to_string().contains("thing 0 0"), "{next:#}");
    let compacted = events(&server, &job, "context.compacted").await;
    assert_eq!(compacted[0]["compaction"]["summary"]["text"], words);
    assert_eq!(compacted[0]["compaction"]["summary"]["usage"]["input"], 3000);
}

#[tokio::test]
async fn the_history_can_be_searched_and_read_again() {
    let model = Scripted::start([
        shell("echo the secret word is xylophone; seq 1 20000"),
        say("recall", json!({ "query": "secret word" })),
        say("read_output", json!({ "step": 1, "offset": 10000, "limit": 2 })),
        say("read_history", json!({ "from": 1, "to": 3 })),
        // What is short is nowhere but in the log.
        shell("echo short words; echo more >&2"),
        say("read_output", json!({ "step": 2 })),
        say("read_output", json!({ "step": 3 })),
        finish(),
    ])
    .await;
    let server = server_with(&model, "");
    let job = server.run(&json!({ "task": "Remember." })).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    let answers = events(&server, &job, "tool.answered").await;
    let outputs: Vec<&str> = answers.iter().map(|event| text(event, "output")).collect();
    // What is looked for is in the result, and not in the question.
    assert!(outputs[0].lines().next().unwrap().contains("is xylophone"), "{}", outputs[0]);
    assert_eq!(outputs[1], "9999\n10000\n[lines 10000 to 10001 of 20001]");
    assert!(outputs[2].starts_with("[entry 1] the task: Remember."), "{}", outputs[2]);
    assert_eq!(outputs[3], "short words\nmore\n[lines 1 to 2 of 2]");
    assert_eq!(outputs[4], "there is no step 3 so far");
    let shown = text(&model.asked()[1].body["messages"][3], "content").to_owned();
    assert!(shown.contains("read_output with step 1") && shown.len() < 40_000, "{}", shown.len());
}

#[tokio::test]
async fn a_models_words_are_heard_while_it_speaks() {
    for wire in ["chat", "responses", "messages"] {
        let words = "one two three four five six seven eight ".repeat(8);
        let said = Said { text: words.clone(), ..Said::finish("ok") };
        let model = Scripted::start([Reply::SayInHalves(said)]).await;
        let config = format!("[model]\nbase_url = \"{}\"\nwire = \"{wire}\"\n", model.base_url());
        let server = TestServer::with(Options { config: config.leak(), ..Options::default() });
        let id = server.submit(&json!({ "task": "Speak." })).await;
        let heard = server.wait_for(&id, "model.said").await;
        assert!(words.starts_with(text(&heard, "text")), "{wire}: {heard}");
        // It is still speaking, so nobody has the whole of it.
        assert!(!server.log(&id).await.contains("model.answered"), "{wire}");
        model.go_on();
        assert_eq!(server.wait_for_end(&id).await["status"], "completed", "{wire}");
    }
}

#[tokio::test]
async fn the_context_can_be_looked_at_as_it_is_and_as_it_was() {
    let wait = "echo first words; until [ -e go ]; do sleep 0.02; done";
    let model = Scripted::start([shell("echo early"), shell(wait), finish()]).await;
    let server = server_with(&model, "");
    let id = server.submit(&json!({ "task": "Look at me." })).await;
    let early = server.wait_for_step(&id, "step.finished", 1).await;
    server.wait_for_step(&id, "step.output", 2).await;
    let now = server.json(&format!("/jobs/{id}/context")).await.to_string();
    assert!(now.contains("Look at me.") && now.contains("early") && now.contains("first words"));
    let then = format!("/jobs/{id}/context?at={}", early["seq"]);
    let then = server.json(&then).await.to_string();
    assert!(then.contains("early") && !then.contains("first words"), "{then}");
    server.let_go(&id).await;
    let ended = server.wait_for_end(&id).await;
    assert_eq!(ended["status"], "completed");
    let mut result = server.archive(&id).await;
    let packed: Value =
        serde_json::from_str(&archive::text(&mut result, "context/current.json")).unwrap();
    assert_eq!(server.json(&format!("/jobs/{id}/context")).await, packed);
    assert_eq!(model.left(), 0);
}
