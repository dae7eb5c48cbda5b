//! What of `bellglass.toml` is accepted, and that all of it is documented.

use super::*;
use crate::installation::ORPHANED_FROM_OTHERS_AFTER;

fn error_of(text: &str) -> String {
    parse(text, Path::new("bellglass.toml")).unwrap_err().to_string()
}

#[test]
fn unknown_keys_are_rejected_with_file_and_line() {
    let error = error_of("[server]\nlisten = \"127.0.0.1:1\"\nport = 7\n");
    assert!(error.starts_with("bellglass.toml:3:1: unknown field `port`"), "{error}");
    let error = error_of("\n[limits]\nmemory = \"lots\"\n");
    assert!(error.starts_with("bellglass.toml:3:10: `lots` is not a size"), "{error}");
    let error = error_of("[server\n");
    assert!(error.starts_with("bellglass.toml:1:"), "{error}");
}

#[test]
fn an_empty_file_gives_the_defaults() {
    let file = parse("", Path::new("x")).unwrap();
    assert_eq!(file.server.listen, "127.0.0.1:8000");
    assert_eq!(file.limits, Limits::default());
}

#[test]
fn a_file_that_cannot_be_read_is_not_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none.toml");
    let broken = folder.path().join("bellglass.toml");
    std::fs::write(&broken, b"token = \"\xff\"").unwrap();
    let error = first_of(vec![missing.clone(), broken.clone()]).unwrap_err().to_string();
    assert!(error.contains("bellglass.toml"), "{error}");
    assert!(first_of(vec![folder.path().to_owned()]).is_err());
    assert!(first_of(vec![missing, broken.join("below")]).unwrap().is_none());
}

#[test]
fn the_proxy_in_the_environment_is_understood_or_refused() {
    let proxy = parse_proxy("http://ada:p%40ss%3A@proxy.example:3128/").unwrap();
    assert_eq!((proxy.host.as_str(), proxy.port), ("proxy.example", 3128));
    assert_eq!(proxy.credentials.as_deref(), Some("ada:p@ss:"));
    assert_eq!(parse_proxy("proxy.example").unwrap().port, 80);
    for unusable in ["socks5://u:secret@proxy.example:1080", "https://u:secret@proxy.example:443"] {
        let error = parse_proxy(unusable).unwrap_err().to_string();
        assert!(error.contains("http://HOST:PORT") && !error.contains("secret"), "{error}");
    }
}

#[test]
fn limits_that_nothing_could_run_with_are_refused() {
    for wrong in ["[limits]\ncpus = nan", "[limits]\nmemory = 0", "[max_limits]\nprocesses = 0"] {
        let file = parse(wrong, Path::new("bellglass.toml")).unwrap();
        let config = Config { named: None, file, environment: Environment::default() };
        assert!(config.offer(ModelOffer::default()).is_err(), "{wrong}");
    }
}

#[test]
fn the_world_is_served_only_with_a_token() {
    let config = |token: Option<&str>| Config {
        named: None,
        file: ConfigFile::default(),
        environment: Environment { token: token.map(Into::into), ..Environment::default() },
    };
    let world: SocketAddr = "0.0.0.0:8000".parse().unwrap();
    let here: SocketAddr = "127.0.0.1:8000".parse().unwrap();
    let data = Path::new("data");
    assert!(config(None).server_settings(world, data).is_err());
    assert!(config(Some("short")).server_settings(world, data).is_err());
    assert!(config(Some("0123456789abcdef")).server_settings(world, data).is_ok());
    assert!(config(None).server_settings(here, data).is_ok());
}

#[test]
fn every_key_is_documented() {
    let page = include_str!("../../../../docs/configuration.md");
    let all = "data images listen token allowed_hosts sandbox_domain vnc_ports vnc_password body_limit upload_limit slots lease sweep \
               default base_url fallback wire idle_time context_tokens reasoning images recordings record embeddings embeddings_folder command url timeout authorization_env prices steps tokens usd registries private_exceptions value env file hosts path header format isolation runsc min max memory disk processes cpus open_files time step_time output total_output checkpoints password_file endpoint region presigned secret_file advertise grace keep_days keep jobs_at_once jobs_per_day running_time_per_day requests_per_second";
    for key in all.split_whitespace() {
        assert!(page.contains(&format!("`{key}`")), "{key} is not in docs/configuration.md");
    }
    // The list above is complete: the parser itself names every key it knows.
    for section in [
        "",
        "[server]\n",
        "[worker]\n",
        "[quotas]\n",
        "[store]\n",
        "[artifacts]\n",
        "[cluster]\n",
        "[image]\n",
        "[model]\n",
        "[network]\n",
        "[budget]\n",
        "[sandbox]\n",
        "[sandbox.warm]\n",
        "[secrets.x]\nhosts = []\n",
        "[mcp.x]\n",
        "[memory]\n",
        "[limits]\n",
        "[max_limits]\n",
    ] {
        let error = error_of(&format!("{section}nonsense = 1\n"));
        for key in error.split('`').skip(3).step_by(2) {
            let known = all.split_whitespace().any(|each| each == key);
            let is_section = [
                "server",
                "quotas",
                "worker",
                "store",
                "artifacts",
                "cluster",
                "image",
                "model",
                "network",
                "budget",
                "sandbox",
                "warm",
                "secrets",
                "mcp",
                "memory",
                "limits",
                "max_limits",
            ];
            assert!(known || is_section.contains(&key), "{key} is missing in this test");
        }
    }
}

/// The bounds of `docs/guarantees.md`: workers look at the queue every second, and an orphaned sandbox is
/// found by a sweep or ends by itself.
#[test]
fn the_usual_times_keep_what_is_promised() {
    let file = parse("", Path::new("bellglass.toml")).unwrap();
    let config = Config { named: None, file, environment: Environment::default() };
    let pace = config.pace(1, Duration::ZERO);
    assert!(pace.lease + Duration::from_secs(1) < Duration::from_secs(10));
    assert!(pace.lease + pace.sweep_every < Duration::from_secs(30));
    assert!(ORPHANED_FROM_OTHERS_AFTER < Duration::from_secs(30));
}
