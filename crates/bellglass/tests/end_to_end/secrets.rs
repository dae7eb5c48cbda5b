//! Secrets that a sandbox can use and never read.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use base64::Engine as _;
use serde_json::json;

use crate::support::https::{HttpsHost, TestAuthority};
use crate::support::{Options, TestServer, archive, python, shell, step, text, wait_for_go};

/// The value in two halves, so that no job and no test output ever holds it whole.
const HALVES: (&str, &str) = ("canary", "4f2d9c17ab");

fn value() -> String {
    format!("{}-{}", HALVES.0, HALVES.1)
}

const PLACEHOLDER: &str = "bellglass-API_TOKEN-placeholder";

/// A server that has a secret for a host.
fn server_with_secret(authority: &TestAuthority, host: &HttpsHost) -> TestServer {
    let config = format!(
        "[network]\nprivate_exceptions = [\"127.0.0.2\"]\n\
         [secrets.api]\nenv = \"THE_SECRET\"\nhosts = [\"{}\"]\npath = \"/v1\"\nformat = \"Bearer {{}}\"\n",
        host.place()
    );
    TestServer::with(Options {
        config: config.leak(),
        environment: vec![authority.environment(), ("THE_SECRET", value())],
        ..Options::default()
    })
}

/// The authorization that a request for this path arrived with.
fn authorization(host: &HttpsHost, path: &str) -> Option<String> {
    let asked = host.asked();
    let head = asked.iter().find(|head| head.contains(&format!(" {path} HTTP/1.1\r\n")));
    let head = head.unwrap_or_else(|| panic!("{path} was not asked for: {asked:?}"));
    let line = head.lines().find_map(|line| line.strip_prefix("authorization: "));
    line.map(str::to_owned)
}

#[tokio::test]
async fn a_secret_reaches_its_host_and_nothing_else() {
    let authority = TestAuthority::new();
    let host = HttpsHost::start(&authority, None).await;
    let other = HttpsHost::start(&authority, None).await;
    let server = server_with_secret(&authority, &host);
    let (url, elsewhere) = (host.url(), other.url());
    let header = "-H \"authorization: token $API_TOKEN\"";
    let (a, b) = HALVES;
    let look = format!(
        "a={a}; b={b}; (env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline) > /tmp/seen 2>/dev/null; \
         grep -cF \"$a-$b\" /tmp/seen; \
         grep -rlsF \"$a-$b\" /etc /tmp /home /run /var /root /workspace /dev/shm /usr/local; \
         grep -rls 'PRIVATE[ ]KEY' /etc /tmp /home /run /var /root /workspace; true"
    );
    let job = server
        .run(&json!({
            "network": { "allow": [host.place(), other.place()] },
            "secrets": { "API_TOKEN": "api" },
            "steps": [
                shell("echo $API_TOKEN"),
                shell(&format!("curl -sS {header} {url}/v1/written")),
                shell(&format!("curl -sS {url}/v1/added")),
                shell(&format!("curl -sS -u \"me:$API_TOKEN\" {url}/v1/basic")),
                shell(&format!("curl -sS {header} {url}/v2/beside")),
                shell(&format!("curl -sS --path-as-is {header} {url}/v1/../v2/dots")),
                shell(&format!("curl -sS {header} {elsewhere}/v1/elsewhere")),
                python(&format!("import requests; print(requests.get('{url}/v1/python').text, end='')")),
                shell(&format!("curl -sS --socks5-hostname 127.0.0.1:3128 {url}/v1/socks")),
                shell(&format!("curl -sS {url}/v1/all > body; echo | openssl s_client -proxy 127.0.0.1:3128 -connect {} 2>/dev/null | grep -c 'Bellglass job'; true", host.place())),
                shell(&format!("echo | openssl s_client -proxy 127.0.0.1:3128 -connect {} 2>/dev/null | grep -c 'Bellglass job'; true", other.place())),
                shell(&look),
            ],
        }))
        .await;
    assert_eq!(job["status"], "completed", "{job:#}");
    assert_eq!(step(&job, 1)["stdout"], format!("{PLACEHOLDER}\n"));
    for n in 2..=9 {
        assert_eq!(step(&job, n)["stdout"], "hello\n", "{:#}", step(&job, n));
    }
    let secret = value();
    let basic = base64::engine::general_purpose::STANDARD.encode(format!("me:{secret}"));
    for (path, expected) in [
        ("/v1/written", Some(format!("token {secret}"))),
        ("/v1/added", Some(format!("Bearer {secret}"))),
        ("/v1/basic", Some(format!("Basic {basic}"))),
        ("/v2/beside", Some(format!("token {PLACEHOLDER}"))),
        ("/v1/../v2/dots", Some(format!("token {PLACEHOLDER}"))),
        ("/v1/python", Some(format!("Bearer {secret}"))),
        ("/v1/socks", Some(format!("Bearer {secret}"))),
    ] {
        assert_eq!(authorization(&host, path), expected, "{path}");
    }
    // The other host's connection was not opened: curl wrote the header as it stands.
    assert!(other.asked()[0].contains(&format!("token {PLACEHOLDER}")), "{:?}", other.asked());
    assert_ne!(step(&job, 10)["stdout"], "0\n", "the job's authority vouches for its host");
    assert_eq!(step(&job, 11)["stdout"], "0\n", "and for no other");
    assert_eq!(step(&job, 12)["stdout"], "0\n", "{:#}", step(&job, 12));

    let id = text(&job, "job_id");
    assert!(!job.to_string().contains(&secret));
    assert_eq!(job["spec"]["secrets"], json!({ "API_TOKEN": "api" }));
    assert!(!server.log(id).await.contains(&secret));
    let mut archive = server.archive(id).await;
    for name in archive::names(&archive) {
        assert!(!holds(&archive::content(&mut archive, &name), &secret), "{name}");
    }
    nothing_below_holds(server.folder(), &secret);
    assert!(!server.data().join("spools").join(id).exists(), "the authority's key is gone");
}

/// A program that trusted the job's authority before a crash of the server trusts it afterwards.
#[tokio::test]
async fn a_crash_of_the_server_changes_nothing() {
    let authority = TestAuthority::new();
    let host = HttpsHost::start(&authority, None).await;
    let mut server = server_with_secret(&authority, &host);
    let program = format!(
        "import os, time, ssl, urllib.request as u\n\
         context = ssl.create_default_context()\n\
         opener = u.build_opener(u.HTTPSHandler(context=context))\n\
         print(opener.open('{url}/v1/before').read().decode(), end='', flush=True)\n\
         while not os.path.exists('go'): time.sleep(0.02)\n\
         print(opener.open('{url}/v1/after').read().decode(), end='')",
        url = host.url()
    );
    let body = json!({
        "network": { "allow": [host.place()] },
        "secrets": { "API_TOKEN": "api" },
        "steps": [python(&program), shell(&format!("curl -sS {}/v1/new", host.url()))],
    });
    let job = server.submit(&body).await;
    server.wait_for_step(&job, "step.output", 1).await;
    let key = server.data().join("spools").join(&job).join("authority");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    server.kill();
    server.start_again();
    server.let_go_under_successor(&job).await;
    let done = server.wait_for_end(&job).await;
    assert_eq!(step(&done, 1)["stdout"], "hello\nhello\n", "{:#}", step(&done, 1));
    assert_eq!(step(&done, 2)["stdout"], "hello\n", "{:#}", step(&done, 2));
    for path in ["/v1/before", "/v1/after", "/v1/new"] {
        assert_eq!(authorization(&host, path), Some(format!("Bearer {}", value())), "{path}");
    }
    assert!(!key.exists());
}

#[tokio::test]
async fn a_secret_that_is_not_there_is_named() {
    let authority = TestAuthority::new();
    let host = HttpsHost::start(&authority, None).await;
    let server = server_with_secret(&authority, &host);
    for (secrets, network, pointer) in [
        (json!({ "T": "other" }), "open", "secrets.T"),
        (json!({ "T": "api" }), "none", "secrets"),
        (json!({ "a b": "api" }), "open", "secrets"),
    ] {
        let body = json!({ "network": network, "secrets": secrets, "steps": [wait_for_go()] });
        let response = server.post("/schedule", body.to_string()).await;
        assert_eq!(response.status(), 422);
        let problem: serde_json::Value = response.json().await.unwrap();
        assert_eq!(problem["pointer"], pointer, "{problem}");
    }
}

fn holds(content: &[u8], secret: &str) -> bool {
    content.windows(secret.len()).any(|part| part == secret.as_bytes())
}

/// Looks through everything that the server keeps.
fn nothing_below_holds(folder: &Path, secret: &str) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            nothing_below_holds(&path, secret);
        } else if kind.is_file() {
            let mut content = Vec::new();
            fs::File::open(&path).unwrap().read_to_end(&mut content).unwrap();
            assert!(!holds(&content, secret), "{}", path.display());
        }
    }
}
