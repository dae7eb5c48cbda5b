//! The usual tools over TLS through the proxy, with nothing set up by whoever wrote the job.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::https::{HttpsHost, TestAuthority};
use crate::support::{Options, TestServer, archive, python, shell, step, text, wait_for_go};

/// Uses the registries that this host itself is configured for.
#[tokio::test]
async fn packages_are_installed_as_on_any_machine() {
    let server = TestServer::start();
    let job = server
        .run(&json!({
            "network": "registries",
            "steps": [
                shell("pip install --quiet --target lib six && PYTHONPATH=lib python3 -c 'import six; print(six.__name__)'"),
                shell("npm install --silent left-pad && node -e 'console.log(require(\"left-pad\")(1, 3))'"),
                shell("apt-get -qq update && apt-get -qq download hello && dpkg -x hello_*.deb root && root/usr/bin/hello"),
                json!({ "tool": "typescript", "code": "import pad from 'npm:left-pad'; console.log(pad(1, 3));" }),
            ],
        }))
        .await;
    for (n, expected) in [(1, "six\n"), (2, "  1\n"), (3, "Hello, world!\n"), (4, "  1\n")] {
        assert_eq!(step(&job, n)["stdout"], expected, "{:#}", step(&job, n));
    }
}

/// A registry of this test's own with one package, which no other has.
async fn own_registry(authority: &TestAuthority, folder: &Path) -> HttpsHost {
    const NAME: &str = "bellglass-greeting";
    let package = json!({ "name": NAME, "version": "1.0.0", "type": "module", "main": "index.js" });
    std::fs::create_dir(folder.join("package")).unwrap();
    std::fs::write(folder.join("package/package.json"), package.to_string()).unwrap();
    let code = "export default (name) => `hello ${name}`;\n";
    std::fs::write(folder.join("package/index.js"), code).unwrap();
    let mut tar = Command::new("tar");
    tar.current_dir(folder).args(["-czf", "greeting.tgz", "package"]);
    assert!(tar.status().unwrap().success());
    let registry = HttpsHost::start(authority, Some(folder)).await;
    let mut version = package;
    version["dist"] = json!({ "tarball": format!("{}/greeting.tgz", registry.url()) });
    let about = json!({
        "name": NAME, "dist-tags": { "latest": "1.0.0" }, "versions": { "1.0.0": version },
    });
    std::fs::write(folder.join(NAME), about.to_string()).unwrap();
    registry
}

/// Nothing in the workspace says where packages come from; the host's own settings do.
#[tokio::test]
async fn typescript_imports_from_the_hosts_npm_registry() {
    let (authority, folder) = (TestAuthority::new(), tempfile::tempdir().unwrap());
    let registry = own_registry(&authority, folder.path()).await;
    let server = TestServer::with(Options {
        config: "[network]\nprivate_exceptions = [\"127.0.0.2\"]\n",
        environment: vec![authority.environment(), ("npm_config_registry", registry.url())],
        ..Options::default()
    });
    let import = "import greet from 'npm:bellglass-greeting@1.0.0'; console.log(greet('Ada'));";
    let job = server
        .run(&json!({
            "network": { "allow": [registry.place()] },
            "steps": [
                shell("ls -A"),
                json!({ "tool": "typescript", "code": import }),
                json!({ "tool": "typescript", "fresh": true, "code": import }),
            ],
        }))
        .await;
    for (n, expected) in [(1, ""), (2, "hello Ada\n"), (3, "hello Ada\n")] {
        assert_eq!(step(&job, n)["stdout"], expected, "{:#}", step(&job, n));
    }
}

#[tokio::test]
async fn a_running_python_kernel_finds_what_pip_installed() {
    let server = TestServer::start();
    let cell = |code: &str| json!({ "tool": "python", "code": code });
    let job = server
        .run(&json!({
            "network": "registries",
            "steps": [
                cell("kept = 41\nimport toolz"),
                shell("pip install --quiet toolz"),
                cell("import toolz\ntoolz.last([kept, kept + 1])"),
                cell("%pip install --quiet cowsay\nimport cowsay\n(cowsay.__name__, kept)"),
            ],
        }))
        .await;
    let missing = text(&step(&job, 1)["error"], "message");
    assert!(missing.starts_with("ModuleNotFoundError"), "{missing}");
    assert_eq!(step(&job, 3)["stdout"], "42\n", "{job:#}");
    assert!(text(step(&job, 4), "stdout").ends_with("('cowsay', 41)\n"), "{job:#}");
}

#[tokio::test]
async fn the_example_with_an_npm_import_runs() {
    let server = TestServer::start();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/typescript.json");
    let example: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let job = server.run(&example).await;
    assert_eq!((text(&job, "status"), &job["failed_steps"]), ("completed", &json!([])), "{job:#}");
    let mut left = server.archive(text(&job, "job_id")).await;
    assert_eq!(archive::text(&mut left, "total.txt"), "2 days + 1h + 90s = 2 days\n");
    assert!(archive::text(&mut left, "typescript.ipynb").contains("npm:ms"));
}

/// The image has no cargo, so this host's own is lent to the job.
#[tokio::test]
async fn crates_are_fetched_as_on_any_machine() {
    let cargo = std::fs::read(env!("CARGO")).unwrap();
    let manifest =
        "[package]\nname = \"a\"\n[lib]\npath = \"a.rs\"\n[dependencies]\nitoa = \"=1.0.11\"\n";
    let server = TestServer::start();
    let files = [("cargo", cargo), ("Cargo.toml", manifest.into())];
    let job = server
        .submit(&json!({
            "network": "registries",
            "steps": [
                wait_for_go(),
                shell("chmod +x cargo && touch a.rs && ./cargo vendor --quiet > settings; ls vendor/*/src"),
            ],
        }))
        .await;
    server.wait_for_step(&job, "step.output", 1).await;
    for (name, content) in files {
        assert_eq!(server.put_file(&job, name, content).await.status(), 204);
    }
    server.let_go(&job).await;
    let job = server.wait_for_end(&job).await;
    assert_eq!(step(&job, 2)["stdout"], "lib.rs\nudiv128.rs\n", "{:#}", step(&job, 2));
}

/// A host that trusts an authority of its own passes that trust on.
#[tokio::test]
async fn what_the_host_trusts_every_tool_trusts() {
    let authority = TestAuthority::new();
    let repository = tempfile::tempdir().unwrap();
    let git = |arguments: &[&str]| {
        let set = ["-c", "user.name=a", "-c", "user.email=a@example.com"];
        let mut command = Command::new("git");
        command.current_dir(&repository).args(set).args(arguments);
        assert!(command.output().unwrap().status.success(), "git {arguments:?}");
    };
    git(&["init", "--quiet", "work"]);
    git(&["-C", "work", "commit", "--quiet", "--allow-empty", "-m", "the first"]);
    git(&["clone", "--quiet", "--bare", "work", "served.git"]);
    git(&["-C", "served.git", "update-server-info"]);
    let plain = HttpsHost::start(&authority, None).await;
    let served = HttpsHost::start(&authority, Some(repository.path())).await;
    let server = TestServer::with(Options {
        config: "[network]\nprivate_exceptions = [\"127.0.0.2\"]\n",
        environment: vec![authority.environment()],
        ..Options::default()
    });
    let url = plain.url();
    let job = server
        .run(&json!({
            "network": { "allow": [plain.place(), served.place()] },
            "steps": [
                shell(&format!("curl -sS {url}/curl")),
                shell(&format!("git clone --quiet {}/served.git a && git -C a log --format=%s", served.url())),
                python(&format!("import requests; print(requests.get('{url}/requests').text, end='')")),
                python(&format!("import urllib.request as u; print(u.urlopen('{url}/urllib').read().decode(), end='')")),
                shell(&format!("node -e 'fetch(\"{url}/node\").then(r => r.text()).then(t => process.stdout.write(t))'")),
                json!({ "tool": "typescript", "code": format!("console.log((await (await fetch('{url}/deno')).text()).trim())") }),
                // With no variable set, as under sudo or in a daemon, the image's own list counts.
                shell(&format!("env -i https_proxy=$https_proxy PATH=$PATH curl -sS {url}/bare")),
            ],
        }))
        .await;
    for n in [1, 3, 4, 5, 6, 7] {
        assert_eq!(step(&job, n)["stdout"], "hello\n", "{:#}", step(&job, n));
    }
    assert_eq!(step(&job, 2)["stdout"], "the first\n", "{:#}", step(&job, 2));
    assert_eq!(plain.asked().len(), 6);
}
