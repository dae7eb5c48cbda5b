//! Pages and browsers that take their time to come, and what comes in their place.

use serde_json::json;

use crate::browsing::{SECOND, at, served};
use crate::support::TestServer;
use crate::support::hands::Hands;

/// Serves a page that is loaded whole only while the next one is asked for, one that takes a second for that,
/// and one that never comes.
const LATE_SERVER: &str = r#"import http.server, threading, time
asked, loaded = threading.Event(), threading.Event()
PAGES = {
    "/first": "<title>First</title><img src=/late><script>onload = () => fetch('/loaded')</script>",
    "/next": "<title>Next</title><p id=said>not yet</p><img src=/slow>"
             "<script>onload = () => said.textContent = 'all of it'</script>",
}
class Late(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        match self.path:
            case "/late": asked.wait()
            case "/loaded": loaded.set()
            case "/next": asked.set(); loaded.wait()
            case "/slow": time.sleep(1)
            case "/never": open("asked", "w").close(); time.sleep(1000)
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGES.get(self.path, "").encode())
http.server.ThreadingHTTPServer(("", 8001), Late).serve_forever()
"#;

async fn late_server<'a>(server: &'a TestServer) -> Hands<'a> {
    let link = r#"<a href="second.html?clicked" style="position: fixed; inset: 0">Onwards</a>"#;
    let files = [("late.py", LATE_SERVER), ("link.html", link), ("second.html", SECOND)];
    let hands = served(server, &files).await;
    let serve = json!({
        "session": "late", "command": "python3 late.py", "wait_for": { "port": 8001 },
    });
    hands.succeed("shell", serve).await;
    hands
}

#[tokio::test]
async fn a_page_is_read_when_it_is_loaded_and_not_when_the_one_before_is() {
    let server = TestServer::start();
    let hands = late_server(&server).await;
    let at = |path: &str, timeout: u32| json!({ "action": "open", "url": format!("http://127.0.0.1:8001/{path}"), "timeout": timeout });
    let first = hands.call("browser", at("first", 10)).await;
    assert!(first.failed && first.text.contains("timed_out"), "{first:?}");
    assert!(hands.browser("read", json!({})).await.starts_with("First\n"));
    let next = hands.succeed("browser", at("next", 40)).await;
    assert!(next.starts_with("Next\n") && next.contains("all of it"), "{next}");
    hands.end().await;
}

#[tokio::test]
async fn a_page_that_somebody_opens_meanwhile_is_read_as_what_it_is() {
    let server = TestServer::start();
    let hands = late_server(&server).await;
    hands.browser("open", at("link.html")).await;
    hands.browser("screenshot", json!({})).await;
    let opening = async {
        let never = json!({ "url": "http://127.0.0.1:8001/never", "timeout": 60 });
        hands.browser("open", never).await
    };
    let meanwhile = async {
        hands.shell("until [ -e asked ]; do sleep 0.05; done").await;
        hands.computer("click", json!({ "x": 300, "y": 300 })).await;
    };
    let (opened, ()) = tokio::join!(opening, meanwhile);
    assert!(opened.starts_with("Second\nhttp://127.0.0.1:8000/second.html?clicked\n"), "{opened}");
    assert!(opened.contains("another page was opened meanwhile"), "{opened}");
    hands.end().await;
}

#[tokio::test]
async fn a_browser_that_does_not_come_makes_room_for_another() {
    let server = TestServer::start();
    let hands = Hands::start(&server, json!({ "desktop": true })).await;
    let stop = "until pid=$(pgrep -xo chromium); do :; done; kill -STOP $pid; touch stopped";
    hands.shell(&format!("setsid sh -c '{stop}' >/dev/null 2>&1 &")).await;
    let open =
        json!({ "action": "open", "url": "data:text/html,<title>Here</title>", "timeout": 100 });
    let late = hands.call("browser", open.clone()).await;
    assert!(late.failed && late.text.contains("no_browser"), "{late:?}");
    hands.shell("[ -e stopped ]").await;
    let here = hands.succeed("browser", open).await;
    assert!(here.starts_with("Here\n"), "{here}");
    hands.end().await;
}
