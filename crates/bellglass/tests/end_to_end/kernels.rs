//! Code in kernels: state between calls, rich results, interrupts, notebooks.

use serde_json::{Value, json};

use crate::levels::has_gvisor;
use crate::support::{TestServer, archive, shell, step, text};

fn python(code: &str) -> Value {
    json!({ "tool": "python", "code": code })
}

fn typescript(code: &str) -> Value {
    json!({ "tool": "typescript", "code": code })
}

fn with(mut call: Value, field: &str, value: impl Into<Value>) -> Value {
    call[field] = value.into();
    call
}

fn assert_succeeded(job: &Value, steps: impl IntoIterator<Item = usize>) {
    for n in steps {
        assert_eq!(text(step(job, n), "status"), "succeeded", "{:#}", step(job, n));
    }
}

#[tokio::test]
async fn python_keeps_its_state_and_gives_rich_results() {
    let server = TestServer::start();
    let figure = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()";
    let table = "from IPython.display import HTML\nHTML('<table><tr><td>7</td></tr></table>')";
    let job = server
        .run(&json!({ "steps": [
            python("import os, sys\nx = 20\nprint('out', os.getcwd())\nprint('err', file=sys.stderr)"),
            python("x + 22"),
            python("import asyncio\nawait asyncio.sleep(0.01)\n'awaited'"),
            python(figure),
            python(table),
            python("def broken():\n    raise ValueError('oh no')\nbroken()"),
            with(python("y = 1\nprint('begun', flush=True)\nimport time\nwhile True: time.sleep(0.01)"), "timeout", 1.5),
            python("(x, y)"),
            with(python("'x' in globals()"), "restart", true),
            python("input('who? ')"),
            python("import os\nos._exit(3)"),
            python("'alive again'"),
            python("for i in range(200000): print('line', i)"),
        ]}))
        .await;
    assert_eq!(step(&job, 1)["stdout"], "out /workspace\n", "{:#}", step(&job, 1));
    assert_eq!(step(&job, 1)["stderr"], "err\n");
    assert_eq!(step(&job, 2)["stdout"], "42\n");
    assert_eq!(step(&job, 3)["stdout"], "'awaited'\n");
    assert_succeeded(&job, 1..=5);

    let drawn = &step(&job, 4)["attachments"];
    assert_eq!((drawn.as_array().unwrap().len(), text(&drawn[0], "media_type")), (1, "image/png"));
    let id = text(&job, "job_id");
    let picture = server.get(&format!("/jobs/{id}/steps/4/attachments/1")).await;
    assert_eq!(picture.headers()["content-type"], "image/png");
    let picture = picture.bytes().await.unwrap();
    assert!(picture.starts_with(b"\x89PNG\r\n") && picture.len() as u64 == drawn[0]["bytes"]);
    assert_eq!(server.get(&format!("/jobs/{id}/steps/4/attachments/2")).await.status(), 404);
    assert_eq!(text(&step(&job, 5)["attachments"][0], "media_type"), "text/html");
    let table = server.get(&format!("/jobs/{id}/steps/5/attachments/1")).await;
    assert_eq!(table.headers()["content-type"], "application/octet-stream");

    let failed = step(&job, 6);
    assert_eq!(text(&failed["error"], "code"), "exception");
    assert_eq!(text(&failed["error"], "message"), "ValueError: oh no");
    let trace = text(failed, "stderr");
    assert!(trace.contains("in broken()") && !trace.contains('\u{1b}'), "{trace}");

    let late = step(&job, 7);
    assert_eq!((text(late, "status"), text(late, "stdout")), ("timed_out", "begun\n"), "{late:#}");
    assert_eq!(text(&late["error"], "code"), "timed_out");
    assert_eq!(step(&job, 8)["stdout"], "(20, 1)\n", "{:#}", step(&job, 8));
    assert_eq!(step(&job, 9)["stdout"], "False\n");
    assert_eq!(text(&step(&job, 10)["error"], "code"), "exception", "nobody is there to ask");
    let died = step(&job, 11);
    assert_eq!((text(&died["error"], "code"), &died["exit_code"]), ("kernel_died", &json!(3)));
    assert_eq!(step(&job, 12)["stdout"], "'alive again'\n");
    assert_succeeded(&job, [13]);
    let lines: u64 = (0..200_000).map(|n| format!("line {n}\n").len() as u64).sum();
    assert_eq!(step(&job, 13)["output_bytes"], lines, "nothing of it is lost");

    let mut archive = server.archive(id).await;
    let notebook: Value =
        serde_json::from_str(&archive::text(&mut archive, "python.ipynb")).unwrap();
    assert_eq!((&notebook["nbformat"], &notebook["nbformat_minor"]), (&json!(4), &json!(5)));
    assert_eq!(notebook["metadata"]["kernelspec"]["name"], "python3");
    assert_eq!(notebook["metadata"]["language_info"]["name"], "python");
    let cells = notebook["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 13);
    assert_eq!(cells[1]["source"], "x + 22");
    assert_eq!(cells[1]["outputs"][0]["data"]["text/plain"], "42");
    assert!(cells[3]["outputs"][0]["data"]["image/png"].is_string());
    assert_eq!(cells[5]["outputs"][0]["ename"], "ValueError");
}

#[tokio::test]
async fn typescript_keeps_its_state() {
    let server = TestServer::start();
    let job = server
        .run(&json!({ "steps": [
            typescript("interface Point { x: number }\nconst p: Point = { x: 40 };\nconsole.log('out', Deno.cwd());"),
            typescript("p.x + 2"),
            typescript("const text: string = await Promise.resolve('awaited'); text"),
            typescript("throw new Error('oh no');"),
            with(typescript("console.log('begun'); while (true) {}"), "timeout", 1.5),
            typescript("p.x"),
            with(typescript("typeof p"), "restart", true),
        ]}))
        .await;
    assert_eq!(step(&job, 1)["stdout"], "out /workspace\n", "{:#}", step(&job, 1));
    assert_eq!(step(&job, 2)["stdout"], "42\n", "{:#}", step(&job, 2));
    assert!(text(step(&job, 3), "stdout").contains("awaited"), "{:#}", step(&job, 3));
    assert_eq!(text(&step(&job, 4)["error"], "code"), "exception", "{:#}", step(&job, 4));
    assert!(text(step(&job, 4), "stderr").contains("oh no"));
    assert_eq!(text(step(&job, 5), "status"), "timed_out", "{:#}", step(&job, 5));
    assert_eq!(step(&job, 6)["stdout"], "40\n", "{:#}", step(&job, 6));
    assert!(text(step(&job, 7), "stdout").contains("undefined"), "{:#}", step(&job, 7));
    let mut archive = server.archive(text(&job, "job_id")).await;
    let notebook: Value =
        serde_json::from_str(&archive::text(&mut archive, "typescript.ipynb")).unwrap();
    assert_eq!(notebook["cells"].as_array().unwrap().len(), 7);
    assert_eq!(notebook["metadata"]["language_info"]["name"], "typescript");
}

/// Deno's kernel cannot stop code that awaits: it is ended, and that is a time-out all the same.
#[tokio::test]
async fn typescript_that_awaits_for_too_long_times_out() {
    let server = TestServer::start();
    let job = server
        .run(&json!({ "steps": [
            typescript("let z = 7"),
            with(typescript("await new Promise((go) => setTimeout(go, 100000))"), "timeout", 1),
            typescript("console.log(typeof z)"),
        ]}))
        .await;
    let late = step(&job, 2);
    assert_eq!(text(late, "status"), "timed_out", "{late:#}");
    assert_eq!(text(&late["error"], "code"), "kernel_restarted");
    assert!(text(&late["error"], "message").contains("nothing is defined"), "{late:#}");
    assert_eq!((&late["signal"], &late["exit_code"]), (&Value::Null, &Value::Null));
    assert_eq!(step(&job, 3)["stdout"], "undefined\n", "{:#}", step(&job, 3));
}

/// Deno's kernel tells what is printed as the output of the latest request.
#[tokio::test]
async fn what_typescript_prints_stays_with_its_cell() {
    let server = TestServer::start();
    let printing = |lines: u32| format!("for (let n = 0; n < {lines}; n++) console.log('spam')");
    let job = server
        .run(&json!({ "steps": [
            typescript(&printing(5000)),
            typescript("let z = 7; console.log('one')"),
            with(typescript(&format!("{}; for (;;);", printing(200))), "timeout", 2),
            typescript("console.log('two', z)"),
            with(typescript("for (;;) console.log('spam'.repeat(10))"), "timeout", 2),
            typescript("console.log('three')"),
        ]}))
        .await;
    assert_succeeded(&job, [1, 2, 4, 6]);
    assert_eq!(step(&job, 2)["stdout"], "one\n", "{:#}", step(&job, 2));
    assert_eq!(text(&step(&job, 3)["error"], "code"), "timed_out", "{:#}", step(&job, 3));
    assert_eq!(step(&job, 4)["stdout"], "two 7\n", "{:#}", step(&job, 4));
    // Whether the kernel is kept depends on how much waits in it.
    assert_eq!(text(step(&job, 5), "status"), "timed_out");
    assert_eq!(step(&job, 6)["stdout"], "three\n", "{:#}", step(&job, 6));
    let mut archive = server.archive(text(&job, "job_id")).await;
    let notebook: Value =
        serde_json::from_str(&archive::text(&mut archive, "typescript.ipynb")).unwrap();
    for (cell, printed) in [(1, "one\n"), (3, "two 7\n"), (5, "three\n")] {
        let outputs = notebook["cells"][cell]["outputs"].as_array().unwrap();
        assert_eq!((outputs.len(), text(&outputs[0], "text")), (1, printed), "{outputs:#?}");
    }
}

#[tokio::test]
async fn python_that_exits_ends_its_kernel_in_order() {
    let server = TestServer::start();
    let leave = "import atexit\natexit.register(lambda: open('left', 'w').close())\n\
                 print('last words')\nexit()";
    let job = server
        .run(&json!({ "steps": [
            python(leave),
            python("import os\n(os.path.exists('left'), 'atexit' in globals())"),
            python("x = 1\nquit(keep_kernel=True)"),
            python("x"),
        ]}))
        .await;
    assert_succeeded(&job, 1..=4);
    assert_eq!(step(&job, 1)["stdout"], "last words\n");
    let shown = text(step(&job, 1), "output");
    assert!(shown.contains("the code ended its kernel"), "{shown}");
    assert_eq!(step(&job, 2)["stdout"], "(True, False)\n", "{:#}", step(&job, 2));
    assert_eq!(step(&job, 4)["stdout"], "1\n", "{:#}", step(&job, 4));
}

#[tokio::test]
async fn rich_outputs_that_are_left_out_are_counted() {
    let server = TestServer::start();
    let code = "from IPython.display import HTML, display\n\
                for n in range(18): display(HTML(f'<b>{n}</b>'))\n\
                display(HTML('x' * (9 << 20)))";
    let job = server.run(&json!({ "steps": [python(code)] })).await;
    assert_succeeded(&job, [1]);
    assert_eq!(step(&job, 1)["attachments"].as_array().map(Vec::len), Some(16));
    let shown = text(step(&job, 1), "output");
    assert!(shown.contains("2 rich outputs were left out: a call gives at most 16"), "{shown}");
    assert!(shown.contains("1 rich output was left out: one may have at most 8 MiB"), "{shown}");
}

#[tokio::test]
async fn what_a_cell_prints_is_seen_while_it_runs() {
    let server = TestServer::start();
    let in_python = "import os, time\nprint('first')\n\
                     while not os.path.exists('go'): time.sleep(0.01)\nprint('second')";
    let in_typescript = "const there = () => Deno.stat('go').then(() => true, () => false);\n\
                         console.log('first');\n\
                         while (!(await there())) await new Promise((go) => setTimeout(go, 10));\n\
                         console.log('second');";
    for call in [python(in_python), typescript(in_typescript)] {
        let job = server.submit(&json!({ "steps": [call] })).await;
        let event = server.wait_for_step(&job, "step.output", 1).await;
        assert_eq!((text(&event, "text"), text(&event, "stream")), ("first\n", "stdout"));
        server.let_go(&job).await;
        let job = server.wait_for_end(&job).await;
        assert_eq!(step(&job, 1)["stdout"], "first\nsecond\n", "{job:#}");
    }
}

#[tokio::test]
async fn typescript_gives_rich_results() {
    let server = TestServer::start();
    let table = "await Deno.jupyter.display({ 'text/plain': 'a table', 'text/html': '<table></table>' }, { raw: true })";
    // A picture of one pixel.
    let picture = "const png = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';\n\
                   await Deno.jupyter.display({ 'image/png': png, 'text/plain': 'a pixel' }, { raw: true });";
    let job = server
        .run(&json!({ "steps": [
            typescript(table),
            typescript(picture),
            typescript("Deno.jupyter.html`<b>${6 * 7}</b>`"),
            typescript("({ [Symbol.for('Jupyter.display')]: () => ({ 'text/markdown': '*own*' }) })"),
        ]}))
        .await;
    assert_succeeded(&job, 1..=4);
    let id = text(&job, "job_id");
    let kinds = ["text/html", "image/png", "text/html", "text/markdown"];
    for (n, (kind, content)) in (1..).zip(kinds.into_iter().zip([
        &b"<table></table>"[..],
        b"\x89PNG\r\n\x1a\n",
        b"<b>42</b>",
        b"*own*",
    ])) {
        let given = &step(&job, n)["attachments"];
        assert_eq!(given.as_array().map(Vec::len), Some(1), "{:#}", step(&job, n));
        assert_eq!(text(&given[0], "media_type"), kind);
        let sent = server.get(&format!("/jobs/{id}/steps/{n}/attachments/1")).await;
        assert!(sent.bytes().await.unwrap().starts_with(content), "{kind}");
    }
    assert_eq!(step(&job, 1)["stdout"], "a table\n", "{:#}", step(&job, 1));
    assert_eq!(step(&job, 2)["stdout"], "a pixel\n", "{:#}", step(&job, 2));
}

/// A program may be stopped as by ctrl-z. Its kernel then takes no more than its socket holds.
#[tokio::test]
async fn a_kernel_that_stands_still_keeps_no_call_longer_than_its_time() {
    let server = TestServer::start();
    let stop = shell(
        "pid=$(pgrep -of 'ipykernel[_]launcher') && kill -STOP $pid && \
         until grep -q 'State:.T' /proc/$pid/status; do sleep 0.05; done",
    );
    let long = format!("long = '{}'", "x".repeat(1_000_000));
    let job = server
        .run(&json!({ "steps": [
            python("kept = 7"),
            stop,
            with(python("6 * 7"), "timeout", 1),
            python("kept"),
            python("kept"),
            stop,
            with(python(&long), "timeout", 1),
            python("'kept' in globals()"),
        ]}))
        .await;
    assert_succeeded(&job, [1, 2, 4, 5, 6, 8]);
    let late = step(&job, 3);
    assert_eq!(text(late, "status"), "timed_out", "{late:#}");
    assert_eq!(text(&late["error"], "code"), "timed_out", "{late:#}");
    assert_eq!(step(&job, 4)["stdout"], "7\n", "{:#}", step(&job, 4));
    let lost = step(&job, 7);
    assert_eq!(text(lost, "status"), "timed_out", "{lost:#}");
    assert_eq!(text(&lost["error"], "code"), "kernel_restarted", "{lost:#}");
    assert!(text(&lost["error"], "message").contains("did not take the code"), "{lost:#}");
    assert_eq!(step(&job, 8)["stdout"], "False\n", "{:#}", step(&job, 8));
}

/// Deno's kernel has ports, which any program of the sandbox may have taken when it starts anew.
#[tokio::test]
async fn a_kernel_whose_ports_are_taken_gets_others() {
    let server = TestServer::start();
    let take = "import os, signal, socket, subprocess, sys, time\n\
        lines = [line.split() for line in open('/proc/net/tcp')][1:]\n\
        ports = [int(line[1].split(':')[1], 16) for line in lines if line[3] == '0A']\n\
        for pid in subprocess.run(['pgrep', '-f', 'deno[ ]jupyter'], capture_output=True).stdout.split():\n\
        \x20   os.kill(int(pid), signal.SIGKILL)\n\
        held = []\n\
        while len(held) < len(ports):\n\
        \x20   try:\n\
        \x20       held.append(socket.create_server(('127.0.0.1', ports[len(held)])))\n\
        \x20   except OSError: time.sleep(0.01)\n\
        print(len(held), flush=True)\n\
        # They accept connections as long as this goes on, and never say a word.\n\
        if os.fork() == 0:\n\
        \x20   os.setsid(); os.dup2(os.open('/dev/null', os.O_RDWR), 1); os.dup2(1, 2); time.sleep(10000)";
    let job = server
        .run(&json!({ "steps": [
            typescript("const before = 1; before"),
            with(python(take), "fresh", true),
            typescript("typeof before"),
            typescript("6 * 7"),
        ]}))
        .await;
    assert_succeeded(&job, 1..=4);
    assert_eq!(step(&job, 2)["stdout"], "5\n", "{:#}", step(&job, 2));
    assert!(text(step(&job, 3), "stdout").contains("undefined"), "{:#}", step(&job, 3));
    assert_eq!(step(&job, 4)["stdout"], "42\n", "{:#}", step(&job, 4));
}

#[tokio::test]
async fn kernels_work_on_gvisors_kernel() {
    let server = TestServer::start();
    if !has_gvisor(&server).await {
        return;
    }
    let steps = [python("x = 41"), python("x + 1"), typescript("const y = 6"), typescript("y * 7")];
    let job = server.run(&json!({ "isolation": "gvisor", "steps": steps })).await;
    assert_succeeded(&job, 1..=4);
    assert_eq!(step(&job, 2)["stdout"], "42\n");
    assert_eq!(step(&job, 4)["stdout"], "42\n");
}
