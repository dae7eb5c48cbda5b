//! Memories across tasks: left by one, told to the next of the same project, and managed by the user.

use std::sync::Arc;

use axum::Json;
use axum::routing::post;
use serde_json::{Value, json};

use crate::scripted::{Reply, Said, Scripted};
use crate::support::{Options, TestServer, bellglass, text};

const SECRET: &str = "ghp_0123456789abcdefABCDEF0123456789abcd";

fn finish() -> Reply {
    Reply::Say(Said::finish("ok"))
}

fn remember(texts: &[&str]) -> Reply {
    Reply::Say(Said::text(&serde_json::to_string(texts).unwrap()))
}

fn server_with(model: &Scripted, config: &str) -> TestServer {
    let environment = vec![("OPENAI_BASE_URL", model.base_url())];
    TestServer::with(Options {
        config: config.to_owned().leak(),
        environment,
        ..Options::default()
    })
}

fn first_messages(model: &Scripted, request: usize) -> String {
    model.asked()[request].body["messages"].to_string()
}

#[tokio::test]
async fn what_one_task_learns_the_next_one_of_the_project_knows() {
    let learnt = format!("Integration tests need the variable TOKEN={SECRET} to be set.");
    let model = Scripted::start([
        finish(),
        remember(&["Tests run with `make check`.", &learnt]),
        finish(),
        remember(&[]),
        finish(),
    ])
    .await;
    let server = server_with(&model, "");
    let job = server.run(&json!({ "task": "Build the shop.", "project": "shop" })).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    assert_eq!(job["usage"]["model_calls"], 2);
    let kept = server.wait_for(text(&job, "job_id"), "memory.kept").await;
    assert_eq!(kept["texts"].as_array().unwrap().len(), 2);
    // Neither here nor anywhere else, but for the model's own words in the log.
    assert!(!kept.to_string().contains(SECRET), "{kept}");

    let next = json!({ "task": "How do the tests run?", "project": "shop" });
    assert_eq!(server.run(&next).await["status"], "completed");
    let told = first_messages(&model, 2);
    assert!(told.contains("make check") && !told.contains(SECRET), "{told}");
    // Another project, or none, knows nothing of it.
    assert_eq!(server.run(&json!({ "task": "Run the tests." })).await["status"], "completed");
    assert!(!first_messages(&model, 4).contains("make check"));
    assert_eq!(model.left(), 0);
}

#[tokio::test]
async fn memories_are_managed_over_the_api_and_the_command_line() {
    let server = TestServer::start();
    let cli = |arguments: &[&str]| {
        let mut command = bellglass(server.folder());
        command.arg("memory").args(arguments).args(["--json", "--server"]).arg(server.url(""));
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.success(), serde_json::from_str::<Value>(&text).unwrap_or_default())
    };
    let (_, added) = cli(&["add", "shop", &format!("Deploy with\n{SECRET} set.")]);
    assert_eq!(added["text"], "Deploy with [redacted] set.");
    let id = added["id"].to_string();
    assert!(!cli(&["add", "shop", &format!("Deploy with {SECRET} set.")]).0, "it is known");
    assert!(cli(&["add", "other", "Something else."]).0);
    let (_, found) = cli(&["list", "--project", "shop", "--search", "deploying"]);
    assert_eq!(found["memories"].as_array().unwrap().len(), 1, "{found:#}");
    assert_eq!(cli(&["list"]).1["memories"].as_array().unwrap().len(), 2);
    assert_eq!(cli(&["edit", &id, "Deploy on Fridays."]).1["text"], "Deploy on Fridays.");
    assert!(cli(&["delete", &id]).0);
    assert!(!cli(&["delete", &id]).0);
    assert_eq!(server.get("/memories?nonsense=1").await.status(), 400);
    let empty = json!({ "project": "shop", "text": "  " }).to_string();
    assert_eq!(server.post("/memories", empty).await.status(), 422);
}

/// Meanings are two numbers here: how much a text is about food, and how much about money.
async fn embedding_server() -> String {
    let embed = async |Json(body): Json<Value>| {
        let text = body["input"].as_str().unwrap().to_lowercase();
        let about = |words: &[&str]| words.iter().filter(|word| text.contains(**word)).count();
        let vector = [about(&["bread", "dinner", "eat"]), about(&["price", "euro", "pay"])];
        Json(json!({ "data": [{ "embedding": vector }] }))
    };
    let app = axum::Router::new().route("/v1/embeddings", post(embed));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}/v1")
}

/// A static model of a few words, whose vectors say how much a word is about food and about money.
fn static_model(folder: &std::path::Path) {
    let words = [
        ("[UNK]", [0.0, 0.0]),
        ("bread", [1.0, 0.0]),
        ("dinner", [0.9, 0.1]),
        ("##s", [0.0, 0.0]),
        ("price", [0.0, 1.0]),
    ];
    let vocabulary: serde_json::Map<String, Value> =
        words.iter().zip(0..).map(|((word, _), at)| ((*word).into(), json!(at))).collect();
    let tokenizer = json!({
        "normalizer": { "type": "BertNormalizer" },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "model": { "type": "WordPiece", "unk_token": "[UNK]", "vocab": vocabulary },
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let numbers = words.iter().flat_map(|(_, vector)| vector.map(|x: f32| x.to_le_bytes()));
    let numbers: Vec<u8> = numbers.flatten().collect();
    let head = json!({ "embeddings": {
        "dtype": "F32", "shape": [words.len(), 2], "data_offsets": [0, numbers.len()],
    } })
    .to_string();
    let file = [&(head.len() as u64).to_le_bytes(), head.as_bytes(), &numbers].concat();
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
}

#[tokio::test]
async fn a_static_model_from_a_folder_finds_them_by_meaning() {
    let folder = tempfile::tempdir().unwrap();
    static_model(folder.path());
    let config = format!("[memory]\nembeddings_folder = {:?}\n", folder.path());
    let server = TestServer::with(Options { config: config.leak(), ..Options::default() });
    for text in ["Bread is baked at six.", "The price is in euro.", "A wall has two sides."] {
        let body = json!({ "project": "shop", "text": text }).to_string();
        assert_eq!(server.post("/memories", body).await.status(), 201);
    }
    let found = server.json("/memories?project=shop&search=dinners").await;
    assert_eq!(found["memories"][0]["text"], "Bread is baked at six.", "{found:#}");
    // What is found by its words and by its meaning comes before what is found by one of them.
    let found = server.json("/memories?project=shop&search=dinner+with+a+wall+of+bread").await;
    let texts: Vec<&str> =
        found["memories"].as_array().unwrap().iter().map(|memory| text(memory, "text")).collect();
    assert_eq!(texts[0], "Bread is baked at six.", "{texts:?}");
    assert!(texts.contains(&"A wall has two sides."), "{texts:?}");
}

#[test]
fn a_folder_without_a_model_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let config = format!("[memory]\nembeddings_folder = {:?}\n", folder.path());
    std::fs::write(folder.path().join("bellglass.toml"), config).unwrap();
    let mut command = bellglass(folder.path());
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path().join("data"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("model.safetensors"), "{said}");
}

#[tokio::test]
async fn with_an_embedding_source_they_are_found_by_meaning_too() {
    let url = embedding_server().await;
    let config =
        format!("[model]\nbase_url = \"{url}\"\n[memory]\nembeddings = \"local/meaning\"\n");
    let config: &'static str = config.leak();
    let server = Arc::new(TestServer::with(Options { config, ..Options::default() }));
    for text in ["Bread is baked at six.", "The price is in euro."] {
        let body = json!({ "project": "shop", "text": text }).to_string();
        assert_eq!(server.post("/memories", body).await.status(), 201);
    }
    // Not a word of it is in the text.
    let found = server.json("/memories?project=shop&search=when+do+we+eat+dinner").await;
    assert_eq!(found["memories"][0]["text"], "Bread is baked at six.", "{found:#}");
}
