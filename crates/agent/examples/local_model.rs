//! Tries the wires against a real model server, whose address is the first argument. Called by
//! `scripts/local-model.sh`; panics where something is not as it should be. The step that the model writes
//! goes to the file that is the second argument, as a job.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bellglass_agent::model::catalogue::{
    Catalogue, CatalogueSettings, ModelSettings, ProviderSettings,
};
use bellglass_agent::model::{Live, Message, Model, Request};
use bellglass_agent::tools::{Understood, definitions, understand};
use bellglass_protocol::model::{AnswerBlock, ModelAnswer, Wire};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// A small model on a loaded machine is slow; whoever needs longer has failed.
const PATIENCE: Duration = Duration::from_secs(300);

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let url = std::env::args()
        .nth(1)
        .expect("the address of a model server, such as http://127.0.0.1:8080/v1");
    for wire in [Wire::Chat, Wire::Responses, Wire::Messages] {
        let model = open(&url, wire).await;
        streams_and_counts(&*model, wire).await;
        stops_when_nobody_listens(model.clone(), wire).await;
    }
    summarises(&*open(&url, Wire::Chat).await).await;
    let step = calls_a_tool(&url).await;
    let file = std::env::args().nth(2).expect("a file for the step");
    std::fs::write(file, json!({ "steps": [step] }).to_string()).expect("the file can be written");
}

async fn open(url: &str, wire: Wire) -> Arc<dyn Model> {
    let provider = ProviderSettings { base_url: url.into(), key: None, wire };
    let settings = CatalogueSettings {
        providers: BTreeMap::from([("local".to_owned(), provider)]),
        every: ModelSettings { context_tokens: Some(4096), ..ModelSettings::default() },
        ..CatalogueSettings::default()
    };
    let line = Catalogue::new(settings).unwrap().line("local/default", "local-model").await;
    line.expect("the server lists a model").remove(0)
}

fn request(system: &str, words: &str, most: u64) -> (Request, UnboundedReceiver<String>) {
    let (listener, heard) = unbounded_channel();
    let request = Request {
        system: system.into(),
        tools: [].into(),
        messages: Arc::new(vec![Message::User(words.into())]),
        most_output: Some(most),
        conversation: "local-model".into(),
        pictures: Default::default(),
        live: Live::to(listener),
    };
    (request, heard)
}

fn text_of(answer: &ModelAnswer) -> String {
    let texts = answer.blocks.iter().filter_map(|block| match block {
        AnswerBlock::Text { text } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

async fn streams_and_counts(model: &dyn Model, wire: Wire) {
    let (request, mut heard) = request("Be brief.", "Count from one to ten.", 16);
    let asked = tokio::time::timeout(PATIENCE, model.ask(&request)).await;
    let answer = asked.expect("it answers in time").expect("it answers");
    drop(request);
    let mut pieces = Vec::new();
    while let Ok(piece) = heard.try_recv() {
        pieces.push(piece);
    }
    assert!(pieces.len() > 1, "{wire:?}: the words came in one piece: {pieces:?}");
    assert_eq!(pieces.concat(), text_of(&answer), "{wire:?}");
    assert!(answer.usage.input > 5 && answer.usage.output > 1, "{wire:?}: {:?}", answer.usage);
    println!("{wire:?}: {} pieces, {:?}", pieces.len(), answer.usage);
}

/// The server has one place, so it answers somebody else only if it has let go.
async fn stops_when_nobody_listens(model: Arc<dyn Model>, wire: Wire) {
    let (long, mut heard) = request("Be long.", "Tell a story that never ends.", 3000);
    let asking = model.clone();
    let telling = tokio::spawn(async move { asking.ask(&long).await });
    let first = tokio::time::timeout(PATIENCE, heard.recv()).await;
    first.expect("it begins in time").expect("it begins");
    telling.abort();
    assert!(telling.await.unwrap_err().is_cancelled(), "{wire:?}: the story ended too soon");
    let (short, _heard) = request("Be brief.", "Say hello.", 8);
    let asked = tokio::time::timeout(PATIENCE, model.ask(&short)).await;
    asked.expect("it is free again").expect("it answers");
    println!("{wire:?}: a story was cut and the next question answered");
}

async fn summarises(model: &dyn Model) {
    let history: Vec<String> =
        (1..40).map(|n| format!("[entry {n}] ran test number {n}, which passed")).collect();
    let system = "Summarise what the engineer did in one sentence.";
    let (request, _heard) = request(system, &history.join("\n"), 60);
    let asked = tokio::time::timeout(PATIENCE, model.ask(&request)).await;
    let answer = text_of(&asked.expect("in time").expect("a summary"));
    assert!(!answer.trim().is_empty() && answer.len() < history.join("\n").len(), "{answer}");
    println!("summary: {}", answer.trim());
}

/// A model as small as this calls no tools by itself, but it can be made to write the arguments.
async fn calls_a_tool(url: &str) -> Value {
    let shell = definitions().into_iter().find(|tool| tool.name == "shell").unwrap();
    let schema = json!({
        "type": "object", "required": ["command"], "additionalProperties": false,
        "properties": { "command": shell.parameters["properties"]["command"] },
    });
    let body = json!({
        "messages": [{ "role": "user", "content": "Write the shell command that lists files." }],
        "max_tokens": 200,
        "temperature": 0,
        "response_format": { "type": "json_schema", "json_schema": { "name": "shell", "schema": schema } },
    });
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
    let answer = client.post(format!("{url}/chat/completions")).json(&body).send().await.unwrap();
    let answer: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    let arguments = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
    let Understood::Sandbox(call) = understand("shell", arguments, &[]) else {
        panic!("the model's call makes no sense: {arguments}");
    };
    println!("tool call: {arguments}");
    serde_json::to_value(call).expect("a call is JSON")
}
