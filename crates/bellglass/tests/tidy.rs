//! Rules about the repository itself, kept true by tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every file that git knows or would take, with its text, by its path from the root.
fn texts(endings: &[&str]) -> Vec<(String, String)> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git is installed");
    assert!(output.status.success(), "these tests run in a git checkout");
    let files = String::from_utf8(output.stdout).unwrap();
    let wanted = files.lines().filter(|file| endings.iter().any(|ending| file.ends_with(ending)));
    wanted
        .filter_map(|file| Some((file.to_owned(), fs::read_to_string(root().join(file)).ok()?)))
        .collect()
}

fn crate_of(file: &str) -> &str {
    file.strip_prefix("crates/").and_then(|rest| rest.split('/').next()).unwrap_or("")
}

#[test]
fn crates_depend_inward_only() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        ("bellglass-protocol", &[][..]),
        ("bellglass-guest", &["bellglass-protocol"]),
        ("bellglass-sandbox", &["bellglass-protocol"]),
        ("bellglass-agent", &["bellglass-protocol"]),
        ("bellglass-store", &["bellglass-protocol"]),
        (
            "bellglass-worker",
            &["bellglass-agent", "bellglass-protocol", "bellglass-sandbox", "bellglass-store"],
        ),
        ("bellglass-server", &["bellglass-protocol", "bellglass-store"]),
        (
            "bellglass",
            &[
                "bellglass-agent",
                "bellglass-protocol",
                "bellglass-sandbox",
                "bellglass-server",
                "bellglass-store",
                "bellglass-worker",
            ],
        ),
    ]);
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    assert_eq!(packages.len(), allowed.len(), "a crate was added or removed: draw its arrows here");
    for package in packages {
        let name = package["name"].as_str().unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            let other = dependency["name"].as_str().unwrap();
            let is_test = dependency["kind"] == "dev";
            if other.starts_with("bellglass") && !is_test {
                assert!(allowed[name].contains(&other), "{name} must not depend on {other}");
            }
        }
    }
    let guest = packages.iter().find(|package| package["name"] == "bellglass-guest").unwrap();
    for dependency in guest["dependencies"].as_array().unwrap() {
        let other = dependency["name"].as_str().unwrap();
        let heavy = ["sqlx", "rustls", "hyper", "axum", "reqwest", "openssl"];
        assert!(!heavy.contains(&other), "the guest must stay small: no {other}");
    }
}

#[test]
fn every_source_file_says_what_it_is_for() {
    for (file, text) in texts(&[".rs"]) {
        let first = text.lines().next().unwrap_or_default();
        assert!(first.starts_with("//! "), "{file} does not open with a `//!` line");
    }
}

#[test]
fn files_are_one_idea() {
    for (file, text) in texts(&[".rs", ".ts", ".svelte"]) {
        let lines = text.lines().count();
        assert!(lines <= 600, "{file} has {lines} lines: it holds more than one idea");
    }
}

#[test]
fn unsafe_sql_and_the_environment_stay_where_they_belong() {
    for (file, text) in texts(&[".rs"]) {
        let (name, in_tests) = (crate_of(&file), file.contains("/tests/"));
        let is_build_script = file.ends_with("build.rs");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let code: String = code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .collect::<Vec<_>>()
            .join("\n");
        if !["sandbox", "guest"].contains(&name) && !file.ends_with("tests/tidy.rs") {
            assert!(!code.contains("unsafe {"), "{file}: only sandbox and guest hold `unsafe`");
        }
        if name != "store" && !in_tests {
            assert!(!code.contains("sqlx::"), "{file}: only store holds SQL");
        }
        if name != "bellglass" && !in_tests && !is_build_script {
            assert!(!code.contains("env::var"), "{file}: only bellglass reads the environment");
        }
    }
}

#[test]
fn nothing_is_left_unfinished() {
    // Written so that this file does not find itself.
    let marks = ["todo", "unimplemented"].map(|word| format!("{word}!("));
    let words =
        ["TO", "FIX"].map(|start| format!("{start}{}", if start == "TO" { "DO" } else { "ME" }));
    let all = [
        ".rs", ".ts", ".svelte", ".sh", ".py", ".toml", ".md", ".c", ".js", ".jsx", ".html",
        ".css", ".yml", ".sql", ".lua", "Makefile",
    ];
    let files = texts(&all);
    for ending in all {
        assert!(files.iter().any(|(file, _)| file.ends_with(ending)), "no file ends with {ending}");
    }
    for (file, text) in files {
        for mark in marks.iter().chain(&words) {
            assert!(!text.contains(mark.as_str()), "{file} contains {mark}");
        }
    }
}

/// What a sandbox wrote reaches the page only as text, so nothing on the page makes markup of text.
#[test]
fn the_page_makes_no_markup_of_text() {
    for (file, text) in texts(&[".ts", ".svelte"]) {
        if !file.starts_with("web/src/") {
            continue;
        }
        for way in
            ["{@html", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "srcdoc"]
        {
            assert!(!text.contains(way), "{file} contains {way}");
        }
    }
}

/// Comments are no documentation comments there, but a file still says what it is for.
#[test]
fn every_file_of_the_page_says_what_it_is_for() {
    let files = texts(&[".ts", ".svelte"]);
    assert!(files.len() > 40, "the page was not found");
    for (file, text) in files.iter().filter(|(file, _)| file.starts_with("web/")) {
        let says = text.starts_with("// ") || text.starts_with("<!-- ");
        assert!(says, "{file} does not open with a comment");
    }
}

#[test]
fn names_explain_themselves() {
    for (file, _) in texts(&[".rs", ".ts"]) {
        let stem = Path::new(&file).file_stem().unwrap().to_string_lossy().into_owned();
        for word in ["utils", "util", "helpers", "helper", "common", "misc"] {
            assert_ne!(stem, word, "{file}: name it after what it does");
        }
    }
}

#[test]
fn links_between_documents_lead_somewhere() {
    for (file, text) in texts(&[".md"]) {
        let folder = root().join(&file).parent().unwrap().to_path_buf();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            assert!(folder.join(target).exists(), "{file} links to {target}, which is not there");
        }
    }
}

/// The names of the tests in a file, as they are written in a document.
fn test_names(file: &str, text: &str) -> Vec<String> {
    let module = Path::new(file).file_stem().unwrap().to_string_lossy().into_owned();
    let mut lines = text.lines().filter(|line| !line.starts_with("#[cfg("));
    let mut names = Vec::new();
    while let Some(line) = lines.next() {
        if line != "#[test]" && !line.starts_with("#[tokio::test") {
            continue;
        }
        let function = lines.next().unwrap_or_default().trim_start_matches("async ");
        let name = function.trim_start_matches("fn ").split('(').next().unwrap_or_default();
        let is_main = module == "main";
        names.push(if is_main { name.to_owned() } else { format!("{module}::{name}") });
    }
    names
}

/// Every function of the tests, with the way to it: crate, folders and file before its name.
fn ways_to_tests() -> Vec<Vec<String>> {
    let mut ways = Vec::new();
    for (file, text) in texts(&[".rs"]) {
        let is_test_file = file.contains("/tests/") || file.ends_with("/tests.rs");
        let tests = match text.split_once("#[cfg(test)]") {
            _ if is_test_file => text.as_str(),
            Some((_, tests)) => tests,
            None => continue,
        };
        let path = file.trim_start_matches("crates/").trim_end_matches(".rs");
        let folders: Vec<&str> = path.split('/').collect();
        let functions = tests.lines().filter_map(|line| {
            let (before, rest) = line.split_once("fn ")?;
            let mut words = before.split_whitespace();
            let is_head = words.all(|word| word == "async" || word.starts_with("pub"));
            rest.split(['(', '<']).next().filter(|_| is_head)
        });
        for function in functions {
            ways.push(folders.iter().chain([&function]).map(|&part| part.to_owned()).collect());
        }
    }
    ways
}

/// Whether these words stand on the way to some test, in this order. `…` is for what is left out.
fn names_a_test(reference: &str, ways: &[Vec<String>]) -> bool {
    let words: Vec<&str> = reference.split([' ', ':']).filter(|word| !word.is_empty()).collect();
    let fits = |word: &str, part: &str| {
        let pieces: Vec<&str> = word.split('…').collect();
        let (first, last) = (pieces[0], pieces[pieces.len() - 1]);
        match pieces.len() {
            1 => part == word,
            _ => {
                let inside = part.strip_prefix(first).and_then(|part| part.strip_suffix(last));
                let middle = &pieces[1..pieces.len() - 1];
                inside.is_some_and(|inside| middle.iter().all(|piece| inside.contains(piece)))
            }
        }
    };
    let is_on = |way: &Vec<String>| {
        let mut parts = way.iter();
        words.iter().all(|word| parts.any(|part| fits(word, part)))
    };
    !words.is_empty() && ways.iter().any(is_on)
}

/// A guarantee without a test is only a promise, and so is one whose test has another name by now.
#[test]
fn every_guarantee_is_shown_by_tests_that_exist() {
    let page = fs::read_to_string(root().join("docs/guarantees.md")).unwrap();
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let ways = ways_to_tests();
    assert!(ways.len() > 800, "the tests were not found");
    assert!(names_a_test("end_to_end crash::every_accepted_job_survives_a_…", &ways));
    assert!(!names_a_test("end_to_end crash::every_accepted_job_is_lost", &ways));
    let mut shown = 0;
    let mut is_told = false;
    for line in page.lines() {
        let Some((row, cell)) = line.strip_suffix(" |").and_then(|line| line.rsplit_once("| "))
        else {
            // The line below a table's heads goes on with the table.
            is_told &= line.starts_with("|-");
            continue;
        };
        if cell == "shown by" {
            is_told = true;
            continue;
        }
        let names = cell.split('`').skip(1).step_by(2).filter(|_| is_told);
        let names: Vec<&str> = names.collect();
        let is_empty = names.is_empty() && !cell.contains("the same");
        assert!(!is_told || !is_empty, "nothing shows this: {row}");
        for name in names {
            let is_target =
                |target: &str| makefile.lines().any(|line| line.starts_with(&format!("{target}:")));
            let exists = match name.strip_prefix("make ") {
                Some(target) => is_target(target),
                None => names_a_test(name, &ways),
            };
            assert!(exists, "docs/guarantees.md names `{name}`, and there is no such test");
            shown += 1;
        }
    }
    assert!(shown > 20, "only {shown} tests were named");
}

/// Whoever looks for a variable finds all that are read.
#[test]
fn every_variable_that_is_read_is_documented() {
    let page = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let mut found = 0;
    for (file, text) in texts(&[".rs"]) {
        if !file.starts_with("crates/bellglass/src/") || file.ends_with("/tests.rs") {
            continue;
        }
        // Readers of variables, and what clap is told to read.
        let readers = [
            "var(\"",
            "var_os(\"",
            "variable(\"",
            "xdg(\"",
            "text(\"",
            "key(\"",
            "from_env(\"",
            "env = \"",
        ];
        for rest in readers.iter().flat_map(|reader| text.split(reader).skip(1)) {
            let name = rest.split('"').next().unwrap_or_default();
            let is_upper = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            if name.len() > 2 && name.chars().all(is_upper) {
                assert!(page.contains(&format!("`{name}`")), "{name}, read in {file}");
                found += 1;
            }
        }
    }
    assert!(found > 25, "only {found} variables were found");
}

#[test]
fn every_way_out_that_is_tried_is_documented() {
    let page = fs::read_to_string(root().join("docs/SECURITY.md")).unwrap();
    let folders = [
        "crates/bellglass/tests/escape/",
        "crates/sandbox/tests/hostile_guest/",
        "crates/worker/tests/hostile_guest/",
    ];
    let mut tried: Vec<String> = texts(&[".rs"])
        .iter()
        .filter(|(file, _)| folders.iter().any(|folder| file.starts_with(folder)))
        .flat_map(|(file, text)| test_names(file, text))
        .collect();
    // A row of a table that ends with a name in backquotes.
    let rows = page.lines().filter_map(|line| line.strip_suffix("` |")?.rsplit_once("| `"));
    let mut listed: Vec<String> = rows.map(|(_, name)| name.to_owned()).collect();
    tried.sort();
    listed.sort();
    assert!(tried.len() > 80, "the tests were not found");
    assert_eq!(listed, tried, "docs/SECURITY.md (left) and the tests (right) differ");
}
