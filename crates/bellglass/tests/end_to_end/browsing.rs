//! The browser by the DevTools protocol: pages read, forms filled, files downloaded.

use serde_json::{Value, json};

use crate::support::hands::Hands;
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
                    shell("tr '\\0' ' ' < /proc/$(pgrep -of 'type=[z]ygote')/cmdline"),
                ]
            }))
            .await;
        let status = text(step(&job, 1), "output");
        assert_eq!(status.contains("You are adequately sandboxed"), nested, "{job:#}");
        let line = text(step(&job, 2), "stdout");
        assert_eq!(!line.contains("--no-sandbox"), nested, "{line}");
    }
}

/// Starts a job with a desktop and these files, and a web server for them at port 8000.
pub(crate) async fn served<'a>(server: &'a TestServer, files: &[(&str, &str)]) -> Hands<'a> {
    let files: Vec<Value> =
        files.iter().map(|(path, content)| json!({ "path": path, "content": content })).collect();
    let hands = Hands::start(server, json!({ "desktop": true, "files": files })).await;
    let serve = json!({
        "session": "web", "command": "python3 -m http.server 8000", "wait_for": { "port": 8000 },
    });
    hands.succeed("shell", serve).await;
    hands
}

pub(crate) fn at(path: &str) -> Value {
    json!({ "url": format!("http://127.0.0.1:8000/{path}"), "timeout": 40 })
}

/// The number by which a page shows something.
pub(crate) fn number(outline: &str, what: &str) -> u64 {
    let line = outline.lines().find(|line| line.contains(what)).expect(outline).trim();
    line.strip_prefix('[').unwrap().split(']').next().unwrap().parse().unwrap()
}

const DIALOGS: &str = r#"<!doctype html><meta charset=utf-8><title>Dialogs</title>
<button onclick="alert('Γειά'); said.textContent = 'told'">Tell</button>
<button onclick="said.textContent = 'sure ' + confirm('Sure?')">Ask</button>
<button onclick="said.textContent = 'named ' + prompt('Name?', 'Ada')">Name</button>
<button onclick="onbeforeunload = (event) => event.preventDefault()">Stay</button>
<p id=said>nothing yet</p>"#;

#[tokio::test]
async fn dialogs_of_pages_are_answered_and_told() {
    let server = TestServer::start();
    let hands = served(&server, &[("index.html", DIALOGS), ("other.html", "<p>Elsewhere")]).await;
    hands.browser("open", at("")).await;
    let click = |name: &str| json!({ "name": name, "timeout": 40 });
    for (name, dialog, became) in [
        ("Tell", "(alert): \"Γειά\", which was accepted", "told"),
        ("Ask", "(confirm): \"Sure?\", which was dismissed", "sure false"),
        ("Name", "(prompt): \"Name?\", which was dismissed", "named null"),
    ] {
        let answer = hands.browser("click", click(name)).await;
        assert!(answer.contains(dialog) && answer.contains(became), "{answer}");
    }
    let remarks = hands.browser("console", json!({})).await;
    assert!(remarks.contains("the page opened a dialog (alert): \"Γειά\""), "{remarks}");
    // A dialog that a click on the desktop opened is for whoever sees it, until the page is needed.
    let place = "(() => { const at = document.querySelector('button').getBoundingClientRect();
        said.textContent = ''; return [at.x + 5, at.y + 5].join(); })()";
    let place = hands.script(place).await;
    let (x, y) = place.split_once(',').unwrap();
    let number = |text: &str| text.parse::<f64>().unwrap() as i64;
    hands.browser("screenshot", json!({})).await;
    hands.computer("click", json!({ "x": number(x), "y": number(y) })).await;
    let read = hands.browser("read", json!({ "timeout": 40 })).await;
    assert!(read.contains("(alert): \"Γειά\", which was accepted"), "{read}");
    // Who opens another page wants to leave this one.
    hands.browser("click", click("Stay")).await;
    let other = hands.browser("open", at("other.html")).await;
    assert!(other.contains("Elsewhere") && other.contains("(beforeunload)"), "{other}");
    hands.end().await;
}

const HOME: &str = r#"<!doctype html><meta charset=utf-8><title>Home</title><h1>Home</h1>
<label>Word <input id=word></label>
<button onclick="said.textContent = 'got ' + word.value">Give</button>
<p id=said></p><a href="second.html">Onwards</a> <button onclick="window.open('second.html')">Beside</button>
<p id=part style="margin-top:3000px">A part of it</p>
<script>
const loaded = Promise.allSettled([fetch('/missing.json'), fetch('http://127.0.0.1:9/refused')]);
</script>"#;
pub(crate) const SECOND: &str =
    "<!doctype html><meta charset=utf-8><title>Second</title><h1>The second page</h1>";

#[tokio::test]
async fn pages_are_worked_on_by_number_and_what_fails_to_load_is_named() {
    let server = TestServer::start();
    let hands = served(&server, &[("index.html", HOME), ("second.html", SECOND)]).await;
    let home = hands.browser("open", at("")).await;
    hands.script("loaded.then(() => 'loaded')").await;
    let remarks = hands.browser("console", json!({})).await;
    for remark in [
        "network: 404 for http://127.0.0.1:8000/missing.json",
        "network: net::ERR_UNSAFE_PORT for http://127.0.0.1:9/refused",
    ] {
        assert!(remarks.contains(remark), "{remarks}");
    }
    let fill = json!({ "ref": number(&home, "textbox \"Word\""), "text": "λέξη 🎩" });
    let filled = hands.browser("fill", fill).await;
    assert!(filled.contains("textbox \"Word\" = \"λέξη 🎩\""), "{filled}");
    let given = hands.browser("click", json!({ "ref": number(&filled, "button \"Give\"") })).await;
    assert!(given.contains("got λέξη 🎩"), "{given}");
    // Another place on the same page: nothing is loaded, so nothing is waited for.
    let part = hands.browser("open", at("#part")).await;
    assert!(part.starts_with("Home\nhttp://127.0.0.1:8000/#part\n"), "{part}");
    assert!(part.contains("got λέξη 🎩"), "it is the same page: {part}");
    hands.end().await;
}

#[tokio::test]
async fn the_browser_goes_back_and_to_new_tabs_and_is_the_window_on_the_desktop() {
    let server = TestServer::start();
    let hands = served(&server, &[("index.html", HOME), ("second.html", SECOND)]).await;
    hands.browser("open", at("")).await;
    let second = hands.browser("click", json!({ "name": "Onwards" })).await;
    assert!(second.starts_with("Second\n") && second.contains("The second page"), "{second}");
    let back = hands.browser("back", json!({})).await;
    assert!(back.starts_with("Home\nhttp://127.0.0.1:8000/\n"), "{back}");
    let beside = hands.browser("click", json!({ "name": "Beside" })).await;
    assert!(beside.starts_with("Second\n"), "a new tab is the one that is shown: {beside}");
    assert!(hands.browser("read", json!({})).await.starts_with("Second\n"));
    // What the tool works on is what people see.
    let titled = |title: &str| {
        format!(
            "until xdotool search --onlyvisible --name '^{title} - Chromium'; do sleep 0.1; done"
        )
    };
    hands.shell(&titled("Second")).await;
    // Nobody answers any more from a page that has closed itself.
    let close = json!({ "action": "script", "text": "close(), new Promise(() => {})" });
    let closed = hands.call("browser", close).await;
    assert!(closed.failed && closed.text.contains("page_closed"), "{closed:?}");
    hands.shell(&titled("Home")).await;
    assert!(hands.browser("read", json!({})).await.starts_with("Home\n"));
    // A point of the page's picture is that point of the page, also for the real pointer.
    let shot = hands.browser("screenshot", json!({})).await;
    assert!(shot.starts_with("Home\nscreenshot 1: "), "{shot}");
    hands
        .script("onmousemove = (event) => said.textContent = [event.clientX, event.clientY]")
        .await;
    for (x, y) in [(3, 4), (600, 500), (1260, 650)] {
        hands.computer("move", json!({ "x": x, "y": y })).await;
        let moved = format!(
            "(async () => {{
                while (said.textContent !== '{x},{y}') await new Promise(requestAnimationFrame);
                return 'there';
            }})()"
        );
        let moved = json!({ "text": moved, "timeout": 20 });
        assert_eq!(hands.browser("script", moved).await, "there", "{x},{y}");
    }
    hands.end().await;
}

const LOOPS: &str = r#"<!doctype html><meta charset=utf-8><title>Loops</title>
<button onclick="while (true) {}">Once</button>
<button onclick="console.log('it begins'); setInterval(() => { while (true) {} }, 0)">Always</button>"#;

#[tokio::test]
async fn a_page_that_is_stuck_is_freed_or_replaced() {
    let server = TestServer::start();
    let hands = served(&server, &[("loops.html", LOOPS), ("index.html", SECOND)]).await;
    let stick = async |name: &str| {
        let click = json!({ "action": "click", "name": name, "timeout": 6 });
        let clicked = hands.call("browser", click).await;
        assert!(clicked.failed && clicked.text.contains("timed_out"), "{clicked:?}");
    };
    hands.browser("open", at("loops.html")).await;
    // One loop is stopped, and the page goes on.
    stick("Once").await;
    let freed = hands.browser("read", json!({})).await;
    assert!(freed.starts_with("Loops\n") && freed.contains("its script was stopped"), "{freed}");
    // One that comes back at once leaves only another page.
    stick("Always").await;
    for action in ["read", "screenshot"] {
        let read = hands.call("browser", json!({ "action": action })).await;
        assert!(read.failed && read.text.contains("page_stuck"), "{read:?}");
    }
    // What it said before can be heard all the same.
    let remarks = hands.browser("console", json!({})).await;
    assert!(remarks.contains("console log: it begins"), "{remarks}");
    let other = hands.browser("open", at("")).await;
    assert!(other.starts_with("Second\n") && other.contains("a new one made"), "{other}");
    let read = hands.browser("read", json!({})).await;
    assert!(read.starts_with("Second\n") && !read.contains("a new one made"), "{read}");
    // What merely takes its time is left alone.
    let wait = json!({ "action": "script", "text": "new Promise(() => {})", "timeout": 1 });
    assert!(hands.call("browser", wait).await.failed);
    let read = hands.browser("read", json!({})).await;
    assert!(read.starts_with("Second\n") && !read.contains("stuck"), "{read}");
    hands.end().await;
}

/// Serves files that come slowly, in full or not, and an address with nothing to show.
const SLOW_SERVER: &str = r#"import http.server, os, time
class Slow(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        name = self.path.strip("/")
        if name == "nothing":
            self.send_response(204)
            self.end_headers()
        elif name.endswith(".bin"):
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Disposition", f'attachment; filename="{name}"')
            self.send_header("Content-Length", "50")
            self.end_headers()
            self.wfile.write(b"x" * 20)
            if name == "cut.bin":
                return
            while name == "late.bin" and not os.path.exists("finish"):
                time.sleep(0.05)
            time.sleep(1)
            self.wfile.write(b"x" * 30)
        else:
            super().do_GET()
http.server.ThreadingHTTPServer(("", 8001), Slow).serve_forever()
"#;
const SHELF: &str = r#"<!doctype html><meta charset=utf-8><title>Shelf</title><h1>Shelf</h1>
<a href="slow.bin">Slow</a>"#;

#[tokio::test]
async fn downloads_are_waited_for_and_told() {
    let server = TestServer::start();
    let hands = served(&server, &[("slow.py", SLOW_SERVER), ("shelf.html", SHELF)]).await;
    let serve = json!({
        "session": "slow", "command": "python3 slow.py", "wait_for": { "port": 8001 },
    });
    hands.succeed("shell", serve).await;
    let at = |path: &str| json!({ "url": format!("http://127.0.0.1:8001/{path}"), "timeout": 40 });
    let shelf = hands.browser("open", at("shelf.html")).await;
    assert!(shelf.starts_with("Shelf\n"), "{shelf}");
    let opened = hands.browser("open", at("slow.bin")).await;
    assert!(opened.contains("downloaded downloads/slow.bin, 50 B"), "{opened}");
    assert!(!opened.contains("heading"), "the page from before is no answer: {opened}");
    assert_eq!(hands.shell("cat downloads/slow.bin | wc -c").await.trim(), "50");
    hands.shell("rm downloads/slow.bin").await;
    let clicked = hands.browser("click", json!({ "name": "Slow" })).await;
    assert!(clicked.starts_with("Shelf\n"), "{clicked}");
    assert!(clicked.contains("downloaded downloads/slow.bin, 50 B"), "{clicked}");
    let cut = hands.browser("open", at("cut.bin")).await;
    assert!(cut.contains("the download of cut.bin was cancelled or broke off"), "{cut}");
    // One that takes longer than the call goes on, and its end is told later.
    let mut late = at("late.bin");
    late["timeout"] = json!(8);
    let late = hands.browser("open", late).await;
    assert!(late.contains("the download of late.bin still runs"), "{late}");
    hands.shell("touch finish; until [ -e downloads/late.bin ]; do sleep 0.05; done").await;
    let mut read = hands.browser("read", json!({})).await;
    while read.contains("still runs") {
        read = hands.browser("read", json!({})).await;
    }
    assert!(read.contains("downloaded downloads/late.bin, 50 B"), "{read}");
    let read = hands.browser("read", json!({})).await;
    assert!(!read.contains("download"), "it was told already: {read}");
    let mut nothing = at("nothing");
    nothing["action"] = "open".into();
    let nothing = hands.call("browser", nothing).await;
    assert!(nothing.failed && nothing.text.contains("nothing_to_show"), "{nothing:?}");
    let remarks = hands.browser("console", json!({})).await;
    assert!(!remarks.contains(".bin"), "a download is no mistake: {remarks}");
    hands.end().await;
}

#[tokio::test]
async fn scripts_may_wait_and_name_things_anew() {
    let server = TestServer::start();
    let hands = served(&server, &[("index.html", SECOND)]).await;
    hands.browser("open", at("")).await;
    for (script, value) in [
        ("const page = await fetch(location.href); page.status", "200"),
        ("const page = await Promise.resolve('again'); page", "again"),
        ("Promise.resolve([1, { a: 2 }])", r#"[1,{"a":2}]"#),
        ("({ b: [await 3] })", r#"{"b":[3]}"#),
        ("(async () => 'inside')()", "inside"),
        ("undefined", "undefined"),
        ("null", "null"),
    ] {
        assert_eq!(hands.script(script).await, value, "{script}");
    }
    for (script, words) in [
        ("await Promise.reject(new Error('later'))", "Error: later"),
        ("Promise.reject(new Error('mine'))", "Error: mine"),
        ("throw new Error('now')", "Error: now"),
        ("let 1", "SyntaxError"),
    ] {
        let ran = hands.call("browser", json!({ "action": "script", "text": script })).await;
        assert!(ran.failed && ran.text.contains(words), "{script}: {ran:?}");
    }
    hands.end().await;
}
