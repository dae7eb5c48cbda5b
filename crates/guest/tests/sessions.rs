//! Terminal sessions with real programs: what lives on, what is shown, and that nothing wedges them.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};

use bellglass_protocol::step::StepStatus;
use serde_json::{Value, json};
use support::{Finished, TestGuest, Tools, eventually, runs, succeeded};

fn in_session(command: &str) -> Value {
    json!({"tool": "shell", "session": "main", "command": command})
}

fn with(mut call: Value, more: Value) -> Value {
    for (field, value) in more.as_object().unwrap() {
        call[field] = value.clone();
    }
    call
}

fn note(done: &Finished) -> &str {
    done.result.note.as_deref().unwrap_or_default()
}

async fn output(tools: &Tools, command: &str) -> String {
    let done = tools.run(in_session(command)).await;
    succeeded(&done);
    done.stdout()
}

/// Shows that the session is there and is ready.
async fn still_works(tools: &Tools) {
    assert_eq!(output(tools, "echo still here").await, "still here\n");
}

/// A port that nobody listens on, nor will: it is none of those that the kernel gives to whoever asks for any, and
/// tests at the same time have other processes.
fn closed_port() -> u16 {
    let given = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let given: Vec<u16> = given.split_whitespace().map(|port| port.parse().unwrap()).collect();
    let is_given = |port: &u16| (given[0]..=given[1]).contains(port);
    let others: Vec<u16> = (1024..=u16::MAX).filter(|port| !is_given(port)).collect();
    assert!(!others.is_empty(), "the kernel gives away every port of this host");
    static TAKEN: AtomicUsize = AtomicUsize::new(0);
    loop {
        let next = std::process::id() as usize * 8 + TAKEN.fetch_add(1, Ordering::Relaxed);
        let port = others[next % others.len()];
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

#[tokio::test]
async fn folder_variables_functions_and_jobs_live_on() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    assert_eq!(output(&tools, "mkdir deep; cd deep; X=1; f() { echo f$X; }").await, "");
    let here = guest.workspace().join("deep");
    assert_eq!(output(&tools, "pwd; f").await, format!("{}\nf1\n", here.display()));
    let done = tools.run(in_session("(exit 7)")).await;
    assert_eq!((done.result.status, done.result.exit_code), (StepStatus::Failed, Some(7)));
    assert_eq!(output(&tools, "echo $?").await, "7\n");
    output(&tools, "sleep 1000 & SLEEPER=$!").await;
    assert_eq!(output(&tools, "kill $SLEEPER && echo ended").await, "ended\n");
    assert_eq!(output(&tools, "cat <<END\na\n  b\nEND").await, "a\n  b\n");
    assert_eq!(output(&tools, "[ -t 0 ] && [ -t 1 ] && tput cols").await, "120\n");

    let call = with(in_session("echo $Y; pwd"), json!({"cwd": ".", "env": {"Y": "it's"}}));
    let workspace = guest.workspace();
    assert_eq!(tools.run(call).await.stdout(), format!("it's\n{}\n", workspace.display()));
    assert_eq!(output(&tools, "echo $Y").await, "it's\n");

    let other = json!({"tool": "shell", "session": "other", "command": "echo [$X]"});
    assert_eq!(tools.run(other).await.stdout(), "[]\n");
}

#[tokio::test]
async fn a_prompt_is_answered() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    let ask = "read -p 'name? ' n; read -s -p 'password? ' p; echo; echo \"$n $p\" > got; false";
    let asked =
        tools.run(with(in_session(ask), json!({"wait_for": {"pattern": r"name\? $"}}))).await;
    succeeded(&asked);
    assert_eq!(asked.stdout(), "name? ");
    assert!(note(&asked).contains("still runs"), "{:?}", asked.result);
    assert_eq!(tools.code(in_session("echo no")).await, "session_busy");

    let input = |text: &str, until: Value| json!({"tool": "send_input", "session": "main", "text": text, "wait_for": until});
    let next = tools.run(input("Ada\n", json!({"pattern": "password"}))).await;
    succeeded(&next);
    let last = tools.run(input("secret\n", json!({"exit": {}}))).await;
    assert_eq!((last.result.status, last.result.exit_code), (StepStatus::Failed, Some(1)));
    assert!(!last.stdout().contains("secret"), "{}", last.stdout());
    assert_eq!(guest.read("got"), "Ada secret\n");
    let nobody = json!({"tool": "send_input", "session": "main", "text": "x"});
    assert_eq!(tools.code(nobody).await, "nothing_runs");
    let nowhere = json!({"tool": "send_input", "session": "elsewhere", "text": "x"});
    assert_eq!(tools.code(nowhere).await, "no_such_session");
}

#[tokio::test]
async fn whatever_does_not_end_is_interrupted_and_the_session_goes_on() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    output(&tools, "KEPT=1").await;
    for command in [
        "sleep 1000",
        "while :; do :; done; echo never",
        "read x",
        "cat",
        "python3 -c 'import time; time.sleep(1000)'",
        "(trap '' INT; sleep 1000)",
        "trap '' INT TERM; sleep 1000",
    ] {
        let call = with(in_session(&format!("echo begun; {command}")), json!({"timeout": 0.5}));
        let done = tools.begin(call, 0.5).await.finish().await;
        assert_eq!(done.result.status, StepStatus::TimedOut, "{command}: {:?}", done.result);
        assert!(done.stdout().starts_with("begun\n"), "{command}: {}", done.stdout());
        assert_eq!(done.code(), "timed_out");
        assert_eq!(output(&tools, "trap - INT TERM; echo $KEPT").await, "1\n", "{command}");
    }
}

#[tokio::test]
async fn endless_output_is_bounded_by_time_and_all_of_it_comes() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    let done = tools.begin(in_session("yes"), 0.3).await.finish().await;
    assert_eq!(done.result.status, StepStatus::TimedOut);
    assert!(done.stdout.starts_with(b"y\ny\ny\n"));
    still_works(&tools).await;

    let bytes = 100_000_000;
    let done = tools.run(in_session(&format!("head -c {bytes} /dev/zero | tr '\\0' a"))).await;
    succeeded(&done);
    assert!(done.stdout.len() == bytes && done.stdout.iter().all(|byte| *byte == b'a'));
    still_works(&tools).await;
}

#[tokio::test]
async fn bytes_that_are_no_text_pass_and_harm_nothing() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    assert_eq!(
        tools.run(in_session(r"printf 'a\xff\xfe\x00b\xc3'")).await.stdout,
        b"a\xff\xfe\0b\xc3"
    );
    let done =
        tools.run(in_session("head -c 3000000 /dev/urandom; printf '\\033c\\033\\\\\\007'")).await;
    assert!(done.result.exit_code.is_some(), "{:?}", done.result);
    still_works(&tools).await;
}

#[tokio::test]
async fn a_shell_that_is_mistreated_comes_back() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    for (command, then) in [
        ("exec >&- 2>&-", "exec >/dev/tty 2>&1"),
        ("exec </dev/null", "exec </dev/tty"),
        ("break", ":"),
        ("if", ":"),
        ("return 3", ":"),
        ("unset PROMPT_COMMAND", ":"),
        ("PS1=mine; PS2=", ":"),
        ("stty -echo raw", "stty sane"),
        ("kill -STOP $BASHPID & kill -CONT $!; wait", ":"),
        ("(setsid sleep 1000 >/dev/null 2>&1 &)", ":"),
        ("nohup sh -c 'sleep 1000 & sleep 1000' >/dev/null 2>&1 &", ":"),
    ] {
        let done = tools.run(in_session(command)).await;
        assert!(done.result.exit_code.is_some(), "{command}: {:?}", done.result);
        tools.run(in_session(then)).await;
        let alive = tools.run(in_session("echo still here")).await;
        assert!(alive.stdout().ends_with("still here\n"), "{command}: {:?}", alive.stdout());
    }
}

#[tokio::test]
async fn a_stopped_program_gives_the_terminal_back() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    tools.run(with(in_session("sleep 1000"), json!({"wait_for": {"quiet": 0.2}}))).await;
    let stopped = json!({"tool": "send_input", "session": "main", "keys": ["ctrl-z"], "wait_for": {"exit": {}}});
    let stopped = tools.run(stopped).await;
    assert!(stopped.stdout().contains("Stopped"), "{:?}", stopped.stdout());
    assert!(output(&tools, "jobs").await.contains("sleep 1000"));
    output(&tools, "kill %1").await;
}

#[tokio::test]
async fn full_screen_programs_are_shown_and_steered() {
    let guest = TestGuest::start();
    let lines: String = (1..=200).map(|n| format!("line {n}\n")).collect();
    guest.write("long.txt", lines);
    let tools = Tools::of(&guest).await;
    let quiet = json!({"wait_for": {"quiet": 0.3}});
    let shown = tools.run(with(in_session("less long.txt"), quiet.clone())).await;
    assert!(shown.text().starts_with("line 1\nline 2\n") && !shown.text().contains("line 45"));
    let keys = |keys: &[&str]| json!({"tool": "send_input", "session": "main", "keys": keys});
    let end = tools.run(keys(&["G"])).await;
    assert!(end.text().contains("line 200\n") && end.text().contains("(END)"), "{}", end.text());
    let over = tools.run(keys(&["q"])).await;
    succeeded(&over);
    assert_eq!((over.result.exit_code, over.stdout().as_str()), (Some(0), ""));

    // A pager that nobody steers is ended, and the terminal is as it was.
    let done = tools.begin(in_session("less long.txt"), 0.5).await.finish().await;
    assert_eq!((done.result.status, done.stdout().as_str()), (StepStatus::TimedOut, ""));
    assert_eq!(output(&tools, "stty -a | grep -o ' echo '; echo plain").await, " echo \nplain\n");
}

#[tokio::test]
async fn a_server_is_waited_for_and_ended() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    let port = closed_port();
    let serve = format!(
        "sleep 0.3; exec -a bellglass-test-server python3 -u -m http.server -b 127.0.0.1 {port}"
    );
    let serve = json!({"tool": "shell", "session": "web", "command": format!("({serve})"), "wait_for": {"port": port}});
    let up = tools.run(serve).await;
    succeeded(&up);
    let fetch = format!(
        "python3 -c \"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}').status)\""
    );
    assert_eq!(output(&tools, &fetch).await, "200\n");
    let seen =
        json!({"tool": "wait_for", "session": "web", "until": {"pattern": "GET / HTTP/1.1. 200"}});
    succeeded(&tools.run(seen).await);
    assert_eq!(
        tools.text(json!({"tool": "wait_for", "until": {"port": port}})).await,
        format!("port {port} is open")
    );
    let late = json!({"tool": "wait_for", "session": "web"});
    let late = tools.begin(late, 0.2).await.finish().await;
    assert_eq!((late.result.status, late.code()), (StepStatus::TimedOut, "timed_out"));
    assert!(runs("bellglass-test-server"));
    tools.text(json!({"tool": "close_session", "session": "web"})).await;
    eventually("the server is gone", || !runs("bellglass-test-server")).await;
    let again = json!({"tool": "shell", "session": "web", "command": "echo anew"});
    assert_eq!(tools.run(again).await.stdout(), "anew\n");
}

#[tokio::test]
async fn what_a_command_leaves_in_the_background_is_waited_for() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    let port = closed_port();
    let serve =
        format!("(sleep 0.3; exec python3 -m http.server -b 127.0.0.1 {port}) 2>/dev/null &");
    let at_port = json!({"port": port});
    let up = tools.run(with(in_session(&serve), json!({"wait_for": at_port}))).await;
    succeeded(&up);
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    assert!(note(&up).contains("ready for the next command"), "{:?}", up.result);
    let wait = |session: &str, until: &Value| json!({"tool": "wait_for", "session": session, "until": until});
    succeeded(&tools.run(wait("main", &at_port)).await);

    let late = with(
        in_session("(sleep 0.3; echo RE\"\"ADY) &"),
        json!({"wait_for": {"pattern": "READY"}}),
    );
    let late = tools.run(late).await;
    succeeded(&late);
    assert!(late.stdout().contains("READY\n"), "{:?}", late.stdout());
    output(&tools, "(sleep 0.3; echo LA\"\"TER) &").await;
    succeeded(&tools.run(wait("main", &json!({"pattern": "LATER"}))).await);

    // A port is open whoever has opened it.
    let other = |command: &str| with(in_session(command), json!({"session": "other"}));
    succeeded(&tools.run(other("true")).await);
    succeeded(&tools.run(wait("other", &at_port)).await);
    still_works(&tools).await;
}

#[tokio::test]
async fn what_nobody_is_left_to_bring_is_not_waited_for() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    let never = json!({"wait_for": {"pattern": "never said"}});
    let closed = closed_port();
    for (command, until) in [
        ("true", &never),
        ("sleep 0.2 &", &never),
        ("(sleep 0.1; exit 3) & (setsid sleep 0.3 &)", &json!({"wait_for": {"port": closed}})),
    ] {
        let done = tools.run(with(in_session(command), until.clone())).await;
        assert_eq!(
            (done.result.status, done.code()),
            (StepStatus::Failed, "ended_first"),
            "{command}"
        );
        assert_eq!(done.result.exit_code, Some(0), "{command}");
    }
    let wait = json!({"tool": "wait_for", "session": "main", "until": {"port": closed}});
    assert_eq!(tools.code(wait.clone()).await, "ended_first");
    // A command that fails brings nothing, whatever else runs.
    output(&tools, "sleep 1000 & SLEEPER=$!").await;
    let failed = tools.run(with(in_session("(exit 4)"), never.clone())).await;
    assert_eq!((failed.code(), failed.result.exit_code), ("ended_first", Some(4)));
    // That it has failed says nothing about what is asked for later.
    let late = tools.begin(wait, 0.3).await.finish().await;
    assert_eq!((late.result.status, late.code()), (StepStatus::TimedOut, "timed_out"));
    let late = tools.begin(with(in_session("true"), never), 0.3).await.finish().await;
    assert_eq!((late.result.status, late.code()), (StepStatus::TimedOut, "timed_out"));
    assert_eq!(output(&tools, "kill $SLEEPER && echo still here").await, "still here\n");
}

#[tokio::test]
async fn a_session_that_ends_says_so_and_can_be_opened_again() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    let done = tools.run(in_session("echo bye; exit 9")).await;
    assert_eq!((done.result.exit_code, done.result.status), (Some(9), StepStatus::Failed));
    assert!(
        done.stdout().starts_with("bye\n") && note(&done).contains("ended"),
        "{:?}",
        done.result
    );
    still_works(&tools).await;
    let done = tools.run(in_session("exec true")).await;
    assert_eq!(done.result.exit_code, Some(0));
    still_works(&tools).await;
    let done = tools.run(in_session("kill -KILL $$")).await;
    assert_eq!(done.result.signal, Some(libc::SIGKILL), "{:?}", done.result);
    still_works(&tools).await;
}

#[tokio::test]
async fn a_call_that_is_cancelled_frees_the_session() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    let mut running =
        worker.begin(1, in_session("echo begun; sleep 1000"), support::PATIENCE).await;
    running.take_output(6).await;
    let id = bellglass_protocol::id::CallId::of_step(1);
    worker.reply(&bellglass_protocol::wire::Request::CancelCall { id }).await;
    let cancelled = running.finish_from(6).await;
    assert_eq!((cancelled.result.status, cancelled.code()), (StepStatus::Cancelled, "cancelled"));
    assert_eq!(worker.call(2, in_session("echo free")).await.stdout(), "free\n");
}
