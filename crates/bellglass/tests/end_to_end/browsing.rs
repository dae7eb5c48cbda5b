//! The browser by the DevTools protocol: pages read, forms filled, files downloaded.

use serde_json::{Value, json};

use crate::support::https::{HttpsHost, TestAuthority};
use crate::support::{Options, TestServer, archive, shell, step, text};

fn browser(action: &str, more: Value) -> Value {
    let mut call = json!({ "tool": "browser", "action": action });
    for (field, value) in more.as_object().unwrap() {
        call[field] = value.clone();
    }
    call
}

const PAGE: &str = r#"<!doctype html><meta charset=utf-8><title>Order</title>
<h1>Order a hat</h1><p>All hats are <b>warm</b>.</p>
<label>Name <input id=name></label>
<label>Size <select id=size><option>small<option>large</select></label>
<label>Day <input id=day type=date></label>
<label><input id=gift type=checkbox> As a gift</label>
<button onclick="document.querySelector('p').textContent=
  ['Thanks', field.value, size.value, day.value, gift.checked].join('|')">Send</button>
<a href="hat.bin" download>Picture of the hat</a>
<script>const [field,size,day,gift]=['name','size','day','gift'].map(id=>document.getElementById(id));
console.error('a complaint', 7); fetch('/missing');</script>"#;

#[tokio::test]
async fn a_form_is_read_filled_and_sent_and_a_file_downloaded() {
    let server = TestServer::start();
    let serve = json!({
        "tool": "shell", "session": "web", "command": "python3 -m http.server 8000",
        "wait_for": { "port": 8000 },
    });
    let named = |action: &str, name: &str| browser(action, json!({ "name": name }));
    let fill = |name: &str, value: &str| browser("fill", json!({ "name": name, "text": value }));
    let job = server
        .run(&json!({
            "desktop": true,
            "limits": { "step_time": "40s" },
            "files": [{ "path": "index.html", "content": PAGE }, { "path": "hat.bin", "content": "hat!" }],
            "steps": [
                serve,
                browser("open", json!({ "url": "http://127.0.0.1:8000/" })),
                browser("console", json!({})),
                browser("screenshot", json!({})),
                browser("script", json!({ "text": "document.querySelectorAll('option').length" })),
                browser("click", json!({ "ref": 999_999 })),
                fill("Name", "Ada Λ 艾达 🎩"),
                fill("Size", "large"),
                fill("Day", "2026-12-24"),
                fill("As a gift", "true"),
                named("click", "Send"),
                named("click", "Picture of the hat"),
                shell("until [ -s downloads/hat.bin ]; do sleep 0.05; done; cat downloads/hat.bin"),
                fill("Size", "enormous"),
                named("click", "Nobody"),
                browser("open", json!({ "url": "http://127.0.0.1:9/" })),
                json!({ "tool": "list_ports" }),
            ]
        }))
        .await;
    let outline = text(step(&job, 2), "output");
    assert!(outline.starts_with("Order\nhttp://127.0.0.1:8000/\n"), "{job:#}");
    assert!(outline.contains("heading: Order a hat\n") && outline.contains("warm"), "{outline}");
    let said = text(step(&job, 3), "output");
    assert!(said.contains("console error: a complaint 7"), "{said}");
    assert_eq!(text(&step(&job, 4)["attachments"][0], "media_type"), "image/png");
    assert_eq!(text(step(&job, 5), "output"), "2");
    assert_eq!(text(&step(&job, 6)["error"], "code"), "no_such_element");
    let sent = text(step(&job, 11), "output");
    assert!(sent.contains("Thanks|Ada Λ 艾达 🎩|large|2026-12-24|true"), "{job:#}");
    assert_eq!(text(step(&job, 13), "stdout"), "hat!", "{:#}", step(&job, 12));
    assert_eq!(text(&step(&job, 14)["error"], "code"), "not_a_field");
    assert_eq!(text(&step(&job, 15)["error"], "code"), "no_such_element");
    assert_eq!(text(&step(&job, 16)["error"], "code"), "page_not_opened");
    let ports = text(step(&job, 17), "output");
    assert!(ports.starts_with("8000  0.0.0.0  python3 (process "), "{ports}");
    assert_eq!(ports.lines().count(), 1, "the browser opens no port: {ports}");
    let mut archive = server.archive(text(&job, "job_id")).await;
    assert_eq!(archive::text(&mut archive, "downloads/hat.bin"), "hat!");
}

#[tokio::test]
async fn pages_of_a_host_with_a_secret_open_without_a_warning() {
    let authority = TestAuthority::new();
    let host = HttpsHost::start(&authority, None).await;
    let config = format!(
        "[network]\nprivate_exceptions = [\"127.0.0.2\"]\n\
         [secrets.api]\nenv = \"THE_SECRET\"\nhosts = [\"{}\"]\nformat = \"Bearer {{}}\"\n",
        host.place()
    );
    let server = TestServer::with(Options {
        config: config.leak(),
        environment: vec![authority.environment(), ("THE_SECRET", "very-secret".into())],
        ..Options::default()
    });
    let job = server
        .run(&json!({
            "desktop": true,
            "limits": { "step_time": "90s" },
            "network": { "allow": [host.place()] },
            "secrets": { "API_TOKEN": "api" },
            // The host of this test is on a loopback address, which Chromium would look for inside.
            "steps": [shell(&format!(
                "chromium --headless --proxy-server=$https_proxy --proxy-bypass-list='<-loopback>' \
                 --dump-dom {}/page", host.url()
            ))],
        }))
        .await;
    let shown = text(step(&job, 1), "stdout");
    assert!(shown.contains("<pre>hello\n</pre>") || shown.contains(">hello\n<"), "{job:#}");
    let asked = host.asked();
    let page = asked.iter().find(|head| head.contains(" /page HTTP/1.1")).unwrap();
    assert!(page.to_lowercase().contains("authorization: bearer very-secret"), "{page}");
}

#[tokio::test]
async fn chromium_has_its_own_sandbox_where_the_job_allows_it() {
    let server = TestServer::start();
    for nested in [true, false] {
        let job = server
            .run(&json!({
                "desktop": true,
                "nested_sandboxing": nested,
                "limits": { "step_time": "90s" },
                "steps": [
                    browser("open", json!({ "url": "chrome://sandbox" })),
                    shell("tr '\\0' ' ' < /proc/$(pgrep -of 'type=zygote')/cmdline"),
                ]
            }))
            .await;
        let status = text(step(&job, 1), "output");
        assert_eq!(status.contains("You are adequately sandboxed"), nested, "{job:#}");
        let line = text(step(&job, 2), "stdout");
        assert_eq!(!line.contains("--no-sandbox"), nested, "{line}");
    }
}
