//! The desktop: real programs on a real X server, worked on by pointer and keyboard.

use serde_json::{Value, json};

use crate::levels::has_gvisor;
use crate::support::hands::{Hands, size_of, with_action};
use crate::support::{TestServer, archive, shell, step, text, wait_for_go};

fn computer(action: &str, more: Value) -> Value {
    let mut call = json!({ "tool": "computer", "action": action });
    for (field, value) in more.as_object().unwrap() {
        call[field] = value.clone();
    }
    call
}

fn still() -> Value {
    computer("wait_for_stability", json!({ "seconds": 0.4, "timeout": 30 }))
}

/// Starts a program on the desktop and returns once its window is there.
fn window_of(program: &str, name: &str) -> Value {
    // A search that meets a window which is just going fails, and is made again.
    let wait =
        format!("until xdotool search --onlyvisible --{name} >/dev/null 2>&1; do sleep 0.1; done");
    json!({
        "tool": "shell", "timeout": 60,
        "command": format!("setsid {program} >/dev/null 2>&1 & {wait}"),
    })
}

fn assert_all_succeeded(job: &Value) {
    for step in job["steps"].as_array().unwrap() {
        assert_eq!(text(step, "status"), "succeeded", "{step:#}");
    }
}

/// Width and height as a PNG's header says.
async fn size_of_picture(server: &TestServer, job: &Value, n: usize) -> (u32, u32) {
    let id = text(job, "job_id");
    let picture = server.get(&format!("/jobs/{id}/steps/{n}/attachments/1")).await;
    assert_eq!(picture.headers()["content-type"], "image/png");
    let picture = picture.bytes().await.unwrap();
    assert!(picture.starts_with(b"\x89PNG\r\n\x1a\n"));
    let number = |at: usize| u32::from_be_bytes(picture[at..at + 4].try_into().unwrap());
    (number(16), number(20))
}

const POEM: &str = "Γειά σου Κόσμε, 你好世界, 🎉🦀 naïve café — done";

#[tokio::test]
async fn screenshots_windows_menus_and_the_clipboard_work() {
    let server = TestServer::start();
    let job = server
        .run(&json!({ "desktop": { "width": 1000, "height": 700 }, "steps": [
            computer("screenshot", json!({})),
            computer("screenshot", json!({ "region": { "x": 900, "y": 600, "width": 500, "height": 50 } })),
            computer("screenshot", json!({ "max_width": 250 })),
            // In the picture, which is a quarter of the screen.
            computer("move", json!({ "x": 100, "y": 50 })),
            json!({ "tool": "xdot", "command": "getmouselocation" }),
            computer("cursor", json!({})),
            json!({ "tool": "xdot", "command": "mousemove 12 34\ngetmouselocation" }),
            computer("set_clipboard", json!({ "text": POEM })),
            shell("xclip -o -selection clipboard; echo 'from xclip ☂' | xclip -selection clipboard"),
            computer("get_clipboard", json!({})),
            computer("screenshot", json!({})),
            // The menu of the desktop: its first entry opens a terminal.
            computer("right_click", json!({ "x": 600, "y": 300 })),
            still(),
            computer("click", json!({ "x": 620, "y": 308 })),
            shell("timeout 30 xdotool search --sync --onlyvisible --class xterm > window; cat window"),
            still(),
            computer("windows", json!({})),
            shell("xdotool windowmove --sync $(cat window) 100 100; xdotool getwindowgeometry $(cat window)"),
            still(),
            computer("drag", json!({ "x": 300, "y": 109, "to_x": 400, "to_y": 209 })),
            still(),
            shell("xdotool getwindowgeometry $(cat window)"),
            computer("key", json!({ "keys": "alt+F4" })),
            computer("wait_for_change", json!({ "timeout": 0.4 })),
        ]}))
        .await;
    assert_eq!(job["status"], "completed", "{job:#}");
    assert_eq!(size_of_picture(&server, &job, 1).await, (1000, 700));
    assert!(
        text(step(&job, 1), "output")
            .starts_with("screenshot 1: 1000x700 pixels, scale 1.000, origin 0,0")
    );
    assert_eq!(size_of_picture(&server, &job, 2).await, (100, 50));
    assert!(text(step(&job, 2), "output").contains("origin 900,600"));
    assert_eq!(size_of_picture(&server, &job, 3).await, (250, 175));
    assert!(text(step(&job, 5), "stdout").starts_with("x:402 y:202 "), "{:#}", step(&job, 5));
    assert_eq!(text(step(&job, 6), "output"), "the pointer is at 100,50");
    assert!(text(step(&job, 7), "stdout").starts_with("x:12 y:34 "), "{:#}", step(&job, 7));
    assert_eq!(text(step(&job, 9), "stdout"), POEM);
    assert_eq!(text(step(&job, 10), "output"), "from xclip ☂\n", "{:#}", step(&job, 10));
    assert!(text(step(&job, 17), "output").contains("(XTerm), "), "{:#}", step(&job, 17));
    assert!(text(step(&job, 17), "output").contains(", active"));
    let place = |n: usize| {
        let words = text(step(&job, n), "stdout").to_owned();
        let at = words.split("Position: ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        let (x, y) = at.split_once(',').unwrap();
        (x.parse::<i32>().unwrap(), y.parse::<i32>().unwrap())
    };
    let (before, after) = (place(18), place(22));
    assert_eq!((after.0 - before.0, after.1 - before.1), (100, 100), "{before:?} {after:?}");
}

#[tokio::test]
async fn a_form_is_filled_in_chromium() {
    let page = r#"<!doctype html><meta charset=utf-8><title>form</title><body style="margin:0">
<input id=name style="position:fixed;left:50px;top:50px;width:400px;height:40px">
<input id=day type=date style="position:fixed;left:50px;top:120px;width:200px;height:40px">
<input id=many type=range min=0 max=100 value=0 style="position:fixed;left:50px;top:200px;width:400px;height:40px">
<button style="position:fixed;left:50px;top:280px;width:100px;height:40px"
 onclick="document.title=['sent',name_.value,day.value,many.value].join('|')">Send</button>
<script>const name_=document.getElementById('name')</script>"#;
    let server = TestServer::start();
    let chromium = "chromium --kiosk --user-data-dir=/tmp/profile file:///workspace/form.html";
    let job = server
        .run(&json!({
            "desktop": true,
            "files": [{ "path": "form.html", "content": page }],
            "limits": { "step_time": "3m" },
            "steps": [
                window_of(chromium, "name form"),
                still(),
                computer("click", json!({ "x": 200, "y": 70 })),
                still(),
                computer("type", json!({ "text": "Ada Λόβλεϊς 艾达 🦋" })),
                computer("click", json!({ "x": 65, "y": 140 })),
                still(),
                computer("type", json!({ "text": "12242026" })),
                computer("drag", json!({ "x": 58, "y": 220, "to_x": 440, "to_y": 220 })),
                still(),
                computer("click", json!({ "x": 100, "y": 300 })),
                shell("timeout 60 xdotool search --sync --name '^sent' getwindowname"),
                computer("screenshot", json!({ "max_width": 640 })),
                json!({ "tool": "list_ports" }),
            ]
        }))
        .await;
    assert_eq!(job["status"], "completed", "{job:#}");
    let title = text(step(&job, 12), "stdout");
    assert!(
        title.starts_with("sent|Ada Λόβλεϊς 艾达 🦋|2026-12-24|"),
        "{title:?} {:#}",
        step(&job, 5)
    );
    let slider = title.trim().rsplit('|').next().unwrap().split(' ').next().unwrap();
    assert!(slider.parse::<u32>().unwrap() > 80, "{title}");
    assert_eq!(size_of_picture(&server, &job, 13).await, (640, 400));
    assert_eq!(text(step(&job, 14), "output"), "nothing listens\n", "the desktop opens no port");
}

#[tokio::test]
async fn a_day_is_picked_a_menu_opened_and_a_thing_dragged_in_chromium() {
    // Each thing says in the title that it was done, so that nobody has to look at pixels.
    let page = r#"<!doctype html><meta charset=utf-8><title>form</title><body style="margin:0">
<style>* { position: fixed; left: 50px; height: 40px }</style>
<input id=day type=date value=2026-12-24 style="top:50px;width:200px" onchange="tell('picked', day.value)">
<div style="top:150px;width:200px;background:#cdf" oncontextmenu="event.preventDefault();tell('menu', event.button)">here</div>
<div draggable=true style="top:250px;width:100px;background:#fdc"
 ondragstart="event.dataTransfer.setData('text/plain', 'a παγόνι 🦚')">take</div>
<div style="top:250px;left:400px;width:200px;background:#dfc" ondragover="event.preventDefault()"
 ondrop="event.preventDefault();tell('dropped', event.dataTransfer.getData('text/plain'))">put</div>
<script>const tell = (...words) => document.title = words.join('|')</script>"#;
    let server = TestServer::start();
    let chromium = "chromium --kiosk --user-data-dir=/tmp/profile file:///workspace/form.html";
    let titled = |title: &str| {
        let name = "xdotool getactivewindow getwindowname 2>/dev/null";
        shell(&format!("timeout 60 sh -c 'until {name} | grep ^{title}; do sleep 0.1; done'"))
    };
    let count = "xdotool search --onlyvisible --name '.*' 2>/dev/null | wc -l";
    let job = server
        .run(&json!({
            "desktop": true,
            "files": [{ "path": "form.html", "content": page }],
            "limits": { "step_time": "3m" },
            "steps": [
                window_of(chromium, "name form"),
                still(),
                shell(&format!("{count} > windows")),
                // The picker's own button is at the end of the field; it is a window of its own. The next
                // day is one to the right.
                computer("click", json!({ "x": 236, "y": 70 })),
                shell(&format!("until [ $({count}) -gt $(cat windows) ]; do sleep 0.1; done")),
                still(),
                computer("key", json!({ "keys": "Right Return" })),
                titled("picked"),
                computer("right_click", json!({ "x": 100, "y": 170 })),
                titled("menu"),
                computer("drag", json!({ "x": 100, "y": 270, "to_x": 500, "to_y": 270 })),
                titled("dropped"),
            ]
        }))
        .await;
    assert_eq!(job["status"], "completed", "{job:#}");
    let said = |n: usize| text(step(&job, n), "stdout").to_owned();
    assert!(said(8).starts_with("picked|2026-12-25"), "{job:#}");
    assert!(said(10).starts_with("menu|2"), "{job:#}");
    assert!(said(12).starts_with("dropped|a παγόνι 🦚"), "{job:#}");
    // What the screen showed last is kept with the result.
    let mut archive = server.archive(text(&job, "job_id")).await;
    assert!(archive::content(&mut archive, "desktop.png").starts_with(b"\x89PNG\r\n"));
}

#[tokio::test]
async fn the_desktop_works_on_gvisors_kernel_and_starts_when_it_is_needed() {
    let server = TestServer::start();
    if !has_gvisor(&server).await {
        return;
    }
    let steps = [
        computer("screenshot", json!({})),
        computer("move", json!({ "x": 30, "y": 40 })),
        json!({ "tool": "xdot", "command": "getmouselocation" }),
    ];
    let job =
        server.run(&json!({ "isolation": "gvisor", "image": "desktop", "steps": steps })).await;
    assert_all_succeeded(&job);
    assert_eq!(size_of_picture(&server, &job, 1).await, (1280, 800));
    assert!(text(step(&job, 3), "stdout").starts_with("x:30 y:40 "));
}

#[tokio::test]
async fn the_desktop_starts_when_it_is_needed_and_not_before() {
    let server = TestServer::start();
    let look = shell("pgrep -c 'Xtigervnc|Xvnc|openbox'; echo display=$DISPLAY");
    let steps = [look.clone(), json!({ "tool": "screenshot" }), look];
    let job = server.run(&json!({ "image": "desktop", "steps": steps })).await;
    assert_all_succeeded(&job);
    assert_eq!(text(step(&job, 1), "stdout"), "0\ndisplay=\n");
    assert_eq!(size_of_picture(&server, &job, 2).await, (1280, 800));
    assert_eq!(text(step(&job, 3), "stdout"), "2\ndisplay=:0\n");
}

#[tokio::test]
async fn a_desktop_that_takes_the_place_of_a_broken_one_is_as_large() {
    let server = TestServer::start();
    let steps = [
        shell("pkill -9 Xtigervnc; while pgrep Xtigervnc >/dev/null; do sleep 0.05; done"),
        computer("screenshot", json!({})),
    ];
    let screen = json!({ "width": 1000, "height": 700 });
    let job = server.run(&json!({ "desktop": screen, "steps": steps })).await;
    assert_all_succeeded(&job);
    assert_eq!(size_of_picture(&server, &job, 2).await, (1000, 700));
}

#[tokio::test]
async fn what_waits_in_xdotool_for_ever_ends_with_its_time() {
    let server = TestServer::start();
    let xdot = |command: &str, timeout: u32| json!({ "tool": "xdot", "command": command, "timeout": timeout });
    // It waits for the pointer to move, which is there already.
    let steps = [
        xdot("mousemove 70 80", 30),
        xdot("mousemove --sync 70 80", 2),
        xdot("getmouselocation", 30),
    ];
    let job = server.run(&json!({ "desktop": true, "steps": steps })).await;
    assert_eq!(text(step(&job, 2), "status"), "timed_out", "{job:#}");
    assert!(text(step(&job, 3), "stdout").starts_with("x:70 y:80 "), "{job:#}");
}

/// Seizes the screen as X programs can, until a file says that it is enough.
const SEIZE: &str = r#"
import os, socket, struct, time
screen = socket.socket(socket.AF_UNIX)
screen.connect('/tmp/.X11-unix/X0')
screen.sendall(struct.pack('<BxHHHHxx', ord('l'), 11, 0, 0, 0))
screen.recv(65536)
grab, ask = struct.pack('<BxH', 36, 1), struct.pack('<BxH', 43, 1)
screen.sendall(grab + ask)
screen.recv(32)
open('seized', 'w').close()
while not os.path.exists('enough'):
    time.sleep(0.01)
"#;

#[tokio::test]
async fn the_pointer_of_a_seized_screen_moves_when_it_is_let_go() {
    let server = TestServer::start();
    let steps = [
        // The very first that is done with the pointer comes when the screen is seized.
        shell(&format!(
            "setsid python3 -c \"{SEIZE}\" >/dev/null 2>&1 & until [ -e seized ]; do sleep 0.01; done"
        )),
        computer("move", json!({ "x": 33, "y": 44 })),
        // Who wants to know has to wait, and does so no longer than it may.
        computer("cursor", json!({ "timeout": 1 })),
        computer("click", json!({ "x": 50, "y": 60, "timeout": 1 })),
        shell("touch enough; while pgrep -f 'path.exist[s]' >/dev/null; do sleep 0.01; done"),
        computer("cursor", json!({})),
    ];
    let job = server.run(&json!({ "desktop": true, "steps": steps })).await;
    let status = |n: usize| text(step(&job, n), "status").to_owned();
    assert_eq!(
        [2, 3, 4, 5].map(status),
        ["succeeded", "timed_out", "timed_out", "succeeded"],
        "{job:#}"
    );
    assert_eq!(text(step(&job, 6), "output"), "the pointer is at 50,60", "{job:#}");
}

#[tokio::test]
async fn a_seized_screen_leaves_hands_for_everything_else() {
    let server = TestServer::start();
    let files = json!([{ "path": "seize.py", "content": SEIZE }]);
    let hands = Hands::start(&server, json!({ "desktop": true, "files": files })).await;
    hands
        .shell("setsid python3 seize.py >/dev/null 2>&1 & until [ -e seized ]; do sleep 0.01; done")
        .await;
    // More than the guest has threads, each of which could be kept until the screen is let go.
    for _ in 0..9 {
        let call = || hands.call("computer", with_action("cursor", json!({ "timeout": 0.1 })));
        let late = futures::future::join_all((0..8).map(|_| call())).await;
        assert!(late.iter().all(|late| late.text.contains("timed_out")), "{late:?}");
    }
    let listed = hands.succeed("list_files", json!({})).await;
    assert!(listed.contains("seize.py"), "{listed}");
    hands.succeed("list_ports", json!({})).await;
    hands.shell("touch enough; while pgrep -f 'seize[.]py' >/dev/null; do sleep 0.01; done").await;
    hands.computer("cursor", json!({})).await;
    hands.end().await;
}

#[tokio::test]
async fn what_others_look_at_does_not_move_what_the_job_points_at() {
    let server = TestServer::start();
    let steps = [
        computer("screenshot", json!({ "max_width": 640 })),
        wait_for_go(),
        computer("move", json!({ "x": 100, "y": 50 })),
        json!({ "tool": "xdot", "command": "getmouselocation" }),
    ];
    let job = server.submit(&json!({ "desktop": true, "steps": steps })).await;
    server.wait_for_step(&job, "step.started", 2).await;
    let hands = Hands::beside(&server, &job);
    let region = json!({ "x": 500, "y": 400, "width": 100, "height": 100 });
    let shot = hands.computer("screenshot", json!({ "region": region })).await;
    assert!(shot.starts_with("screenshot 1: 100x100 pixels"), "{shot}");
    hands.computer("move", json!({ "x": 7, "y": 9 })).await;
    let place = hands.succeed("xdot", json!({ "command": "getmouselocation" })).await;
    assert!(place.starts_with("x:507 y:409 "), "{place}");
    let job = hands.end().await;
    assert_all_succeeded(&job);
    // Of its own picture, which is half as large as the screen.
    assert!(text(step(&job, 4), "stdout").starts_with("x:201 y:101 "), "{:#}", step(&job, 4));
}

/// Gives the screen another size, as programs can that want all of it.
const RESIZE: &str = r#"
import socket, struct, sys
wanted = tuple(map(int, sys.argv[1:]))
screen = socket.socket(socket.AF_UNIX)
screen.connect('/tmp/.X11-unix/X0')
def read(length):
    data = b''
    while len(data) < length:
        data += screen.recv(length - len(data))
    return data
def ask(request):
    screen.sendall(request)
    head = read(32)
    assert head[0] == 1, head
    return head + read(4 * struct.unpack('<I', head[4:8])[0])
screen.sendall(struct.pack('<BxHHHHxx', ord('l'), 11, 0, 0, 0))
about = read(4 * struct.unpack('<H', read(8)[6:8])[0])
vendor, formats = struct.unpack('<H', about[16:18])[0], about[21]
root = about[32 + (vendor + 3) // 4 * 4 + 8 * formats:][:4]
randr = ask(struct.pack('<BxHHxx', 98, 4, 5) + b'RANDR\0\0\0')[9]
ask(struct.pack('<BBHII', randr, 0, 3, 1, 1))
info = ask(struct.pack('<BBH', randr, 5, 2) + root)
count = struct.unpack('<H', info[20:22])[0]
sizes = [struct.unpack('<HH', info[32 + 8 * n:36 + 8 * n]) for n in range(count)]
change = root + struct.pack('<I', 0) + info[16:20] + struct.pack('<HHHxx', sizes.index(wanted), 1, 0)
assert ask(struct.pack('<BBH', randr, 2, 6) + change)[1] == 0
"#;

#[tokio::test]
async fn a_screen_that_programs_make_smaller_and_larger_is_shown_as_it_is() {
    let server = TestServer::start();
    let files = json!([{ "path": "resize.py", "content": RESIZE }]);
    let steps = [
        shell("python3 resize.py 800 600"),
        computer("screenshot", json!({})),
        shell("python3 resize.py 1600 1200"),
        computer("screenshot", json!({})),
    ];
    let screen = json!({ "width": 1000, "height": 700 });
    let job = server.run(&json!({ "desktop": screen, "files": files, "steps": steps })).await;
    assert_all_succeeded(&job);
    assert_eq!(size_of_picture(&server, &job, 2).await, (800, 600));
    assert_eq!(size_of_picture(&server, &job, 4).await, (1600, 1200));
    let mut archive = server.archive(text(&job, "job_id")).await;
    assert_eq!(size_of(&archive::content(&mut archive, "desktop.png")), (1600, 1200));
}

#[tokio::test]
async fn the_file_manager_shows_the_workspace() {
    let server = TestServer::start();
    let files = json!([{ "path": "hats/bowler.txt", "content": "round" }]);
    let hands = Hands::start(&server, json!({ "desktop": true, "files": files })).await;
    let open = window_of("pcmanfm /workspace/hats", "class pcmanfm");
    hands.shell(text(&open, "command")).await;
    hands.still().await;
    let windows = hands.computer("windows", json!({})).await;
    let line = windows.lines().find(|line| line.contains("(Pcmanfm)")).expect(&windows);
    assert!(line.contains("\"hats\"") && line.ends_with(", active"), "{line}");
    let id: u32 = line.split(' ').next().unwrap().parse().unwrap();
    let shot = hands.call("computer", with_action("screenshot", json!({ "window": id }))).await;
    let picture = image::load_from_memory(&shot.pictures[0]).unwrap().to_rgb8();
    let colours: std::collections::HashSet<_> = picture.pixels().map(|pixel| pixel.0).collect();
    assert!(colours.len() > 20, "it shows nothing: {colours:?}");
    hands.end().await;
}

#[tokio::test]
async fn the_keymap_that_is_ready_is_the_one_that_would_be_made() {
    let server = TestServer::start();
    let compile = "xkbcomp -w 1 -R/usr/share/X11/xkb -xkm - -em1 a -emp b -eml c";
    let steps = [
        // It changes to its own folder.
        shell(&format!("{compile} /tmp/ready.xkm < /usr/lib/bellglass/keymap")),
        shell("cmp /tmp/ready.xkm /usr/lib/bellglass/keymap.xkm"),
        shell(&format!("/usr/lib/bellglass/{compile} /tmp/made.xkm < /usr/lib/bellglass/keymap")),
        shell(
            "for map in ready made; do xkbcomp -w 0 -xkb /tmp/$map.xkm /tmp/$map.txt; done; cmp /tmp/ready.txt /tmp/made.txt",
        ),
        // Whoever wants another gets that.
        shell(&format!("sed s/us+/de+/ /usr/lib/bellglass/keymap | {compile} /tmp/other.xkm")),
        shell("xkbcomp -w 0 -xkb /tmp/other.xkm - | grep -c udiaeresis"),
    ];
    let job = server.run(&json!({ "image": "desktop", "steps": steps })).await;
    assert_all_succeeded(&job);
}

#[tokio::test]
async fn an_image_without_a_desktop_says_so() {
    let server = TestServer::start();
    let job = server.run(&json!({ "steps": [computer("screenshot", json!({}))] })).await;
    let refused = &step(&job, 1)["error"];
    assert_eq!(text(refused, "code"), "no_desktop");
    assert!(text(refused, "message").contains("bellglass image build desktop"));
}
