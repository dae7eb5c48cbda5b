//! `bellglass token`: the tokens of users.

use serde_json::{Value, json};

use super::{Format, print_json};
use crate::api_client::ApiClient;
use crate::cli;
use crate::exit::Exit;
use crate::render::safe;

pub(super) async fn token(command: &cli::Token, format: Format) -> anyhow::Result<Exit> {
    match command {
        cli::Token::Create { user, role, name, expires, server } => {
            let mut body = json!({ "user": user, "role": role });
            if let Some(name) = name {
                body["name"] = json!(name);
            }
            if let Some(expires) = expires {
                body["expires_in"] = json!(expires);
            }
            let made = ApiClient::new(server)?.create_token(&body).await?;
            match format {
                Format::Json => print_json(&made)?,
                Format::Text => {
                    // The token alone is on standard output, for scripts.
                    println!("{}", safe(made["token"].as_str().unwrap_or_default()));
                    eprintln!("{}; it is not shown again", line(&made, user));
                }
            }
        }
        cli::Token::List { server } => {
            let answer = ApiClient::new(server)?.tokens().await?;
            match format {
                Format::Json => print_json(&answer)?,
                Format::Text => {
                    let tokens = answer["tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
                    for token in tokens {
                        println!("{}", line(token, token["user"].as_str().unwrap_or_default()));
                    }
                    if tokens.is_empty() {
                        println!("no tokens");
                    }
                }
            }
        }
        cli::Token::Revoke { id, server } => {
            ApiClient::new(server)?.revoke_token(id).await?;
            match format {
                Format::Json => print_json(&json!({ "id": id, "revoked": true }))?,
                Format::Text => println!("{id}: revoked"),
            }
        }
    }
    Ok(Exit::Success)
}

fn line(token: &Value, subject: &str) -> String {
    let text = |field: &str| safe(token[field].as_str().unwrap_or_default());
    let end = match (token["expires_at"].as_str(), token["expired"].as_bool()) {
        (Some(at), Some(true)) => format!("expired {}", safe(at)),
        (Some(at), _) => format!("until {}", safe(at)),
        (None, _) => "until revoked".to_owned(),
    };
    let (id, role, name) = (text("id"), text("role"), text("name"));
    format!("{id}  {role:<6}  {}  {end}  {name}", safe(subject)).trim_end().to_owned()
}
