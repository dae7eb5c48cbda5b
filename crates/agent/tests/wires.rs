//! Each wire against the scripted server over real HTTP: whole answers, and every way to fail.

mod scripted;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bellglass_agent::model::catalogue::{
    Catalogue, CatalogueSettings, ModelSettings, Price, ProviderSettings, Recording,
};
use bellglass_agent::model::pictures::{LoadedPicture, Picture, Pictures, Sight};
use bellglass_agent::model::{
    Failure, Message, Model, Request, Secret, ToolDefinition, ToolResult,
};
use bellglass_protocol::model::{AnswerBlock, ModelAnswer, StopCause, Usage, Wire};
use scripted::{Reply, Said, Scripted};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const WIRES: [Wire; 3] = [Wire::Chat, Wire::Responses, Wire::Messages];
const KEY: &str = "sk-canary-0123456789";

async fn model(server: &Scripted, wire: Wire) -> Arc<dyn Model> {
    model_with(server, wire, Sight::Sees).await
}

async fn model_with(server: &Scripted, wire: Wire, sight: Sight) -> Arc<dyn Model> {
    let key = Some(Secret::new(KEY));
    let provider = ProviderSettings { base_url: server.base_url(), key, wire };
    let price = Price { input: 1.0, output: 10.0, cached: Some(0.1), cache_written: None };
    let settings = CatalogueSettings {
        providers: BTreeMap::from([("local".into(), provider)]),
        idle: Some(Duration::from_millis(300)),
        every: ModelSettings { sight: Some(sight), ..ModelSettings::default() },
        prices: BTreeMap::from([("local/".into(), price)]),
        ..CatalogueSettings::default()
    };
    Catalogue::new(settings).unwrap().line("local/default", "job").await.unwrap().remove(0)
}

fn request(messages: Vec<Message>) -> Request {
    let tool = ToolDefinition {
        name: "shell".into(),
        description: "Runs a command.".into(),
        parameters: json!({ "type": "object", "properties": {} }),
    };
    Request {
        system: "Be good.".into(),
        tools: [tool].into(),
        messages: Arc::new(messages),
        most_output: None,
        conversation: "job".into(),
        pictures: Default::default(),
        live: Default::default(),
    }
}

/// A conversation with a result that has two pictures, of which one could be loaded.
fn with_pictures(answer: ModelAnswer) -> Request {
    let picture = |name: &str| Picture { artifact: name.into(), bytes: 3 };
    let mut request = request(vec![
        Message::User("Hello".into()),
        Message::Assistant(answer.blocks.into()),
        Message::ToolResults(vec![ToolResult {
            call_id: "call_0".into(),
            text: "a.txt".into(),
            failed: true,
            pictures: vec![picture("seen"), picture("lost")],
        }]),
    ]);
    let loaded = LoadedPicture { media_type: "image/png", base64: "UE5H".into() };
    request.pictures = Pictures::default().with(Arc::new([("seen".into(), loaded.into())].into()));
    request
}

async fn ask(wire: Wire, reply: Reply) -> (Result<ModelAnswer, Failure>, Scripted) {
    let server = Scripted::start([reply]).await;
    let model = model(&server, wire).await;
    (model.ask(&request(vec![Message::User("Hello".into())])).await, server)
}

#[tokio::test]
async fn a_whole_answer_comes_through_every_wire() {
    for wire in WIRES {
        let said = Said {
            reasoning: Some("I should look around first.".into()),
            text: "Let me see — schön.".into(),
            calls: vec![],
            usage: Some((1000, 600, 50)),
        };
        let said = said
            .and_call("shell", json!({ "command": "ls -la /workspace" }))
            .and_call("read_file", json!({ "path": "ünï.txt" }));
        let (answer, server) = ask(wire, Reply::Say(said)).await;
        let answer = answer.unwrap();
        assert_eq!(answer.model, "local/scripted");
        assert_eq!(answer.stop, StopCause::ToolCalls, "{wire:?}");
        let usage = Usage { input: 1000, cached: 600, cache_written: 0, output: 50 };
        assert_eq!(answer.usage, usage, "{wire:?}");
        let cost = answer.cost_usd.unwrap();
        assert!((cost - (400.0 + 60.0 + 500.0) / 1e6).abs() < 1e-12, "{wire:?} {cost}");
        let [reasoning, text, first, second] = answer.blocks.as_slice() else {
            panic!("{wire:?} {:?}", answer.blocks)
        };
        assert!(
            matches!(reasoning, AnswerBlock::Reasoning { text, .. } if text == "I should look around first.")
        );
        assert_eq!(*text, AnswerBlock::Text { text: "Let me see — schön.".into() });
        let call = |id: &str, name: &str, arguments: Value| AnswerBlock::ToolCall {
            id: id.into(),
            name: name.into(),
            arguments: arguments.to_string(),
        };
        assert_eq!(*first, call("call_0", "shell", json!({ "command": "ls -la /workspace" })));
        assert_eq!(*second, call("call_1", "read_file", json!({ "path": "ünï.txt" })));
        let headers = server.asked()[0].headers.join("\n");
        assert!(headers.contains(KEY), "{headers}");
    }
}

#[tokio::test]
async fn reasoning_results_and_pictures_go_back_as_each_provider_wants_them() {
    for wire in WIRES {
        let thought = Said {
            reasoning: Some("hm".into()),
            ..Said::call("shell", json!({ "command": "ls" }))
        };
        let server = Scripted::start([Reply::Say(thought), Reply::Say(Said::text("done"))]).await;
        let model = model(&server, wire).await;
        let answer = model.ask(&request(vec![Message::User("Hello".into())])).await.unwrap();
        model.ask(&with_pictures(answer)).await.unwrap();
        let asked = server.asked();
        let (before, body) = (&asked[0].body, &asked[1].body);
        let find =
            |value: &Value, pointer: &str| value.pointer(pointer).cloned().unwrap_or_default();
        let (list, expected) = match wire {
            Wire::Chat => (
                "messages",
                vec![
                    ("/messages/0/content", json!("Be good.")),
                    ("/messages/2/reasoning_content", json!("hm")),
                    ("/messages/2/tool_calls/0/id", json!("call_0")),
                    ("/messages/3/tool_call_id", json!("call_0")),
                    ("/messages/3/content", json!("a.txt\n[a picture, cannot be shown]")),
                    ("/messages/4/content/0/image_url/url", json!("data:image/png;base64,UE5H")),
                    ("/stream_options/include_usage", json!(true)),
                ],
            ),
            Wire::Responses => (
                "input",
                vec![
                    ("/instructions", json!("Be good.")),
                    ("/store", json!(false)),
                    ("/input/1/encrypted_content", json!("c2VhbGVk")),
                    ("/input/2/call_id", json!("call_0")),
                    ("/input/3/output/0/text", json!("a.txt\n[a picture, cannot be shown]")),
                    ("/input/3/output/1/image_url", json!("data:image/png;base64,UE5H")),
                    ("/prompt_cache_key", json!("job")),
                ],
            ),
            Wire::Messages => (
                "messages",
                vec![
                    ("/system/0/text", json!("Be good.")),
                    ("/system/0/cache_control/type", json!("ephemeral")),
                    (
                        "/messages/1/content/0",
                        json!({ "type": "thinking", "thinking": "hm", "signature": "c2ln" }),
                    ),
                    ("/messages/1/content/1/input", json!({ "command": "ls" })),
                    ("/messages/2/content/0/is_error", json!(true)),
                    ("/messages/2/content/0/content/1/source/data", json!("UE5H")),
                    ("/messages/2/content/0/cache_control/type", json!("ephemeral")),
                ],
            ),
        };
        for (pointer, value) in expected {
            assert_eq!(find(body, pointer), value, "{wire:?} {pointer} in {body:#}");
        }
        // Append-only: what was sent before is sent again, but for the marks of the cache.
        let plain = |message: &Value| {
            message.to_string().replace(r#""cache_control":{"type":"ephemeral"},"#, "")
        };
        let both = before[list].as_array().unwrap().iter().zip(body[list].as_array().unwrap());
        both.for_each(|(old, new)| assert_eq!(plain(old), plain(new), "{wire:?}"));
        assert_eq!(before["tools"], body["tools"]);
    }
}

#[tokio::test]
async fn a_model_that_sees_nothing_is_told_so_and_sent_no_picture() {
    for wire in WIRES {
        let call = Said::call("shell", json!({ "command": "ls" }));
        let server = Scripted::start([Reply::Say(call), Reply::Say(Said::text("done"))]).await;
        let model = model_with(&server, wire, Sight::Blind).await;
        assert_eq!(model.sight(), Sight::Blind);
        let answer = model.ask(&request(vec![Message::User("Hello".into())])).await.unwrap();
        model.ask(&with_pictures(answer)).await.unwrap();
        let body = server.asked()[1].body.to_string();
        assert!(!body.contains("UE5H"), "{wire:?} {body}");
        assert!(body.contains("2 pictures, not shown"), "{wire:?} {body}");
    }
}

#[tokio::test]
async fn a_slow_first_byte_is_waited_for_but_not_for_ever() {
    for wire in WIRES {
        let said = Reply::SayLater(Said::text("at last"));
        let server = Scripted::start([said.clone(), said]).await;
        let model = model(&server, wire).await;
        let request = request(vec![Message::User("Hello".into())]);
        // The server has the question before it is let go on, so it is slower than the first byte.
        let (answer, ()) = tokio::join!(model.ask(&request), async {
            server.asked_times(1).await;
            server.go_on();
        });
        assert_eq!(answer.unwrap().blocks, [AnswerBlock::Text { text: "at last".into() }]);
        let error = model.ask(&request).await.unwrap_err().error;
        assert_eq!(error.code(), "model_idle", "{wire:?}");
    }
}

#[tokio::test]
async fn every_failure_is_told_apart() {
    let error = |message: &str| json!({ "error": { "type": "x", "message": message } }).to_string();
    let fail =
        |status: u16, message: &str| Reply::Fail { status, body: error(message), header: None };
    for wire in WIRES {
        for (reply, code, is_temporary) in [
            (fail(429, "slow down"), "model_busy", true),
            (fail(529, "overloaded"), "model_busy", true),
            (fail(500, "oops"), "model_server_failed", true),
            (fail(401, "wrong key"), "model_key_refused", false),
            (fail(404, "no such model"), "model_refused", false),
            (fail(400, "prompt is too long: 300000 tokens"), "context_too_long", false),
            (
                Reply::Fail { status: 502, body: "<html>".into(), header: None },
                "model_server_failed",
                true,
            ),
            (Reply::ErrorInside { kind: "overloaded_error", message: "busy" }, "model_busy", true),
            (
                Reply::ErrorInside { kind: "api_error", message: "broke" },
                "model_server_failed",
                true,
            ),
            (
                Reply::Cut(Said::text("this will never be whole, however long it is")),
                "model_answer_cut",
                true,
            ),
            (
                Reply::CutCall(Said::call("shell", json!({ "command": "ls" }))),
                "model_answer_cut",
                true,
            ),
            (Reply::NoChoices, "model_answer_invalid", true),
            (Reply::NotJson, "model_answer_invalid", true),
            (Reply::Silence, "model_idle", true),
            (Reply::SilenceInside(Said::text("and then")), "model_idle", true),
        ] {
            let (answer, _) = ask(wire, reply.clone()).await;
            let error = answer.unwrap_err().error;
            assert_eq!(
                (error.code(), error.is_temporary()),
                (code, is_temporary),
                "{wire:?} {reply:?} {error}"
            );
        }
    }
}

/// Anthropic says at the beginning how much it has read, and wants to be paid for it.
#[tokio::test]
async fn what_an_answer_cost_that_breaks_off_is_known_as_far_as_it_was_said() {
    let said = || Said { usage: Some((1000, 600, 50)), ..Said::text("this will never be whole") };
    for reply in [Reply::Cut(said()), Reply::SilenceInside(said())] {
        let failure = ask(Wire::Messages, reply).await.0.unwrap_err();
        let usage = Usage { input: 1000, cached: 600, cache_written: 0, output: 1 };
        assert_eq!(failure.usage, Some(usage), "{failure}");
        let cost = failure.cost_usd.unwrap();
        assert!((cost - (400.0 + 60.0 + 10.0) / 1e6).abs() < 1e-12, "{cost}");
    }
    let busy = Reply::Fail { status: 429, body: "{}".into(), header: None };
    assert_eq!(ask(Wire::Messages, busy).await.0.unwrap_err().usage, None);
}

/// A replay keeps the conversation as short as it was, whichever model was asked first.
#[tokio::test]
async fn a_recording_says_what_all_models_of_the_task_could_read() {
    let folder = tempfile::tempdir().unwrap();
    let server = Scripted::start([Reply::Say(Said::text("hello"))]).await;
    let provider =
        ProviderSettings { base_url: server.base_url(), key: None, wire: Wire::Messages };
    let tokens = |tokens| ModelSettings { context_tokens: Some(tokens), ..Default::default() };
    let settings = CatalogueSettings {
        providers: BTreeMap::from([("local".into(), provider)]),
        fallback: Some("local/small".into()),
        own: BTreeMap::from([
            ("local/large".into(), tokens(100_000)),
            ("local/small".into(), tokens(8_000)),
        ]),
        recordings: Some(folder.path().to_owned()),
        record: Recording::On,
        ..CatalogueSettings::default()
    };
    let line = Catalogue::new(settings).unwrap().line("local/large", "job").await.unwrap();
    line[0].ask(&request(vec![Message::User("Hello".into())])).await.unwrap();
    let recorded = std::fs::read_to_string(folder.path().join("job.jsonl")).unwrap();
    let head: Value = serde_json::from_str(recorded.lines().next().unwrap()).unwrap();
    assert_eq!(head["context_tokens"], 8_000);
}

/// A server that has no list of models and says so at once.
async fn knows_nothing() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let answer = "HTTP/1.1 404 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    format!("http://{address}/v1")
}

/// The server that is to say which models it has does not, and somebody else is named.
#[tokio::test]
async fn a_model_that_cannot_be_found_leaves_its_task_to_the_fallback() {
    let nothing = knows_nothing().await;
    let provider = |base_url| ProviderSettings { base_url, key: None, wire: Wire::Messages };
    let settings = |fallback: Option<&str>| CatalogueSettings {
        providers: BTreeMap::from([
            ("local".into(), provider(nothing.clone())),
            ("other".into(), provider("http://127.0.0.1:1/v1".into())),
        ]),
        fallback: fallback.map(Into::into),
        ..CatalogueSettings::default()
    };
    let line = Catalogue::new(settings(Some("other/b"))).unwrap().line("local/default", "j").await;
    let names: Vec<String> = line.unwrap().iter().map(|model| model.name().to_owned()).collect();
    assert_eq!(names, ["other/b"]);
    let alone = Catalogue::new(settings(None)).unwrap().line("local/default", "j").await;
    assert!(alone.is_err());
}

#[tokio::test]
async fn arguments_that_are_no_json_and_tools_that_are_unknown_come_through_as_they_are() {
    for wire in WIRES {
        let broken = "{\"command\": \"ec".to_owned();
        let calls = vec![("shell".to_owned(), broken.clone()), ("teleport".into(), "{}".into())];
        let script = [Reply::Say(Said { calls, ..Said::default() }), Reply::Say(Said::text("ok"))];
        let server = Scripted::start(script).await;
        let model = model(&server, wire).await;
        let mut messages = vec![Message::User("Hello".into())];
        let answer = model.ask(&request(messages.clone())).await.unwrap();
        let said: Vec<_> = answer
            .blocks
            .iter()
            .filter_map(|block| match block {
                AnswerBlock::ToolCall { name, arguments, .. } => Some((&**name, &**arguments)),
                _ => None,
            })
            .collect();
        assert_eq!(said, [("shell", &*broken), ("teleport", "{}")], "{wire:?}");
        // What goes back is JSON all the same: servers read their own history again.
        messages.push(Message::Assistant(answer.blocks.into()));
        model.ask(&request(messages)).await.unwrap();
        let body = server.asked()[1].body.to_string();
        assert!(body.contains("not_json"), "{wire:?} {body}");
    }
}

#[tokio::test]
async fn a_server_says_how_long_to_wait_and_repeats_no_key() {
    let body = json!({ "error": { "message": format!("the key {KEY} is busy") } }).to_string();
    let reply = Reply::Fail { status: 429, body, header: Some(("retry-after", "3")) };
    let error = ask(Wire::Chat, reply).await.0.unwrap_err().error;
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3)));
    assert!(!error.to_string().contains(KEY), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_to_be_so() {
    let server = Scripted::start([]).await;
    let provider =
        ProviderSettings { base_url: "http://127.0.0.1:1/v1".into(), key: None, wire: Wire::Chat };
    let settings = CatalogueSettings {
        providers: BTreeMap::from([("local".into(), provider)]),
        ..CatalogueSettings::default()
    };
    drop(server);
    let model = Catalogue::new(settings).unwrap().line("local/x", "job").await.unwrap().remove(0);
    let error = model.ask(&request(vec![Message::User("Hello".into())])).await.unwrap_err().error;
    assert_eq!(error.code(), "model_not_reached", "{error}");
}
