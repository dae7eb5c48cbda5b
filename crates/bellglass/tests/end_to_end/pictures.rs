//! Pictures that tools give, on their way to a model: of files, and of the screen.

use bellglass_protocol::step::decode_base64;
use serde_json::{Value, json};

use crate::scripted::{Reply, Said, Scripted};
use crate::support::hands::{Hands, size_of as size};
use crate::support::{Options, TestServer, step, text};

/// Draws pictures of one colour with nothing but Python's own library.
const DRAW: &str = r#"
import struct, sys, zlib
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
def draw(path, width, height):
    rows = (b"\0" + b"\x10\x80\xf0" * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    open(path, "wb").write(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
"#;

fn say(name: &str, arguments: Value) -> Reply {
    Reply::Say(Said::call(name, arguments))
}

fn draw(what: &str) -> Reply {
    say("python", json!({ "code": format!("{DRAW}{what}"), "fresh": true }))
}

fn finish() -> Reply {
    Reply::Say(Said::finish("Seen."))
}

fn server_with(model: &Scripted, wire: &str) -> TestServer {
    let config =
        format!("[model]\nbase_url = \"{}\"\nwire = \"{wire}\"\nimages = true\n", model.base_url());
    TestServer::with(Options { config: config.leak(), ..Options::default() })
}

/// All pictures in a request, in the words of any provider.
fn pictures(body: &Value) -> Vec<Vec<u8>> {
    match body {
        Value::String(text) => {
            let data = text.strip_prefix("data:image/png;base64,");
            data.map(|data| decode_base64(data).unwrap()).into_iter().collect()
        }
        Value::Object(fields) if fields.get("type") == Some(&json!("base64")) => {
            assert_eq!(fields["media_type"], "image/png");
            vec![decode_base64(text(body, "data")).unwrap()]
        }
        Value::Object(fields) => fields.values().flat_map(pictures).collect(),
        Value::Array(items) => items.iter().flat_map(pictures).collect(),
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn every_wire_shows_a_picture_and_makes_large_ones_fit() {
    for wire in ["chat", "responses", "messages"] {
        let broken = "open('broken.png', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\nnothing')";
        let model = Scripted::start([
            draw(&format!("draw('small.png', 40, 30)\ndraw('large.png', 2000, 1000)\n{broken}")),
            say("read_file", json!({ "path": "small.png" })),
            say("read_file", json!({ "path": "large.png" })),
            say("read_file", json!({ "path": "broken.png" })),
            finish(),
        ])
        .await;
        let server = server_with(&model, wire);
        let job = server.run(&json!({ "task": "Look.", "model": "local/any" })).await;
        assert_eq!(job["status"], "completed", "{wire} {:#}", job["error"]);
        let seen = |request: usize| -> Vec<(u32, u32)> {
            pictures(&model.asked()[request].body).iter().map(|picture| size(picture)).collect()
        };
        assert_eq!((seen(1), seen(2)), (vec![], vec![(40, 30)]), "{wire}");
        assert_eq!(seen(3), [(40, 30), (1516, 758)], "{wire}");
        // What is no picture is said to be none, and costs nothing else.
        assert_eq!(seen(4), [(40, 30), (1516, 758)], "{wire}");
        assert!(model.asked()[4].body.to_string().contains("a picture, cannot be shown"), "{wire}");
        // What was sent stays as it was, for the provider's cache.
        let sent = |request: usize| pictures(&model.asked()[request].body);
        assert_eq!(sent(3), sent(4), "{wire}");
    }
}

#[tokio::test]
async fn points_are_those_of_the_picture_that_the_model_was_given() {
    let model = Scripted::start([
        say("computer", json!({ "action": "screenshot" })),
        say("computer", json!({ "action": "move", "x": 1000, "y": 500 })),
        say("shell", json!({ "command": "xdotool getmouselocation --shell" })),
        say("computer", json!({ "action": "cursor" })),
        finish(),
    ])
    .await;
    let server = server_with(&model, "messages");
    let job = server
        .run(&json!({
            "task": "Point.", "model": "local/any", "desktop": { "width": 2560, "height": 1600 },
        }))
        .await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    // The screen is larger than what models are shown, so the picture was taken smaller.
    let shown = pictures(&model.asked()[1].body);
    assert_eq!(shown.iter().map(|picture| size(picture)).collect::<Vec<_>>(), [(1356, 847)]);
    assert!(text(step(&job, 1), "output").contains("1356x847"), "{:#}", step(&job, 1));
    // What the model calls 1000, 500 lies there on the screen, within a pixel of the picture.
    let place = text(step(&job, 3), "stdout");
    let coordinate = |name: &str| -> f64 {
        let line = place.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.parse().unwrap()
    };
    let scale = 2560.0 / 1356.0;
    assert!((coordinate("X=") - 1000.5 * scale).abs() <= 1.0, "{place}");
    assert!((coordinate("Y=") - 500.5 * 1600.0 / 847.0).abs() <= 1.0, "{place}");
    assert!(text(step(&job, 4), "output").contains("1000"), "{:#}", step(&job, 4));
}

#[tokio::test]
async fn old_pictures_are_left_out_first_and_can_be_seen_again() {
    let all = (0..26).fold(Said::default(), |said, n| {
        said.and_call("read_file", json!({ "path": format!("{n}.png") }))
    });
    let model = Scripted::start([
        draw("[draw(f'{n}.png', 10 + n, 10) for n in range(26)]"),
        Reply::Say(all),
        say("read_history", json!({ "from": 1, "to": 1000 })),
        finish(),
    ])
    .await;
    let server = server_with(&model, "responses");
    let job = server.run(&json!({ "task": "Look at much.", "model": "local/any" })).await;
    assert_eq!(job["status"], "completed", "{:#}", job["error"]);
    let widths = |request: usize| -> Vec<u32> {
        pictures(&model.asked()[request].body).iter().map(|picture| size(picture).0).collect()
    };
    assert_eq!(widths(2), [32, 33, 34, 35], "the newest stay");
    assert_eq!(widths(3), [32, 33, 34, 35, 10, 11, 12, 13], "the first of the range are back");
    let compacted = server.wait_for(text(&job, "job_id"), "context.compacted").await;
    let compaction = &compacted["compaction"];
    assert_eq!(compaction["pictures"].as_array().unwrap().len(), 22, "{compaction:#}");
    // No word of the conversation had to go.
    assert_eq!((&compaction["trimmed"], &compaction["summary"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn a_large_window_is_shown_in_a_size_that_models_are_shown_as_it_is() {
    let server = TestServer::start();
    let screen = json!({ "width": 1920, "height": 1080 });
    let hands = Hands::start(&server, json!({ "desktop": screen })).await;
    hands
        .shell(
            "setsid xterm -T large -geometry 280x70+30+20 -e sleep 10000 >/dev/null 2>&1 & \
             until xdotool search --onlyvisible --name large > window 2>/dev/null; do sleep 0.05; done",
        )
        .await;
    hands.still().await;
    let window: u32 = hands.shell("cat window").await.trim().parse().unwrap();
    // xdotool would count the frame that the window manager gives it twice.
    let geometry = hands.shell("xwininfo -id $(cat window)").await;
    let of_window = |name: &str| -> u32 {
        let line = geometry.lines().find_map(|line| line.trim().strip_prefix(name));
        line.unwrap().trim().parse().unwrap()
    };
    let (width, height) = (of_window("Width:"), of_window("Height:"));
    let fitting = bellglass_protocol::picture::fitting(width, height);
    assert!(fitting.0 < width, "the window must be too large: {geometry}");
    for (tool, call) in [
        ("screenshot", json!({ "window": window })),
        ("screenshot", json!({ "window": window, "max_width": 5000 })),
        ("computer", json!({ "action": "screenshot", "window": window })),
    ] {
        let shot = hands.call(tool, call).await;
        assert_eq!(size(&shot.pictures[0]), fitting, "{}", shot.text);
        let said = format!(": {}x{} pixels", fitting.0, fitting.1);
        assert!(shot.text.contains(&said), "{}", shot.text);
    }
    // A point of that picture, on the screen.
    hands.computer("move", json!({ "x": 700, "y": 300 })).await;
    let place = hands.shell("xdotool getmouselocation --shell").await;
    let coordinate = |name: &str| -> f64 {
        place.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
    };
    let on_screen = |origin: &str, at: f64, whole: u32, shown: u32| {
        f64::from(of_window(origin)) + (at + 0.5) * f64::from(whole) / f64::from(shown)
    };
    assert!(
        (coordinate("X=") - on_screen("Absolute upper-left X:", 700.0, width, fitting.0)).abs()
            <= 1.0,
        "{place}"
    );
    assert!(
        (coordinate("Y=") - on_screen("Absolute upper-left Y:", 300.0, height, fitting.1)).abs()
            <= 1.0,
        "{place}"
    );
    // A person who takes one gets it whole.
    let job = hands.end().await;
    assert_eq!(job["status"], "completed");
    let steps = json!([{ "tool": "screenshot" }]);
    let job = server.run(&json!({ "desktop": screen, "steps": steps })).await;
    assert!(text(step(&job, 1), "output").starts_with("screenshot 1: 1920x1080 pixels"), "{job:#}");
}
