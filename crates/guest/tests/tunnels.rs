//! Streams into a sandbox: to ports, to terminals; how many, and where they must not lead.

mod support;

use std::time::Duration;

use bellglass_protocol::tunnel::{AppPort, Inside, MAX_TUNNELS, Terminal, TerminalSize};
use bellglass_protocol::wire::{EGRESS_PORT, Frame, Receipt, Reply, Request};
use serde_json::json;
use support::{Client, Exchange, PATIENCE, TestGuest, eventually, runs};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

fn port(port: u16) -> Request {
    Request::Connect { to: Inside::Port { port: AppPort::try_from(port).unwrap() } }
}

/// A program that sends back what it gets, and closes when its peer does.
async fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = stream.split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
                let _ = to.shutdown().await;
            });
        }
    });
    port
}

#[tokio::test]
async fn bytes_reach_a_port_and_come_back_whole() {
    let guest = TestGuest::start();
    let client = guest.connect().await;
    let mut exchange = client.ask(&port(echo().await)).await;
    assert!(matches!(exchange.reply().await, Reply::Ok));
    let stream = exchange.wire.into_inner();
    let (mut from, mut to) = tokio::io::split(stream);
    let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    let sending = sent.clone();
    let writing = tokio::spawn(async move {
        to.write_all(&sending).await.unwrap();
        to.shutdown().await.unwrap();
    });
    let mut got = Vec::new();
    tokio::time::timeout(PATIENCE, from.read_to_end(&mut got)).await.unwrap().unwrap();
    writing.await.unwrap();
    assert!(got == sent);
}

#[tokio::test]
async fn a_port_on_which_nothing_listens_is_an_error() {
    let guest = TestGuest::start();
    let client = guest.connect().await;
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let error = client.ask(&port(free)).await.error().await;
    assert_eq!(error.code, "nothing_listens");
}

#[tokio::test]
async fn the_port_that_leads_out_cannot_be_named() {
    let guest = TestGuest::start();
    let client = guest.connect().await;
    let request = json!({"request": "connect", "to": {"inside": "port", "port": EGRESS_PORT}});
    let mut exchange = client.open().await;
    exchange.send(&request).await;
    assert_eq!(exchange.error().await.code, "bad_request");
}

#[tokio::test]
async fn so_many_streams_and_no_more() {
    let guest = TestGuest::start();
    let client = guest.connect().await;
    let port_of_echo = echo().await;
    let mut open = Vec::new();
    for _ in 0..MAX_TUNNELS {
        let mut exchange = client.ask(&port(port_of_echo)).await;
        assert!(matches!(exchange.reply().await, Reply::Ok));
        open.push(exchange);
    }
    let error = client.ask(&port(port_of_echo)).await.error().await;
    assert_eq!(error.code, "too_many_connections");
    // A tool runs all the same, and who leaves makes room.
    assert_eq!(client.shell(1, "echo fine").await.stdout(), "fine\n");
    open.clear();
    loop {
        match client.reply(&port(port_of_echo)).await {
            Reply::Ok => break,
            Reply::Error { .. } => tokio::time::sleep(Duration::from_millis(5)).await,
            other => panic!("{other:?}"),
        }
    }
}

async fn open_shell(client: &Client, columns: u16, rows: u16) -> Exchange {
    let terminal = Terminal::Shell { size: TerminalSize { columns, rows } };
    let mut exchange = client.ask(&Request::OpenTerminal { terminal }).await;
    let Reply::Terminal { size } = exchange.reply().await else { panic!() };
    assert_eq!(size, TerminalSize { columns, rows });
    exchange
}

/// Takes what is shown until it has this in it.
async fn shows(exchange: &mut Exchange, words: &str) -> String {
    let mut shown = String::new();
    while !shown.contains(words) {
        match exchange.frame().await {
            Some(Frame::Output(_, piece)) => shown.push_str(&String::from_utf8_lossy(&piece)),
            other => panic!("no output but {other:?} after {shown}"),
        }
    }
    shown
}

#[tokio::test]
async fn a_person_types_in_a_shell_that_has_the_size_of_the_window() {
    let guest = TestGuest::start();
    let client = guest.connect().await;
    let mut shell = open_shell(&client, 91, 17).await;
    shell.data(b"echo $(stty size) $([ -t 0 ] && echo a-$TERM)\n").await;
    shows(&mut shell, "17 91 a-xterm-256color").await;
    let size = TerminalSize { columns: 100, rows: 30 };
    shell.send(&Receipt::Resized { size }).await;
    shell.data(b"stty size\n").await;
    shows(&mut shell, "30 100").await;
    shell.data(b"exit\n").await;
    loop {
        match shell.frame().await.expect("an end is said") {
            Frame::Output(..) => {}
            Frame::Message(text) => {
                assert!(matches!(Reply::parse(&text).unwrap(), Reply::End));
                break;
            }
            frame @ Frame::Data(_) => panic!("{frame:?}"),
        }
    }
}

#[tokio::test]
async fn ctrl_c_reaches_a_program_whose_output_nobody_takes() {
    let guest = TestGuest::start();
    let client = guest.connect().await;
    let mut shell = open_shell(&client, 80, 24).await;
    shell.data(b"yes on-and-on\n").await;
    shows(&mut shell, "on-and-on\r\non-and-on").await;
    // Nothing is read meanwhile, so all that can be on its way is on its way.
    shell.data(b"\x03").await;
    shell.data(b"echo sum-$((40 + 2))\n").await;
    shows(&mut shell, "sum-42").await;
}

#[tokio::test]
async fn a_shell_goes_with_its_stream_and_so_does_what_it_started() {
    let guest = TestGuest::start();
    let client = guest.connect().await;
    let mut shell = open_shell(&client, 80, 24).await;
    shell.data(b"setsid sleep 98765.4 & echo up-$((1 + 1))\n").await;
    shows(&mut shell, "up-2").await;
    // A process that becomes another program has no command line for a moment, and would seem to be gone.
    eventually("it runs", || runs("98765.4") && !runs("setsid\0sleep\098765.4")).await;
    drop(shell);
    eventually("what the shell started is gone", || !runs("98765.4")).await;
}

#[tokio::test]
async fn a_session_is_watched_and_typed_into_and_goes_on() {
    let guest = TestGuest::start();
    let client = guest.connect().await;
    let command = "echo before; read -r line; echo got-$line";
    let call = json!({
        "tool": "shell", "session": "main", "command": command, "wait_for": {"pattern": "before"},
    });
    client.call(1, call).await;
    let watch = Request::OpenTerminal { terminal: Terminal::Session { name: "main".into() } };
    let mut watching = client.ask(&watch).await;
    assert!(matches!(watching.reply().await, Reply::Terminal { .. }));
    shows(&mut watching, "before").await;
    watching.data(b"typed\n").await;
    shows(&mut watching, "got-typed").await;
    drop(watching);
    // What was typed ended the command, a moment after its words were seen.
    client.call(2, json!({"tool": "wait_for", "session": "main"})).await;
    let again = json!({"tool": "shell", "session": "main", "command": "echo still here"});
    assert!(client.call(3, again).await.stdout().contains("still here"));
    let other = Request::OpenTerminal { terminal: Terminal::Session { name: "other".into() } };
    assert_eq!(client.ask(&other).await.error().await.code, "no_such_session");
}

#[tokio::test]
async fn ports_are_listed() {
    let guest = TestGuest::start();
    let client = guest.connect().await;
    let listening = echo().await;
    let Reply::Ports { ports } = client.reply(&Request::ListPorts).await else { panic!() };
    assert!(ports.iter().any(|port| port.port == listening && port.address == "127.0.0.1"));
}
