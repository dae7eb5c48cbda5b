//! What people open of a job is opened by every server, wherever the job's sandbox is: terminals, apps,
//! JupyterLab, and the desktop.

use std::time::Duration;

use des::Des;
use des::cipher::{BlockCipherEncrypt as _, KeyInit as _};
use futures::{SinkExt as _, StreamExt as _};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::HeaderValue;

use crate::deployment::Deployment;
use crate::support::{Client, text, wait_for_go};

type Socket = WebSocketStream<TcpStream>;

/// Where a server listens.
fn address(client: &Client) -> String {
    client.url("").strip_prefix("http://").unwrap().to_owned()
}

/// Opens a WebSocket, with headers in the place of the usual ones.
async fn socket(client: &Client, path: &str, headers: &[(&'static str, &str)]) -> Option<Socket> {
    let address = address(client);
    let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, HeaderValue::from_str(value).unwrap());
    }
    let stream = TcpStream::connect(address).await.unwrap();
    let opened = tokio_tungstenite::client_async(request, stream).await;
    opened.ok().map(|(socket, _)| socket)
}

/// Waits for the end of a connection, however it comes.
async fn ends(mut socket: Socket) {
    let end = async { while let Some(Ok(_)) = socket.next().await {} };
    tokio::time::timeout(Duration::from_secs(60), end).await.expect("it ends");
}

#[tokio::test]
async fn a_terminal_through_another_process_is_its_users_and_ends_with_their_token() {
    let deployment = Deployment::start(1, 1, "");
    let client = &deployment.servers[0].client;
    let made = client.post("/tokens", json!({ "user": "ada" }).to_string()).await;
    let made: Value = made.json().await.unwrap();
    let bearer = format!("Bearer {}", text(&made, "token"));
    let request = client.request(Method::POST, "/schedule").header("authorization", &bearer);
    let request = request.header("content-type", "application/json");
    let scheduled = request.body(json!({ "steps": [wait_for_go()] }).to_string()).send().await;
    let scheduled: Value = scheduled.unwrap().json().await.unwrap();
    let job = text(&scheduled, "job_id");
    client.wait_for_step(job, "step.started", 1).await;

    let path = format!("/jobs/{job}/terminal");
    let mut terminal = socket(client, &path, &[("authorization", &bearer)]).await.unwrap();
    terminal.send(Message::Binary("echo sum-$((40 + 2))\n".into())).await.unwrap();
    let mut shown = String::new();
    while !shown.contains("sum-42") {
        if let Message::Binary(piece) = terminal.next().await.unwrap().unwrap() {
            shown.push_str(&String::from_utf8_lossy(&piece));
        }
    }
    let opened = client.wait_for(job, "live.opened").await;
    assert_eq!((&opened["by"], &opened["place"]), (&json!("ada"), &json!("terminal")));

    let revoke = client.request(Method::DELETE, &format!("/tokens/{}", text(&made, "id")));
    assert_eq!(revoke.send().await.unwrap().status(), StatusCode::NO_CONTENT);
    ends(terminal).await;
    assert!(socket(client, &path, &[("authorization", &bearer)]).await.is_none());
    client.let_go(job).await;
    assert_eq!(client.wait_for_end(job).await["status"], "completed");
}

/// A browser that was led to an app of a job.
struct Visitor {
    http: reqwest::Client,
    host: String,
    cookie: String,
}

impl Visitor {
    /// Opens an app by its address below the job's, as a browser does, through one server.
    async fn enter(client: &Client, path: &str, app: &str) -> Self {
        let http = reqwest::Client::builder().no_proxy();
        let http = http.redirect(reqwest::redirect::Policy::none()).build().unwrap();
        let address = address(client);
        let opened = http.get(client.url(path)).send().await.unwrap();
        assert_eq!(opened.status(), StatusCode::SEE_OTHER, "{path}");
        let entrance = opened.headers()["location"].to_str().unwrap().to_owned();
        let host = format!("{app}.localhost:{}", address.rsplit_once(':').unwrap().1);
        assert!(entrance.starts_with(&format!("http://{host}/")), "{entrance}");
        let entrance = entrance.replace(&host, &address);
        let entered = http.get(entrance).header("host", &host).send().await.unwrap();
        assert_eq!(entered.status(), StatusCode::SEE_OTHER);
        let cookie = entered.headers()["set-cookie"].to_str().unwrap();
        let cookie = cookie.split(';').next().unwrap().to_owned();
        Self { http, host, cookie }
    }

    fn ask(&self, client: &Client, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, client.url(path));
        request.header("host", &self.host).header("cookie", &self.cookie)
    }
}

const APP: &str = r#"
Deno.serve({ port: 8124, hostname: "127.0.0.1" }, (request) => {
  if (request.headers.get("upgrade") === "websocket") {
    const { socket, response } = Deno.upgradeWebSocket(request);
    socket.onmessage = (event) => socket.send(`echo ${event.data}`);
    return response;
  }
  return request.text().then((body) => new Response(`${request.method} ${body.length}`));
});
"#;

#[tokio::test]
async fn an_app_is_shown_by_every_server() {
    let deployment = Deployment::start(2, 1, "");
    let [one, other] = [0, 1].map(|n| &deployment.servers[n].client);
    let run = json!({
        "tool": "shell", "session": "app", "command": "deno run --allow-net app.ts",
        "wait_for": { "port": 8124 },
    });
    let files = json!([{ "path": "app.ts", "content": APP }]);
    let job = one.submit(&json!({ "files": files, "steps": [run, wait_for_go()] })).await;
    other.wait_for_step(&job, "step.started", 2).await;
    let ports = other.json(&format!("/jobs/{job}/ports")).await;
    assert_eq!(ports["ports"][0]["port"], 8124, "{ports}");

    let name = format!("{job}-8124");
    let visitor = Visitor::enter(other, &format!("/jobs/{job}/ports/8124/x"), &name).await;
    // Every server of the cluster knows whom one of them has let in.
    for client in [other, one] {
        let posted = visitor.ask(client, Method::POST, "/").body(vec![b'x'; 3_000_000]);
        assert_eq!(posted.send().await.unwrap().text().await.unwrap(), "POST 3000000");
    }
    let nobody = visitor.http.get(other.url("/")).header("host", &visitor.host);
    assert_eq!(nobody.send().await.unwrap().status(), StatusCode::UNAUTHORIZED);
    let headers = [("host", visitor.host.as_str()), ("cookie", visitor.cookie.as_str())];
    let mut spoken = socket(other, "/socket", &headers).await.unwrap();
    spoken.send(Message::Text("hello".into())).await.unwrap();
    assert_eq!(spoken.next().await.unwrap().unwrap(), Message::Text("echo hello".into()));
    let opened = other.wait_for(&job, "live.opened").await;
    assert_eq!(opened["place"], json!({ "port": 8124 }));
    // What does not listen says so there too.
    let silent =
        Visitor::enter(other, &format!("/jobs/{job}/ports/81/"), &format!("{job}-81")).await;
    let nothing = silent.ask(other, Method::GET, "/").send().await.unwrap();
    assert_eq!(nothing.status(), StatusCode::BAD_GATEWAY);
    assert!(nothing.text().await.unwrap().contains("Nothing listens here"));

    one.let_go(&job).await;
    assert_eq!(one.wait_for_end(&job).await["status"], "completed");
    ends(spoken).await;
    let over = visitor.ask(other, Method::GET, "/").send().await.unwrap();
    assert_eq!(over.status(), StatusCode::GONE);
}

#[tokio::test]
async fn jupyterlab_is_shown_by_every_server() {
    let deployment = Deployment::start(1, 1, "");
    let client = &deployment.servers[0].client;
    let job = client.submit(&json!({ "image": "desktop", "steps": [wait_for_go()] })).await;
    client.wait_for_step(&job, "step.started", 1).await;
    let name = format!("{job}-jupyter");
    let visitor = Visitor::enter(client, &format!("/jobs/{job}/jupyter/"), &name).await;
    let about = visitor.ask(client, Method::GET, "/api").send().await.unwrap();
    assert_eq!(about.status(), StatusCode::OK);
    let about: Value = about.json().await.unwrap();
    assert!(about["version"].is_string(), "{about}");
    client.let_go(&job).await;
    assert_eq!(client.wait_for_end(&job).await["status"], "completed");
}

/// Greets a desktop as a native viewer does; returns once the desktop has said how large it is.
async fn greet(viewer: &mut TcpStream, password: &str) {
    let mut version = [0; 12];
    viewer.read_exact(&mut version).await.unwrap();
    assert_eq!(&version, b"RFB 003.008\n");
    viewer.write_all(&version).await.unwrap();
    let mut security = [0; 2];
    viewer.read_exact(&mut security).await.unwrap();
    assert_eq!(security, [1, 2]);
    viewer.write_all(&[2]).await.unwrap();
    // The bits of each byte are in the wrong order, as the protocol wants it.
    let mut key = [0; 8];
    key.iter_mut().zip(password.bytes()).for_each(|(to, byte)| *to = byte.reverse_bits());
    let cipher = Des::new(&key.into());
    for _ in 0..2 {
        let mut block = [0; 8];
        viewer.read_exact(&mut block).await.unwrap();
        let mut block = block.into();
        cipher.encrypt_block(&mut block);
        viewer.write_all(&block).await.unwrap();
    }
    assert_eq!(viewer.read_u32().await.unwrap(), 0, "the password is right");
    viewer.write_all(&[1]).await.unwrap();
    let mut about = [0; 24];
    viewer.read_exact(&mut about).await.unwrap();
    assert_eq!(about[..4], [5, 0, 3, 32], "1280 by 800");
    let name = u32::from_be_bytes(about[20..].try_into().unwrap());
    viewer.read_exact(&mut vec![0; name as usize]).await.unwrap();
}

#[tokio::test]
async fn a_desktop_is_shown_by_every_server_and_on_the_port_that_one_has_for_it() {
    let deployment = Deployment::start(2, 1, "[server]\nvnc_ports = \"46200-46239\"\n");
    let [one, other] = [0, 1].map(|n| &deployment.servers[n].client);
    let body = json!({ "desktop": true, "steps": [wait_for_go()] }).to_string();
    let scheduled: Value = one.post("/schedule", body).await.json().await.unwrap();
    let job = text(&scheduled, "job_id");
    one.wait_for_step(job, "step.started", 1).await;

    // As a page does, through a server that was never asked about the job before.
    let page = other.get(&format!("/jobs/{job}/desktop/")).await;
    assert_eq!(page.status(), StatusCode::OK);
    let mut watching = socket(other, &format!("/jobs/{job}/desktop/websocket"), &[]).await.unwrap();
    let greeting = watching.next().await.unwrap().unwrap();
    assert_eq!(greeting, Message::Binary("RFB 003.008\n".into()));

    // As a native viewer does, at the port of the server that took the job on.
    let port = u16::try_from(scheduled["vnc_port"].as_u64().unwrap()).unwrap();
    let status = one.json(&format!("/status/{job}")).await;
    let mut viewer = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    greet(&mut viewer, text(&status, "vnc_password")).await;
    // Who does something has the desktop in hand until they leave.
    viewer.write_all(&[5, 0, 1, 0, 1, 0]).await.unwrap();
    let mut events = one.events(job).await;
    let taken = events.until(|event| event["type"] == "desktop.taken").await;
    assert_eq!(taken["by"], "vnc viewer");
    drop(viewer);
    events.until(|event| event["type"] == "desktop.returned").await;

    one.let_go(job).await;
    assert_eq!(one.wait_for_end(job).await["status"], "completed");
    ends(watching).await;
}
