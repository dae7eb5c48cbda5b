//! Commands as a person has them: in a terminal, and with a browser.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::screen::Screen;
use crate::support::{TestServer, bellglass, shell, signal, wait_for_go};

fn command(server: &TestServer, arguments: &[&str]) -> Command {
    let mut command = bellglass(server.folder());
    command.args(arguments).env("BELLGLASS_SERVER", server.url("")).env_remove("NO_COLOR");
    command
}

async fn output(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

#[tokio::test]
async fn attach_takes_every_key_and_gives_the_terminal_back() {
    let server = TestServer::start();
    let job = server.submit(&json!({ "steps": [wait_for_go()] })).await;
    server.wait_for_step(&job, "step.started", 1).await;
    let (mut screen, mut attached) = Screen::start(command(&server, &["attach", &job]), 90, 30);
    screen.shows("ctrl-] leaves").await;
    assert!(!screen.is_usual(), "keys are taken one by one");
    screen.types("stty size; echo sum-$((40 + 2))\n");
    assert!(screen.shows("sum-42").await.contains("30 90"));
    // What ends a program ends the one inside.
    screen.types("echo rea''dy; cat\n");
    screen.shows("ready").await;
    screen.types("\x03");
    screen.shows("^C").await;
    screen.types("echo still-$((6 * 7))\n");
    screen.shows("still-42").await;
    screen
        .types("until stty size | grep -q '40 100'; do sleep 0.02; done; echo grown-$((6 * 7))\n");
    screen.resize(100, 40);
    signal(attached.id() as i32, Signal::WINCH);
    screen.shows("grown-42").await;
    screen.types("\x1d");
    screen.shows(&format!("left {job}")).await;
    let ended = tokio::task::spawn_blocking(move || attached.wait().unwrap()).await.unwrap();
    assert!(ended.success(), "{ended}");
    assert!(screen.is_usual(), "the terminal is in order again");
    server.let_go(&job).await;
    server.wait_for_end(&job).await;
}

const ERASE: &str = "\r\x1b[2K";

/// The lines of progress that were drawn.
fn drawn(shown: &str) -> Vec<&str> {
    let coloured = shown.split("\x1b[36m").skip(1);
    let lines = coloured.filter_map(|rest| rest.split_once("\x1b[0m"));
    lines.map(|(line, _)| line).filter(|line| line.starts_with(['━', '╌'])).collect()
}

#[tokio::test]
async fn logs_show_how_far_a_job_is_and_leave_nothing_of_it_behind() {
    let server = TestServer::start();
    let colourful = shell(r"printf '\033[31mred\033[0m\r\033[Kover\n'");
    let job = server.submit(&json!({ "steps": [colourful, wait_for_go()] })).await;
    server.wait_for_step(&job, "step.started", 2).await;
    let follow = || command(&server, &["logs", "-f", &job]);
    let (mut wide, mut following) = Screen::start(follow(), 120, 30);
    let (mut narrow, mut also_following) = Screen::start(follow(), 20, 30);
    wide.shows("1 of 2 steps; the job works\x1b[0m").await;
    narrow.shows("▶ 2/2").await;
    server.let_go(&job).await;
    server.wait_for_end(&job).await;
    for (screen, columns) in [(wide, 120), (narrow, 20)] {
        let shown = screen.shows_at_the_end().await;
        let drawn = drawn(&shown);
        assert!(drawn.len() > 3, "{shown:?}");
        for line in drawn {
            assert!(line.chars().count() <= columns, "{line}");
            assert!(shown.contains(&format!("{line}\x1b[0m{ERASE}")), "{line:?} stays: {shown:?}");
        }
        // In colours of ours, and none of the program's.
        assert!(shown.contains("    over\r\n") && !shown.contains("\x1b[31mred"), "{shown:?}");
        assert!(shown.trim_end().ends_with("job completed\x1b[0m"), "{shown:?}");
    }
    for child in [&mut following, &mut also_following] {
        assert!(child.wait().unwrap().success());
    }
}

#[tokio::test]
async fn open_does_not_wait_for_the_browser() {
    let server = TestServer::start();
    let job = server.submit(&json!({ "steps": [shell("true")] })).await;
    let url = server.url(&format!("/watch/{job}"));
    let browser = server.folder().join("browser");
    fs::write(
        &browser,
        "#!/bin/sh\necho \"$1\" >> opened\nuntil [ -e enough ]; do sleep 0.02; done\ntouch closed\n",
    )
    .unwrap();
    fs::set_permissions(&browser, fs::Permissions::from_mode(0o755)).unwrap();
    let with = |arguments: &[&str], browser: &str| {
        let mut command = command(&server, arguments);
        command.env("BROWSER", browser);
        output(command)
    };
    let browser = browser.to_str().unwrap();
    let opened = with(&["open", &job], browser).await;
    assert!(opened.status.success(), "{opened:?}");
    assert_eq!(String::from_utf8_lossy(&opened.stdout), format!("{url}\n"));
    assert!(!server.folder().join("closed").exists(), "somebody still looks at it");
    let said = async |arguments: &[&str], browser: &str| {
        let output = with(arguments, browser).await;
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let said_of = |opened: bool| json!({ "url": url, "opened": opened });
    assert_eq!(said(&["open", &job, "--json"], browser).await, said_of(true));
    assert_eq!(said(&["open", &job, "--json", "--print"], browser).await, said_of(false));
    assert_eq!(said(&["open", &job, "--json"], "true").await, said_of(true));
    assert_eq!(said(&["open", &job, "--json"], "no-such-browser").await, said_of(false));
    let seen = fs::read_to_string(server.folder().join("opened")).unwrap();
    assert_eq!(seen, format!("{url}\n{url}\n"));
    fs::write(server.folder().join("enough"), "").unwrap();
    while !server.folder().join("closed").exists() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.wait_for_end(&job).await;
}
