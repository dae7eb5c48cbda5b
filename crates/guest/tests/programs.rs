//! Programs: what they are given, what they give back, and what they leave behind.

mod support;

use bellglass_protocol::step::StepStatus;
use serde_json::json;
use support::{TestGuest, Tools, eventually, succeeded};

#[tokio::test]
async fn output_and_exit_codes_come_back() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    let done = worker.shell(1, "echo out; echo err >&2").await;
    succeeded(&done);
    assert_eq!((done.stdout().as_str(), done.stderr().as_str()), ("out\n", "err\n"));
    assert_eq!(done.result.exit_code, Some(0));
    assert_eq!(done.result.output_bytes, 8);

    let done = worker.shell(2, "exit 7").await;
    assert_eq!((done.result.status, done.result.exit_code), (StepStatus::Failed, Some(7)));

    let done = worker.shell(3, "kill -SEGV $$").await;
    assert_eq!((done.result.exit_code, done.result.signal), (None, Some(libc::SIGSEGV)));
}

#[tokio::test]
async fn bytes_pass_unchanged() {
    let guest = TestGuest::start();
    let done = guest.connect().await.shell(1, r"printf 'a\xff\xfe\x00b'").await;
    assert_eq!(done.stdout, b"a\xff\xfe\0b");
}

#[tokio::test]
async fn standard_input_is_at_its_end() {
    let guest = TestGuest::start();
    let done = guest.connect().await.shell(1, "cat; read line || echo none").await;
    succeeded(&done);
    assert_eq!(done.stdout(), "none\n");
}

#[tokio::test]
async fn the_environment_is_ours_alone() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    let call = json!({"tool": "shell", "command": "env | cut -d= -f1 | sort | tr '\\n' ' '; echo; echo $MORE $HOME; pwd", "env": {"MORE": "x=y"}});
    let done = worker.call(1, call).await;
    let stdout = done.stdout();
    let mut lines = stdout.lines();
    assert_eq!(
        lines.next().unwrap().trim(),
        "DEBIAN_FRONTEND DENO_NO_UPDATE_CHECK GIT_PAGER HOME LC_CTYPE LOGNAME MORE NO_COLOR PAGER PATH \
         PIP_DISABLE_PIP_VERSION_CHECK PWD PYTHONUNBUFFERED SHELL SHLVL TERM USER _"
    );
    assert_eq!(lines.next().unwrap(), format!("x=y {}", guest.outside().display()));
    assert_eq!(lines.next().unwrap(), guest.workspace().to_str().unwrap());

    let call = json!({"tool": "shell", "command": "true", "env": {"A=B": "x"}});
    assert_eq!(worker.call(2, call).await.code(), "invalid_environment");
}

#[tokio::test]
async fn a_shell_starts_where_it_is_told() {
    let guest = TestGuest::start();
    guest.write("sub/file", "");
    let worker = guest.connect().await;
    let pwd = |cwd: &str| json!({"tool": "shell", "command": "pwd", "cwd": cwd});
    let sub = format!("{}\n", guest.workspace().join("sub").display());
    assert_eq!(worker.call(1, pwd("sub")).await.stdout(), sub);
    assert_eq!(worker.call(2, pwd("/workspace/sub")).await.stdout(), sub);
    assert_eq!(worker.call(3, pwd("/usr")).await.stdout(), "/usr\n");
    assert_eq!(worker.call(4, pwd("nowhere")).await.code(), "folder_not_found");
    assert_eq!(worker.call(5, pwd("sub/file")).await.code(), "folder_not_found");
}

#[tokio::test]
async fn a_long_command_is_no_problem() {
    let guest = TestGuest::start();
    let command = format!(": {}\necho \"$0 done\"; exit 3", "x".repeat(300_000));
    let done = guest.connect().await.shell(1, &command).await;
    assert_eq!((done.stdout().as_str(), done.result.exit_code), ("bash done\n", Some(3)));
}

#[tokio::test]
async fn python_runs_as_a_main_module() {
    let guest = TestGuest::start();
    guest.write("neighbour.py", "value = 42\n");
    let worker = guest.connect().await;
    let code = "import neighbour, sys\n\
                print(__name__, neighbour.value, repr(sys.path[0]), sys.argv)\n\
                print(sorted(n for n in globals() if not n.startswith('__')))\n\
                print('Grüße')";
    let done = worker.call(1, json!({"tool": "python", "fresh": true, "code": code})).await;
    succeeded(&done);
    assert_eq!(done.stdout(), "__main__ 42 '' ['-c']\n['neighbour', 'sys']\nGrüße\n");

    let code = "def f():\n    raise ValueError('no')\n\nf()";
    let done = worker.call(2, json!({"tool": "python", "fresh": true, "code": code})).await;
    assert_eq!(done.result.exit_code, Some(1));
    let trace = done.stderr();
    assert!(trace.contains("    raise ValueError('no')\nValueError: no"), "{trace}");
    assert!(!trace.contains("lambda") && !trace.contains("<string>"), "{trace}");

    let done = worker.call(3, json!({"tool": "python", "fresh": true, "code": "x = (\n"})).await;
    assert!(done.stderr().contains("SyntaxError"), "{}", done.stderr());
    let done = worker
        .call(4, json!({"tool": "python", "fresh": true, "code": "raise SystemExit(4)"}))
        .await;
    assert_eq!(done.result.exit_code, Some(4));
}

#[tokio::test]
async fn a_background_process_does_not_hold_the_call() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    let command = "(until [ -e go ]; do sleep 0.01; done; touch late) & echo started";
    let done = worker.shell(1, command).await;
    succeeded(&done);
    assert_eq!(done.stdout(), "started\n");
    guest.write("go", "");
    eventually("it lived on", || guest.workspace().join("late").exists()).await;
}

#[tokio::test]
async fn background_output_is_drained_and_does_not_kill() {
    let guest = TestGuest::start();
    let worker = guest.connect().await;
    let command =
        "(head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2; touch wrote-all) & exit 0";
    let done = worker.shell(1, command).await;
    succeeded(&done);
    assert!(done.result.output_bytes <= 3 << 20);
    eventually("all was written", || guest.workspace().join("wrote-all").exists()).await;

    // Endless output does not hold the call either: it would run into its time limit.
    let done = worker.shell(2, "yes & echo $! > pid; exit 0").await;
    succeeded(&done);
    worker.shell(3, "kill $(cat pid)").await;
}

#[tokio::test]
async fn closing_standard_output_ends_nothing() {
    let guest = TestGuest::start();
    let done = guest.connect().await.shell(1, "exec >&- 2>&-; sleep 0.2; exit 5").await;
    assert_eq!(done.result.exit_code, Some(5));
}

#[tokio::test]
async fn pipes_break_as_usual() {
    // Rust programs ignore SIGPIPE; what they start must not.
    let guest = TestGuest::start();
    let done = guest.connect().await.shell(1, "yes | head -n 1; echo ${PIPESTATUS[0]}").await;
    assert_eq!(done.stdout(), "y\n141\n");
}

#[tokio::test]
async fn the_list_of_ports_has_a_time_as_all_calls_have() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    let late = tools.begin(json!({"tool": "list_ports"}), 0.0).await.finish().await;
    assert_eq!(late.result.status, StepStatus::TimedOut, "{:?}", late.result);
    tools.text(json!({"tool": "list_ports"})).await;
}
