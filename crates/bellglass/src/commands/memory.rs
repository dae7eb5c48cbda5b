//! `bellglass memory`: what tasks left for later ones.

use serde_json::{Value, json};

use super::{Format, print_json};
use crate::api_client::ApiClient;
use crate::cli;
use crate::exit::Exit;
use crate::render::safe;

pub(super) async fn memory(command: &cli::Memory, format: Format) -> anyhow::Result<Exit> {
    match command {
        cli::Memory::List { project, search, server } => {
            let query = [("project", project), ("search", search)];
            let query: Vec<(&str, String)> = query
                .into_iter()
                .filter_map(|(name, value)| Some((name, value.clone()?)))
                .collect();
            let answer = ApiClient::new(server)?.memories(&query).await?;
            match format {
                Format::Json => print_json(&answer)?,
                Format::Text => {
                    let memories =
                        answer["memories"].as_array().map(Vec::as_slice).unwrap_or_default();
                    if memories.is_empty() {
                        println!("no memories");
                    }
                    for memory in memories {
                        println!("{}", line(memory));
                    }
                }
            }
        }
        cli::Memory::Add { project, text, server } => {
            let body = json!({ "project": project, "text": text });
            show(&ApiClient::new(server)?.add_memory(&body).await?, format)?;
        }
        cli::Memory::Edit { id, text, server } => {
            let body = json!({ "text": text });
            show(&ApiClient::new(server)?.change_memory(*id, &body).await?, format)?;
        }
        cli::Memory::Delete { id, server } => {
            ApiClient::new(server)?.forget_memory(*id).await?;
            if format == Format::Text {
                println!("{id}: forgotten");
            }
        }
    }
    Ok(Exit::Success)
}

fn show(memory: &Value, format: Format) -> anyhow::Result<()> {
    match format {
        Format::Json => print_json(memory)?,
        Format::Text => println!("{}", line(memory)),
    }
    Ok(())
}

fn line(memory: &Value) -> String {
    let text = |field: &str| safe(memory[field].as_str().unwrap_or_default());
    format!("{:>5}  {}  {}", memory["id"], text("project"), text("text"))
}
