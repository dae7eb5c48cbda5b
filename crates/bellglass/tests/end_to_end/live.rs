//! What leads into a running sandbox: terminals, the desktop for viewers of all kinds, apps.

use std::io::Write as _;
use std::process::Stdio;

use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::HeaderValue;

use crate::support::{Options, TestServer, bellglass, shell, step, text, wait_for_go};

type Socket = WebSocketStream<TcpStream>;

fn address(server: &TestServer) -> String {
    server.url("").strip_prefix("http://").unwrap().to_owned()
}

/// Opens a WebSocket, with headers in the place of the usual ones.
async fn socket(
    server: &TestServer,
    path: &str,
    headers: &[(&'static str, &str)],
) -> Result<Socket, tokio_tungstenite::tungstenite::Error> {
    let address = address(server);
    let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, HeaderValue::from_str(value).unwrap());
    }
    let stream = TcpStream::connect(address).await.unwrap();
    tokio_tungstenite::client_async(request, stream).await.map(|(socket, _)| socket)
}

/// A viewer's end of a desktop's WebSocket.
pub(crate) struct Viewer {
    socket: Socket,
    bytes: Vec<u8>,
    words: Vec<Value>,
}

impl Viewer {
    pub(crate) async fn open(server: &TestServer, job: &str) -> Self {
        let socket = socket(server, &format!("/jobs/{job}/desktop/websocket"), &[]).await.unwrap();
        let mut viewer = Self { socket, bytes: Vec::new(), words: Vec::new() };
        assert_eq!(viewer.read(12).await, b"RFB 003.008\n");
        viewer.send(b"RFB 003.008\n").await;
        assert_eq!(viewer.read(2).await, [1, 1]);
        viewer.send(&[1]).await;
        assert_eq!(viewer.read(4).await, [0; 4]);
        viewer.send(&[1]).await;
        let about = viewer.read(24).await;
        assert_eq!(about[..4], [5, 0, 3, 32], "1280 by 800");
        let name = u32::from_be_bytes(about[20..].try_into().unwrap());
        viewer.read(name as usize).await;
        viewer
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.socket.send(Message::Binary(bytes.to_vec().into())).await.unwrap();
    }

    async fn next(&mut self) {
        match self.socket.next().await.expect("the desktop goes on").unwrap() {
            Message::Binary(bytes) => self.bytes.extend_from_slice(&bytes),
            Message::Text(text) => self.words.push(serde_json::from_str(&text).unwrap()),
            _ => {}
        }
    }

    async fn read(&mut self, count: usize) -> Vec<u8> {
        while self.bytes.len() < count {
            self.next().await;
        }
        self.bytes.drain(..count).collect()
    }

    /// Waits until something was put onto the desktop's clipboard: nothing else comes unasked.
    pub(crate) async fn wait_for_clipboard(&mut self) {
        const SERVER_CUT_TEXT: u8 = 3;
        assert_eq!(self.read(1).await, [SERVER_CUT_TEXT]);
    }

    /// Asks for the desktop, or gives it back, and waits for the word about it.
    async fn ask(&mut self, what: &str) -> Value {
        let asked = json!({ "type": what }).to_string();
        self.socket.send(Message::Text(asked.into())).await.unwrap();
        while self.words.is_empty() {
            self.next().await;
        }
        self.words.remove(0)
    }

    /// Moves the pointer, and waits for a picture that was asked for afterwards: what came before it
    /// was heard by then.
    async fn point_at(&mut self, x: u16, y: u16) {
        let ([a, b], [c, d]) = (x.to_be_bytes(), y.to_be_bytes());
        self.send(&[5, 0, a, b, c, d]).await;
        self.send(&[3, 0, 0, 0, 0, 0, 0, 1, 0, 1]).await;
        self.bytes.clear();
        self.read(1).await;
    }
}

#[tokio::test]
async fn who_looks_at_a_desktop_cannot_touch_it_until_it_is_theirs() {
    let server = TestServer::start();
    let wait = |name: &str| shell(&format!("until [ -e {name} ]; do sleep 0.02; done"));
    let place = shell("xdotool getmouselocation");
    let job = server
        .submit(&json!({ "desktop": true, "steps": [wait("one"), place, wait("two"), place, wait("go")] }))
        .await;
    server.wait_for_step(&job, "step.started", 1).await;
    let mut viewer = Viewer::open(&server, &job).await;
    viewer.point_at(777, 555).await;
    server.put_file(&job, "one", "").await;
    server.wait_for_step(&job, "step.finished", 2).await;
    assert_eq!(viewer.ask("take").await["type"], "taken");
    // One person at a time.
    let mut other = Viewer::open(&server, &job).await;
    assert_eq!(other.ask("take").await["code"], "desktop_taken");
    viewer.point_at(777, 555).await;
    server.put_file(&job, "two", "").await;
    server.wait_for_step(&job, "step.finished", 4).await;
    // A message without a known end is the end.
    viewer.send(&[99, 0, 0, 0]).await;
    while let Some(Ok(message)) = viewer.socket.next().await {
        if matches!(message, Message::Close(_)) {
            break;
        }
    }
    server.wait_for(&job, "desktop.returned").await;
    server.let_go(&job).await;
    let ended = server.wait_for_end(&job).await;
    assert!(!text(step(&ended, 2), "stdout").contains("x:777"), "{ended:#}");
    assert!(text(step(&ended, 4), "stdout").contains("x:777 y:555"), "{ended:#}");
    let log = server.log(&job).await;
    for kind in ["live.opened", "desktop.taken", "desktop.returned"] {
        assert!(log.contains(kind), "{kind}");
    }
}

#[tokio::test]
async fn a_person_attaches_a_terminal_to_a_job() {
    let server = TestServer::start();
    let job = server.submit(&json!({ "steps": [wait_for_go()] })).await;
    server.wait_for_step(&job, "step.started", 1).await;
    let url = server.url("");
    let mut attached = bellglass(server.folder())
        .args(["attach", "--server", &url, &job])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = attached.stdin.take().unwrap();
    input.write_all(b"echo sum-$((40 + 2)); touch go\n").unwrap();
    drop(input);
    let ended = tokio::task::spawn_blocking(|| attached.wait_with_output()).await.unwrap().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stdout).contains("sum-42"), "{ended:?}");
    let ended = server.wait_for_end(&job).await;
    assert_eq!(ended["status"], "completed");
    let refused = bellglass(server.folder())
        .args(["attach", "--server", &url, &job])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("ended"), "{refused:?}");
}

#[tokio::test]
async fn a_terminal_is_not_for_pages_of_other_sites() {
    let server = TestServer::start();
    let job = server.submit(&json!({ "steps": [wait_for_go()] })).await;
    server.wait_for_step(&job, "step.started", 1).await;
    for path in ["terminal", "desktop/websocket"] {
        let path = format!("/jobs/{job}/{path}");
        for origin in ["http://evil.example", "null", "http://localhost:1"] {
            assert!(socket(&server, &path, &[("origin", origin)]).await.is_err(), "{origin}");
        }
        assert!(socket(&server, &path, &[("host", "evil.example")]).await.is_err());
        let own = format!("http://{}", address(&server));
        assert!(socket(&server, &path, &[("origin", &own)]).await.is_ok());
    }
    server.let_go(&job).await;
    server.wait_for_end(&job).await;
}

const APP: &str = r#"
Deno.serve({ port: 8124, hostname: "127.0.0.1" }, (request) => {
  if (request.headers.get("upgrade") === "websocket") {
    const { socket, response } = Deno.upgradeWebSocket(request);
    socket.onmessage = (event) => socket.send(`echo ${event.data}`);
    return response;
  }
  if (new URL(request.url).pathname === "/long") {
    let left = 800;
    return new Response(new ReadableStream({ pull(to) { left-- > 0 ? to.enqueue(new Uint8Array(65536)) : to.close(); } }));
  }
  return request.text().then((body) => new Response(`${request.method} ${body.length}`));
});
"#;

#[tokio::test]
async fn an_app_is_spoken_to_whatever_it_speaks() {
    let server = TestServer::start();
    let job = server
        .submit(&json!({
            "files": [{ "path": "app.ts", "content": APP }],
            "steps": [
                { "tool": "shell", "session": "app", "command": "deno run --allow-net app.ts", "wait_for": { "port": 8124 } },
                wait_for_go(),
            ],
        }))
        .await;
    server.wait_for_step(&job, "step.started", 2).await;
    let ports = server.json(&format!("/jobs/{job}/ports")).await;
    assert_eq!(ports["ports"][0]["port"], 8124, "{ports}");

    let http = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
    let http = http.build().unwrap();
    let opened = http.get(server.url(&format!("/jobs/{job}/ports/8124/"))).send().await.unwrap();
    let entrance = opened.headers()["location"].to_str().unwrap().to_owned();
    let address = address(&server);
    let host = format!("{job}-8124.localhost:{}", address.rsplit_once(':').unwrap().1);
    let entrance = entrance.replace(&host, &address);
    let entered = http.get(entrance).header("host", &host).send().await.unwrap();
    assert_eq!(entered.status(), 303);
    let cookie = entered.headers()["set-cookie"].to_str().unwrap();
    let cookie = cookie.split(';').next().unwrap();
    let ask = |method, path: &str| {
        let request = http.request(method, format!("http://{address}{path}"));
        request.header("host", &host).header("cookie", cookie)
    };

    let large = vec![b'x'; 5_000_000];
    let posted = ask(reqwest::Method::POST, "/").body(large).send().await.unwrap();
    assert_eq!(posted.text().await.unwrap(), "POST 5000000");
    let long = ask(reqwest::Method::GET, "/long").send().await.unwrap().bytes().await.unwrap();
    assert_eq!(long.len(), 800 * 65536);

    let headers = [("host", host.as_str()), ("cookie", cookie)];
    let mut spoken = socket(&server, "/socket", &headers).await.unwrap();
    spoken.send(Message::Text("hello".into())).await.unwrap();
    assert_eq!(spoken.next().await.unwrap().unwrap(), Message::Text("echo hello".into()));
    assert!(socket(&server, "/socket", &[("host", &host)]).await.is_err());
    let from_elsewhere = [headers[0], headers[1], ("origin", "http://localhost:8000")];
    assert!(socket(&server, "/socket", &from_elsewhere).await.is_err());
    server.let_go(&job).await;
    server.wait_for_end(&job).await;
    // What was opened ends with the sandbox.
    while let Some(Ok(message)) = spoken.next().await {
        assert!(matches!(message, Message::Close(_)), "{message:?}");
    }
}

#[tokio::test]
async fn a_desktop_has_a_port_of_its_own_until_its_job_ends() {
    let config = "[server]\nvnc_ports = \"46080-46119\"\n";
    let mut server = TestServer::with(Options { config, ..Options::default() });
    let body = json!({ "desktop": true, "steps": [wait_for_go()] });
    let scheduled: Value = server.post("/schedule", body.to_string()).await.json().await.unwrap();
    let job = text(&scheduled, "job_id").to_owned();
    let port = u16::try_from(scheduled["vnc_port"].as_u64().unwrap()).unwrap();
    let status = server.json(&format!("/status/{job}")).await;
    assert_eq!(status["vnc_port"], port);
    let password = text(&status, "vnc_password").to_owned();
    assert_eq!(password.len(), 8);
    let without = server.post("/schedule", json!({ "steps": [shell("true")] }).to_string()).await;
    assert!(without.json::<Value>().await.unwrap()["vnc_port"].is_null());

    // A browser is answered as a browser, and only under a name of this machine.
    let page = reqwest::get(format!("http://127.0.0.1:{port}/")).await.unwrap();
    assert_eq!(page.status(), 200);
    let other = reqwest::Client::new().get(format!("http://127.0.0.1:{port}/"));
    assert_eq!(other.header("host", "evil.example").send().await.unwrap().status(), 403);
    // A viewer is greeted, and asked for the password.
    let mut viewer = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let mut greeting = [0; 12];
    viewer.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"RFB 003.008\n");
    viewer.write_all(b"RFB 003.008\n").await.unwrap();
    let mut security = [0; 2];
    viewer.read_exact(&mut security).await.unwrap();
    assert_eq!(security, [1, 2]);
    viewer.write_all(&[2]).await.unwrap();
    let mut challenge = [0; 16];
    viewer.read_exact(&mut challenge).await.unwrap();
    viewer.write_all(&[0; 16]).await.unwrap();
    assert_eq!(viewer.read_u32().await.unwrap(), 1, "a wrong password is refused");
    assert!(!server.log(&job).await.contains("live.opened"), "and bothers no sandbox");

    // What was promised holds for the next server on the same data.
    server.wait_for_step(&job, "step.started", 1).await;
    server.stop();
    server.start_again();
    let again = server.json(&format!("/status/{job}")).await;
    assert_eq!((&again["vnc_port"], &again["vnc_password"]), (&port.into(), &password.into()));
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_ok());
    server.let_go_under_successor(&job).await;
    server.wait_for_end(&job).await;
    while server.json(&format!("/status/{job}")).await["vnc_port"].is_u64() {
        tokio::task::yield_now().await;
    }
}
