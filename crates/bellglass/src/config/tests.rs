//! What of `bellglass.toml` is accepted, and that all of it is documented.

use std::collections::BTreeSet;

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

const PAGE: &str = include_str!("../../../../docs/configuration.md");

/// What the page says under a heading such as ``## `[server]` ``; before the first one, without a name.
fn documented(section: &str) -> Option<&'static str> {
    if section.is_empty() {
        return PAGE.split("\n## ").next();
    }
    let heading = format!("`[{section}]`");
    PAGE.split("\n## ").skip(1).find(|part| part.lines().next().unwrap().contains(&heading))
}

/// The keys in the tables of a section: what stands in backquotes in the first cell of each row.
fn keys_in(text: &str) -> BTreeSet<&str> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    rows.flat_map(|cell| cell.split('`').step_by(2)).filter(|key| !key.is_empty()).collect()
}

/// The keys that the parser knows in a section: it names them all to whoever uses another.
fn keys_of(section: &str) -> BTreeSet<String> {
    let error = match section {
        "" => error_of("nonsense = 1\n"),
        section => error_of(&format!("[{section}]\nnonsense = 1\n")),
    };
    assert!(error.contains("unknown field `nonsense`"), "{section}: {error}");
    error.split('`').skip(3).step_by(2).map(str::to_owned).collect()
}

/// Each key is in the table of its own section and no other, and each section has a heading.
#[test]
fn every_key_is_documented() {
    let mut sections = vec![(String::new(), String::new())];
    let mut seen = 0;
    while let Some((section, heading)) = sections.pop() {
        let text = documented(&heading);
        let text = text.unwrap_or_else(|| panic!("docs/configuration.md has no `[{heading}]`"));
        let told = keys_in(text);
        let mut known = BTreeSet::new();
        for key in keys_of(&section) {
            let below = if section.is_empty() { key.clone() } else { format!("{section}.{key}") };
            if documented(&below).is_some() {
                sections.push((below.clone(), below));
            } else if documented(&format!("{below}.NAME")).is_some() {
                sections.push((format!("{below}.x"), format!("{below}.NAME")));
            } else {
                known.insert(key);
            }
        }
        let known: BTreeSet<&str> = known.iter().map(String::as_str).collect();
        assert_eq!(
            told, known,
            "docs/configuration.md (left) and the parser (right), `[{heading}]`"
        );
        seen += known.len();
    }
    assert!(seen > 60, "only {seen} keys were found");
}

fn every_command(of: &clap::Command) -> Vec<&clap::Command> {
    let below = of.get_subcommands().flat_map(every_command);
    std::iter::once(of).chain(below).collect()
}

#[test]
fn every_variable_and_every_command_is_documented() {
    let program = <cli::Arguments as clap::CommandFactory>::command();
    let arguments = every_command(&program).into_iter().flat_map(clap::Command::get_arguments);
    let variables: BTreeSet<&str> =
        arguments.filter_map(|argument| argument.get_env()?.to_str()).collect();
    assert!(variables.len() > 8, "{variables:?}");
    for variable in variables {
        assert!(PAGE.contains(&format!("`{variable}`")), "{variable} is not documented");
    }
    let commands = PAGE.split("\n## ").find(|part| part.starts_with("The commands\n")).unwrap();
    let told: BTreeSet<&str> = commands
        .lines()
        .filter_map(|line| line.strip_prefix("| `bellglass ")?.split(['`', ' ']).next())
        .collect();
    let known: BTreeSet<&str> = program.get_subcommands().map(clap::Command::get_name).collect();
    assert_eq!(told, known, "docs/configuration.md (left) and the program (right)");
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
