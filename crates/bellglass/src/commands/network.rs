//! `bellglass network`: changes what a job may reach.

use serde_json::{Value, json};

use super::{Format, print_json};
use crate::api_client::ApiClient;
use crate::cli;
use crate::exit::Exit;

pub(super) async fn change(flags: &cli::Network, format: Format) -> anyhow::Result<Exit> {
    let client = ApiClient::new(&flags.server)?;
    let answer = client.change_network(flags.job, &policy(&flags.policy)).await?;
    match format {
        Format::Json => print_json(&answer)?,
        Format::Text => println!("{}: may reach {} now", flags.job, flags.policy.join(", ")),
    }
    Ok(Exit::Success)
}

/// One of the words that name a policy, or hosts. The server checks them.
fn policy(words: &[String]) -> Value {
    match words {
        [word] if matches!(word.as_str(), "none" | "registries" | "open") => json!(word),
        hosts => json!({ "allow": hosts }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_policies_and_others_are_hosts() {
        let read = |words: &[&str]| policy(&words.iter().map(|w| (*w).into()).collect::<Vec<_>>());
        assert_eq!(read(&["open"]), json!("open"));
        assert_eq!(read(&["a.example:443"]), json!({ "allow": ["a.example:443"] }));
        assert_eq!(
            read(&["a.example", "b.example"]),
            json!({ "allow": ["a.example", "b.example"] })
        );
    }
}
