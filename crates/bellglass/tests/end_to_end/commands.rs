//! Commands that need no server: run, image, doctor, version; configuration; exit codes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::{bellglass, shell, text};

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("bellglass-test-").tempdir().unwrap()
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

fn in_folder(folder: &Path, arguments: &[&str]) -> Output {
    run(bellglass(folder).args(arguments))
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[track_caller]
fn assert_fails(output: &Output, code: i32, words: &str) {
    assert_eq!(output.status.code(), Some(code), "{}{}", stdout(output), stderr(output));
    assert!(stderr(output).contains(words), "{}", stderr(output));
}

fn job_file(folder: &Path, name: &str, job: &Value) {
    fs::write(folder.join(name), job.to_string()).unwrap();
}

#[test]
fn run_does_one_job_and_writes_its_zip() {
    let folder = folder();
    let job = json!({ "steps": [shell("echo hello > made.txt; echo said"), shell("exit 5")] });
    job_file(folder.path(), "job.json", &job);
    let first = in_folder(folder.path(), &["run", "job.json"]);
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    for words in ["said", "failed with exit code 5", "job completed (failed steps: 2)", "job.zip"] {
        assert!(stdout(&first).contains(words), "{words}: {}", stdout(&first));
    }
    let zip = fs::File::open(folder.path().join("job.zip")).unwrap();
    let mut zip = zip::ZipArchive::new(zip).unwrap();
    let made = std::io::read_to_string(zip.by_name("made.txt").unwrap()).unwrap();
    assert_eq!(made, "hello\n");

    // A second run takes another name; `-o` takes the one that is given.
    assert!(in_folder(folder.path(), &["run", "job.json"]).status.success());
    assert!(folder.path().join("job-2.zip").is_file());
    assert!(in_folder(folder.path(), &["run", "job.json", "-o", "x.zip"]).status.success());
    assert!(folder.path().join("x.zip").is_file());

    let as_json = in_folder(folder.path(), &["run", "--json", "job.json", "-o", "y.zip"]);
    let lines: Vec<Value> =
        stdout(&as_json).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["type"], "scheduled");
    assert_eq!(lines[lines.len() - 2]["type"], "finished");
    assert_eq!(lines[lines.len() - 1]["result"], "y.zip");
}

#[test]
fn the_exit_code_of_run_tells_how_the_job_ended() {
    let folder = folder();
    let path = folder.path();
    job_file(path, "stops.json", &json!({ "steps": [shell("exit 1")], "on_error": "stop" }));
    let stops = in_folder(path, &["run", "stops.json"]);
    assert_eq!(stops.status.code(), Some(3));
    assert!(path.join("stops.zip").is_file(), "what there is can be taken home");

    assert_fails(&in_folder(path, &["run", "missing.json"]), 1, "there is no file missing.json");
    fs::write(path.join("bad.json"), "{\"steps\": [").unwrap();
    assert_fails(&in_folder(path, &["run", "bad.json"]), 1, "not valid JSON");
    job_file(path, "unknown.json", &json!({ "steps": [{ "tool": "teleport" }] }));
    assert_fails(&in_folder(path, &["run", "unknown.json"]), 1, "no tool named `teleport`");
    assert_fails(&in_folder(path, &["run", "write me a poem"]), 1, "OPENAI_API_KEY");
    job_file(path, "image.json", &json!({ "steps": [shell("true")], "image": "nope" }));
    assert_fails(&in_folder(path, &["run", "image.json"]), 1, "bellglass image build");
    assert_fails(&in_folder(path, &["run"]), 2, "Usage");
    assert_fails(&in_folder(path, &["fly"]), 2, "unrecognized subcommand");
    let zips = fs::read_dir(path).unwrap().flatten();
    let zips = zips.filter(|entry| entry.file_name().to_string_lossy().ends_with(".zip"));
    assert_eq!(zips.count(), 1);
}

/// The commands that a command's help lists.
fn listed(help: &str) -> Vec<String> {
    let list = help.split("\nCommands:\n").nth(1).unwrap_or_default();
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != "help").map(str::to_owned).collect()
}

#[test]
fn every_command_explains_itself() {
    let folder = folder();
    let mut left = vec![Vec::new()];
    let mut explained = Vec::new();
    while let Some(command) = left.pop() {
        let arguments: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
        let help = in_folder(folder.path(), &arguments);
        let said = stdout(&help);
        assert!(help.status.success(), "{command:?}: {}", stderr(&help));
        assert!(said.contains("Usage: bellglass"), "{command:?}: {said}");
        assert!(said.contains("--json"), "{command:?}: {said}");
        // What it is for comes first.
        assert!(!said.starts_with("Usage"), "{command:?}: {said}");
        let below = listed(&said).into_iter();
        left.extend(below.map(|name| command.iter().cloned().chain([name]).collect()));
        explained.push(command.join(" "));
    }
    for known in ["", "serve", "attach", "mcp", "image build", "memory edit", "token revoke"] {
        assert!(explained.iter().any(|command| command == known), "{known}: {explained:?}");
    }
    assert!(explained.len() > 30, "{explained:?}");
    assert!(stdout(&in_folder(folder.path(), &["--help"])).contains("Exit codes"));
}

#[test]
fn the_doctor_has_a_finding_on_every_subject_and_a_fix_for_all_that_is_not_good() {
    let folder = folder();
    let findings = |variables: &[(&str, &str)]| -> Vec<Value> {
        let mut command = bellglass(folder.path());
        for name in ["KUBECONFIG", "KUBERNETES_SERVICE_HOST"] {
            command.env_remove(name);
        }
        command.args(["doctor", "--json"]).envs(variables.iter().copied());
        let said: Value = serde_json::from_slice(&run(&mut command).stdout).unwrap();
        said["findings"].as_array().unwrap().clone()
    };
    let none = folder.path().join("no-images");
    let bare = findings(&[("BELLGLASS_IMAGES", none.to_str().unwrap())]);
    let equipped = findings(&[("OPENAI_API_KEY", "k"), ("KUBECONFIG", "/nowhere")]);
    for found in [&bare, &equipped] {
        for subject in [
            "kernel",
            "namespaces",
            "user mappings",
            "control groups",
            "system-call filter",
            "landlock",
            "image building",
            "KVM",
            "Docker",
            "Kubernetes",
            "display",
            "gVisor",
            "model",
            "image",
        ] {
            let count = found.iter().filter(|finding| finding["subject"] == subject).count();
            assert_eq!(count, 1, "{subject}: {found:#?}");
        }
        for finding in found {
            assert!(!text(finding, "detail").is_empty(), "{finding:#}");
            let is_good = finding["verdict"] == "good";
            let fix = finding["fix"].as_str().unwrap_or_default();
            assert_eq!(fix.is_empty(), is_good, "{finding:#}");
        }
    }
    let of = |found: &[Value], subject: &str| {
        found.iter().find(|finding| finding["subject"] == subject).unwrap().clone()
    };
    // A device that opens and a file that names a cluster prove nothing.
    for subject in ["KVM", "Kubernetes"] {
        assert_eq!(of(&equipped, subject)["verdict"], "absent");
    }
    assert!(text(&of(&equipped, "Kubernetes"), "detail").contains("KUBECONFIG"));
    assert!(text(&of(&bare, "display"), "fix").contains("bellglass image build desktop"));
    assert_eq!(of(&equipped, "display")["verdict"], "good");
    assert!(text(&of(&bare, "model"), "fix").contains("OPENAI_API_KEY"));
    assert!(text(&of(&equipped, "model"), "detail").contains("openai/"));
    assert!(text(&of(&bare, "image"), "fix").contains("bellglass image build"));
}

#[test]
fn version_doctor_and_images_speak_json() {
    let folder = folder();
    let parsed = |arguments: &[&str]| -> Value {
        let output = in_folder(folder.path(), arguments);
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    assert_eq!(parsed(&["version", "--json"])["version"], env!("CARGO_PKG_VERSION"));
    let said = stdout(&in_folder(folder.path(), &["version"]));
    assert_eq!(said, format!("bellglass {}\n", env!("CARGO_PKG_VERSION")));

    let doctor = parsed(&["doctor", "--json"]);
    assert_eq!(doctor["works"], true, "{doctor:#}");
    let findings = doctor["findings"].as_array().unwrap();
    let sandbox = findings.iter().find(|finding| finding["subject"] == "sandbox").unwrap();
    assert_eq!(sandbox["verdict"], "good", "{doctor:#}");
    let report = parsed(&["doctor", "--sandbox", "--json"]);
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() > 15 && checks.iter().all(|check| check["holds"] == true), "{checks:#?}");
    assert_eq!(report["inside"]["seccomp_mode"], 2);
    let words = stdout(&in_folder(folder.path(), &["doctor", "--sandbox"]));
    assert!(words.contains("✔ bounding set"), "{words}");
    assert!(words.contains("Everything that is claimed holds."), "{words}");
    let words = stdout(&in_folder(folder.path(), &["doctor"]));
    assert!(words.contains("Jobs can run on this host."), "{words}");

    let images = parsed(&["image", "list", "--json"]);
    let current = |image: &&Value| image["name"] == "base" && image["current"] == true;
    assert!(images.as_array().unwrap().iter().find(current).is_some(), "{images:#}");
    let base = parsed(&["image", "inspect", "base", "--json"]);
    let installed = base["installed"].as_array().unwrap();
    for package in ["bash", "git", "python3", "ripgrep"] {
        assert!(installed.iter().any(|each| text(each, "name") == package), "{package}");
    }
    // What is shown for people is the recipe as one could build it again, and the same packages.
    let words = stdout(&in_folder(folder.path(), &["image", "inspect", "base"]));
    let (_, rest) = words.split_once("\nrecipe\n").unwrap();
    let (recipe, packages) = rest.split_once("\n\npackages ").unwrap();
    let recipe: toml::Table = recipe.parse().unwrap();
    assert_eq!(serde_json::to_value(&recipe).unwrap(), base["recipe"]);
    assert_eq!(packages.lines().count(), 1 + installed.len());
    assert!(stdout(&in_folder(folder.path(), &["image", "list"])).contains("base"));
    assert_fails(&in_folder(folder.path(), &["image", "inspect", "nope"]), 1, "no image named");
}

#[test]
fn without_an_image_every_command_says_how_to_build_one() {
    let folder = folder();
    job_file(folder.path(), "job.json", &json!({ "steps": [shell("true")] }));
    let without = |arguments: &[&str]| {
        let empty = folder.path().join("no-images");
        run(bellglass(folder.path()).args(arguments).env("BELLGLASS_IMAGES", empty))
    };
    assert_fails(&without(&["run", "job.json"]), 1, "bellglass image build");
    let doctor = without(&["doctor"]);
    assert_eq!(doctor.status.code(), Some(1));
    assert!(stdout(&doctor).contains("bellglass image build"), "{}", stdout(&doctor));
    assert!(stdout(&without(&["image", "list"])).contains("bellglass image build"));
}

#[test]
fn configuration_errors_name_file_and_line() {
    let folder = folder();
    let config = |text: &str| {
        fs::write(folder.path().join("bellglass.toml"), text).unwrap();
        in_folder(folder.path(), &["serve", "--listen", "127.0.0.1:0", "--data", "data"])
    };
    assert_fails(&config("[server]\nport = 7\n"), 1, "bellglass.toml:2:1: unknown field `port`");
    assert_fails(&config("\n\n[limits]\nmemory = \"lots\"\n"), 1, "bellglass.toml:4:10:");
    assert_fails(&config("[server\n"), 1, "bellglass.toml:1:");
    fs::remove_file(folder.path().join("bellglass.toml")).unwrap();
    let named = in_folder(folder.path(), &["version", "--config", "elsewhere.toml"]);
    assert_fails(&named, 1, "cannot read elsewhere.toml");
    assert!(!folder.path().join("data").exists(), "nothing was started");
}

#[test]
fn the_world_is_not_served_without_a_token() {
    let folder = folder();
    let serve = |listen: &str, token: Option<&str>| {
        let mut command = bellglass(folder.path());
        command.args(["serve", "--listen", listen, "--data", "data"]);
        command.envs(token.map(|token| ("BELLGLASS_TOKEN", token)));
        run(&mut command)
    };
    for listen in ["0.0.0.0:0", "[::]:0"] {
        assert_fails(&serve(listen, None), 1, "a token is required");
        assert_fails(&serve(listen, Some("short")), 1, "at least 16");
    }
    assert_fails(&serve("not an address", None), 1, "is no address to listen on");
    assert!(!folder.path().join("data").exists(), "nothing was started");
}
