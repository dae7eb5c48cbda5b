//! What /proc tells about the host, the guest and other sandboxes: nothing.

use std::fs;

use serde_json::Value;

use crate::attempt::{assert_refused, look};
use crate::support::{Options, TestServer};

#[tokio::test]
async fn host_paths_in_proc() {
    let server = TestServer::start();
    let found = look(
        &server,
        r"
texts = {}
for pid in filter(str.isdigit, os.listdir('/proc')):
    for name in ['mountinfo', 'mounts', 'mountstats', 'cgroup', 'cmdline', 'comm', 'maps', 'status', 'environ', 'wchan']:
        try: texts[f'{pid}/{name}'] = pathlib.Path(f'/proc/{pid}/{name}').read_text(errors='replace')
        except OSError: pass
for name in ['cmdline', 'swaps', 'mounts', 'locks', 'net/unix']:
    try: texts[name] = pathlib.Path(f'/proc/{name}').read_text(errors='replace')
    except OSError: pass
print(json.dumps(texts))
",
    )
    .await;
    let texts = found.as_object().unwrap();
    assert!(texts.contains_key("1/mountinfo") && texts.contains_key("1/cgroup"), "{found:#}");
    let folder = server.folder().to_string_lossy().into_owned();
    let executable = env!("CARGO_BIN_EXE_bellglass");
    let home = std::env::var("HOME").unwrap();
    for (name, text) in texts {
        let text = text.as_str().unwrap();
        for secret in [folder.as_str(), executable, &home, "images/"] {
            assert!(!text.contains(secret), "{name} tells {secret}: {text}");
        }
        if name.ends_with("/cgroup") {
            assert!(text.lines().all(|line| line.ends_with(":/")), "{name}: {text}");
        }
    }
    let boot = fs::read_to_string("/proc/cmdline").unwrap();
    let told = texts.get("cmdline").and_then(Value::as_str).unwrap_or_default();
    assert!(boot.trim().is_empty() || told.trim() != boot.trim(), "the host's boot parameters");
}

#[tokio::test]
async fn environment_and_arguments_of_the_server() {
    let canary = "canary-93b1c0de";
    let environment = vec![("DATABASE_PASSWORD", canary.into()), ("SSH_AUTH_SOCK", canary.into())];
    let server = TestServer::with(Options { environment, ..Options::default() });
    let found = look(
        &server,
        r"
found = [str(dict(os.environ))]
for pid in filter(str.isdigit, os.listdir('/proc')):
    for name in ['environ', 'cmdline', 'task/' + pid + '/environ']:
        try: found.append(pathlib.Path(f'/proc/{pid}/{name}').read_text(errors='replace'))
        except OSError: pass
print(json.dumps(found))
",
    )
    .await;
    let found = found.to_string();
    // Written apart, or the code above would find itself in its own arguments.
    for secret in [canary, "DATABASE_PASSWORD", "SSH_AUTH_SOCK", "--data", "--listen"] {
        assert!(!found.contains(secret), "{secret} is in {found}");
    }
    assert_refused(&server, &[("read('/proc/1/environ')", "EACCES|EPERM")]).await;
}

#[tokio::test]
async fn processes_of_the_host() {
    let server = TestServer::start();
    let attempts = [
        (format!("os.listdir('/proc/{}')", server.pid()), "ENOENT"),
        (format!("os.listdir('/proc/{}')", std::process::id()), "ENOENT"),
        (format!("os.getpgid({})", server.pid()), "ESRCH"),
        (format!("os.sched_getaffinity({})", server.pid()), "ESRCH"),
    ];
    let attempts: Vec<_> = attempts.iter().map(|(code, error)| (code.as_str(), *error)).collect();
    assert_refused(&server, &attempts).await;
    let found =
        look(&server, "print(json.dumps([int(p) for p in os.listdir('/proc') if p.isdigit()]))")
            .await;
    let found = found.as_array().unwrap();
    assert!(found.len() < 10, "{found:?}");
}
