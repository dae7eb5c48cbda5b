//! Kernels as people meet them: in JupyterLab, with the very state that the job's steps have, and as
//! notebooks that a job leaves.

use futures::{SinkExt as _, StreamExt as _};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::http::HeaderValue;

use crate::support::{TestServer, archive, python, shell, step, text, wait_for_go};

/// A person's way to the JupyterLab of a job, by the name that it has for browsers.
struct Lab {
    http: reqwest::Client,
    address: String,
    host: String,
    cookie: String,
}

impl Lab {
    async fn open(server: &TestServer, job: &str) -> Self {
        let http =
            reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none());
        let http = http.build().unwrap();
        let address = server.url("").strip_prefix("http://").unwrap().to_owned();
        let opened = http.get(server.url(&format!("/jobs/{job}/jupyter/"))).send().await.unwrap();
        let entrance = opened.headers()["location"].to_str().unwrap().to_owned();
        let host = format!("{job}-jupyter.localhost:{}", address.rsplit_once(':').unwrap().1);
        let entrance = http.get(entrance.replace(&host, &address)).header("host", &host);
        let entered = entrance.send().await.unwrap();
        let cookie = entered.headers()["set-cookie"].to_str().unwrap();
        let cookie = cookie.split(';').next().unwrap().to_owned();
        Self { http, address, host, cookie }
    }

    async fn ask(&self, method: Method, path: &str, body: Value) -> Value {
        let request = self.http.request(method, format!("http://{}{path}", self.address));
        let request = request.header("host", &self.host).header("cookie", &self.cookie);
        let answer = request.body(body.to_string()).send().await.unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        answer.json().await.unwrap()
    }

    async fn attach(&self, kernel: &str) -> Notebook {
        let begun = self.ask(Method::POST, "/api/kernels", json!({ "name": kernel })).await;
        let url = format!("ws://{}/api/kernels/{}/channels", self.address, text(&begun, "id"));
        let mut request = url.into_client_request().unwrap();
        for (name, value) in [("host", &self.host), ("cookie", &self.cookie)] {
            request.headers_mut().insert(name, HeaderValue::from_str(value).unwrap());
        }
        let stream = TcpStream::connect(&self.address).await.unwrap();
        let (socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
        Notebook { socket }
    }
}

/// A notebook that is open in JupyterLab.
struct Notebook {
    socket: WebSocketStream<TcpStream>,
}

impl Notebook {
    /// Runs a cell. Returns the text of its result.
    async fn run(&mut self, code: &str) -> String {
        let header = json!({
            "msg_id": "a-cell", "msg_type": "execute_request", "username": "a person",
            "session": "a-session", "version": "5.3", "date": "2026-01-01T00:00:00Z",
        });
        let content = json!({
            "code": code, "silent": false, "store_history": true, "user_expressions": {},
            "allow_stdin": false, "stop_on_error": true,
        });
        let message = json!({
            "header": header, "parent_header": {}, "metadata": {}, "content": content,
            "channel": "shell", "buffers": [],
        });
        self.socket.send(Message::Text(message.to_string().into())).await.unwrap();
        loop {
            let Message::Text(text) = self.socket.next().await.expect("it answers").unwrap() else {
                continue;
            };
            let message: Value = serde_json::from_str(&text).unwrap();
            assert_ne!(message["msg_type"], "error", "{message:#}");
            if message["msg_type"] == "execute_result" {
                return message["content"]["data"]["text/plain"].as_str().unwrap().to_owned();
            }
        }
    }
}

#[tokio::test]
async fn jupyterlab_offers_the_kernels_that_the_steps_use() {
    let server = TestServer::start();
    let job = server
        .submit(&json!({ "image": "desktop", "steps": [
            { "tool": "typescript", "code": "const answer: number = 6 * 7;" },
            { "tool": "python", "code": "answer = 41" },
            wait_for_go(),
            { "tool": "typescript", "code": "console.log('the person said', said)" },
            { "tool": "python", "code": "print('the person said', said)" },
        ]}))
        .await;
    server.wait_for_step(&job, "step.started", 3).await;
    let lab = Lab::open(&server, &job).await;
    let offered = lab.ask(Method::GET, "/api/kernelspecs", Value::Null).await;
    let specs = offered["kernelspecs"].as_object().unwrap();
    assert_eq!(specs.keys().collect::<Vec<_>>(), ["deno", "python3"], "{offered:#}");
    assert_eq!(specs["deno"]["spec"]["language"], "typescript");
    let found = lab.attach("deno").await.run("const said = 'hello in TypeScript'; answer").await;
    assert_eq!(found, "42");
    let found = lab.attach("python3").await.run("said = 'hello in Python'; answer").await;
    assert_eq!(found, "41");
    server.let_go(&job).await;
    let job = server.wait_for_end(&job).await;
    assert_eq!(step(&job, 4)["stdout"], "the person said hello in TypeScript\n", "{job:#}");
    assert_eq!(step(&job, 5)["stdout"], "the person said hello in Python\n", "{job:#}");
}

/// As Jupyter's own library sees it, which the larger image has.
#[tokio::test]
async fn notebooks_that_jobs_leave_are_valid() {
    let server = TestServer::start();
    let cell = |tool: &str, code: &str| json!({ "tool": tool, "code": code });
    let late = |tool: &str, code: &str| json!({ "tool": tool, "code": code, "timeout": 1.5 });
    let figure = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()";
    let updated = "from IPython.display import display, HTML, JSON, Markdown\n\
                   shown = display(HTML('<b>one</b>'), display_id=True)\n\
                   shown.update(HTML('<b>two</b>'))\ndisplay(JSON({'a': [1]}), Markdown('*x*'))";
    let job = server
        .run(&json!({ "steps": [
            cell("python", "import sys\nprint('out')\nprint('err', file=sys.stderr)\n42"),
            cell("python", figure),
            cell("python", updated),
            cell("python", "1 / 0"),
            cell("python", "x = ("),
            late("python", "while True: pass"),
            cell("python", "import os\nos._exit(1)"),
            cell("python", "quiet = True"),
            cell("typescript", "console.log('out'); console.error('err'); 42"),
            cell("typescript", "await Deno.jupyter.display({ 'text/plain': 'x', 'application/json': { a: [1] } }, { raw: true })"),
            cell("typescript", "throw new Error('oh no')"),
            late("typescript", "while (true) {}"),
        ]}))
        .await;
    let mut left = server.archive(text(&job, "job_id")).await;
    let notebooks = ["python.ipynb", "typescript.ipynb"];
    let notebooks = notebooks.map(|name| (name, archive::text(&mut left, name)));
    let check = "import json, nbformat\n\
                 for name in ['python.ipynb', 'typescript.ipynb']:\n\
                 \x20   notebook = json.load(open(name))\n\
                 \x20   nbformat.validate(notebook)\n\
                 \x20   print(name, len(notebook['cells']))\n\
                 notebook['cells'][0]['outputs'] = [{'output_type': 'nonsense'}]\n\
                 try:\n    nbformat.validate(notebook)\n\
                 except nbformat.ValidationError: print('it can tell')";
    let checking = server
        .submit(&json!({ "image": "desktop", "steps": [wait_for_go(), python(check)] }))
        .await;
    server.wait_for_step(&checking, "step.output", 1).await;
    for (name, notebook) in notebooks {
        assert_eq!(server.put_file(&checking, name, notebook).await.status(), 204);
    }
    server.let_go(&checking).await;
    let checked = server.wait_for_end(&checking).await;
    let said = "python.ipynb 8\ntypescript.ipynb 4\nit can tell\n";
    assert_eq!(step(&checked, 2)["stdout"], said, "{:#}", step(&checked, 2));
}

#[tokio::test]
async fn a_kernel_starts_before_its_step() {
    let server = TestServer::start();
    // Brackets, so that the command does not find itself.
    let look = "until python=$(pgrep -f 'ipykernel[_]launcher') && deno=$(pgrep -f 'deno[ ]jupyter'); \
                do sleep 0.02; done; echo $python $deno";
    let mut look = shell(look);
    look["timeout"] = 120.into();
    let job = server
        .run(&json!({ "steps": [
            look,
            { "tool": "python", "code": "import os\nos.getpid()" },
            { "tool": "typescript", "code": "Deno.pid" },
        ]}))
        .await;
    let before = text(step(&job, 1), "stdout").trim();
    let used = [2, 3].map(|n| text(step(&job, n), "stdout").trim());
    assert_eq!(before, used.join(" "), "{job:#}");
}
