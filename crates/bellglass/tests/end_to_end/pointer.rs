//! Clicks of all kinds, the wheel, keys that are held, windows, and waiting for the screen.

use serde_json::json;

use crate::support::TestServer;
use crate::support::hands::{Hands, size_of, with_action};

/// A page that tells what is done to it, and waits for what is yet to come.
const PAGE: &str = r#"<!doctype html><meta charset=utf-8><title>events</title>
<body style="margin:0;width:6000px;height:6000px">
<p style="position:absolute;left:50px;top:50px;margin:0;width:600px;font:30px/40px monospace">alpha beta gamma</p>
<script>
const told = [];
let news = () => {};
const tell = (...words) => { told.push(words.join(' ')); news(); };
const until = async (start) => {
    for (;;) {
        const found = told.find((words) => words.startsWith(start));
        if (found) return found;
        await new Promise((resolve) => news = resolve);
    }
};
const chosen = () => getSelection().toString().trim();
addEventListener('dblclick', () => tell('double', chosen()));
addEventListener('click', (event) => {
    if (event.detail === 3) tell('triple', chosen());
    if (event.ctrlKey) tell('held', event.ctrlKey, event.shiftKey, event.altKey, event.clientX, event.clientY);
});
addEventListener('auxclick', (event) => tell('other', event.button, event.clientX, event.clientY));
addEventListener('contextmenu', (event) => event.preventDefault());
const rolled = [0, 0];
addEventListener('wheel', (event) => {
    rolled[0] += event.deltaX;
    rolled[1] += event.deltaY;
    tell('wheel', Math.sign(event.deltaX), Math.sign(event.deltaY));
});
const rolledTo = async (x, y) => {
    while (rolled[0] !== x || rolled[1] !== y) await new Promise((resolve) => news = resolve);
    return 'there';
};
addEventListener('keydown', (event) => tell(event.repeat ? 'again' : 'down', event.key));
addEventListener('keyup', (event) => tell('up', event.key));
</script>"#;

#[tokio::test]
async fn every_kind_of_click_the_wheel_and_held_keys_arrive_as_what_they_are() {
    let server = TestServer::start();
    let files = json!([{ "path": "events.html", "content": PAGE }]);
    let hands = Hands::start(&server, json!({ "desktop": true, "files": files })).await;
    hands.browser("open", json!({ "url": "file:///workspace/events.html" })).await;
    // From here on, points are points of the page.
    let said = hands.browser("screenshot", json!({})).await;
    assert!(said.starts_with("events\nscreenshot 1: "), "{said}");
    hands.computer("double_click", json!({ "x": 160, "y": 70 })).await;
    assert_eq!(hands.script("until('double')").await, "double beta");
    hands.computer("triple_click", json!({ "x": 260, "y": 70 })).await;
    assert_eq!(hands.script("until('triple')").await, "triple alpha beta gamma");
    hands.computer("middle_click", json!({ "x": 300, "y": 200 })).await;
    assert_eq!(hands.script("until('other 1')").await, "other 1 300 200");
    hands.computer("right_click", json!({ "x": 301, "y": 201 })).await;
    assert_eq!(hands.script("until('other 2')").await, "other 2 301 201");
    let held = json!({ "x": 320, "y": 240, "keys": "ctrl+shift" });
    hands.computer("click", held).await;
    assert_eq!(hands.script("until('held')").await, "held true true false 320 240");
    // How far a notch goes is the browser's to say; as many are told as were asked for, each the right way.
    let scroll = async |direction: &str, amount: u32, script: &str| {
        let scroll = json!({ "x": 300, "y": 300, "direction": direction, "amount": amount });
        hands.computer("scroll", scroll).await;
        hands.script(script).await
    };
    let notch = scroll("down", 1, "until('wheel 0 1').then(() => rolled[1])").await;
    for (direction, right, down) in [("down", 0, 3), ("right", 2, 3), ("up", 2, 1), ("left", 0, 1)]
    {
        let there = format!("rolledTo({right} * {notch}, {down} * {notch})");
        assert_eq!(scroll(direction, 2, &there).await, "there", "{direction}");
    }
    // The keyboard repeats a key for as long as it is down.
    hands.computer("hold_key", json!({ "keys": "j", "seconds": 1.5 })).await;
    assert_eq!(hands.script("until('up j')").await, "up j");
    let keys = hands.script("told.filter((words) => words.endsWith(' j')).join()").await;
    assert!(keys.starts_with("down j,again j,") && keys.ends_with(",up j"), "{keys}");
    hands.end().await;
}

/// A window as `windows` lists it.
#[derive(Debug)]
struct Listed {
    id: u32,
    size: (u32, u32),
    place: (i32, i32),
    active: bool,
}

async fn window(hands: &Hands<'_>, title: &str) -> Listed {
    let list = hands.computer("windows", json!({})).await;
    let line = list.lines().find(|line| line.contains(&format!("\"{title}\""))).expect(&list);
    let numbers = |text: &str, between: char| -> (i32, i32) {
        let (a, b) = text.split_once(between).expect(line);
        (a.parse().expect(line), b.parse().expect(line))
    };
    let (about, place) = line.split_once(" at ").expect(line);
    let (width, height) = numbers(about.rsplit(' ').next().unwrap(), 'x');
    Listed {
        id: line.split(' ').next().unwrap().parse().expect(line),
        size: (width as u32, height as u32),
        place: numbers(place.split(' ').next().unwrap(), ','),
        active: line.ends_with(", active"),
    }
}

/// Opens a terminal of one colour in which a program writes down what is typed.
async fn coloured_terminal(hands: &Hands<'_>, title: &str, colour: &str, place: &str) {
    let reader = format!("touch {title}.ready; cat > {title}.txt");
    hands
        .shell(&format!(
            "setsid xterm -T {title} -bg {colour} -fg {colour} -cr {colour} -geometry 40x12{place} \
             -e '{reader}' >/dev/null 2>&1 & \
             until [ -e {title}.ready ] && xdotool search --onlyvisible --name {title} >/dev/null 2>&1; \
             do sleep 0.05; done"
        ))
        .await;
}

#[tokio::test]
async fn windows_are_brought_to_the_front_moved_and_shown_by_their_numbers() {
    let server = TestServer::start();
    let screen = json!({ "width": 1000, "height": 700 });
    let hands = Hands::start(&server, json!({ "desktop": screen })).await;
    // The second covers a part of the first.
    coloured_terminal(&hands, "first", "red", "+100+100").await;
    coloured_terminal(&hands, "second", "blue", "+200+150").await;
    for (title, colour) in [("first", [255, 0, 0]), ("second", [0, 0, 255]), ("first", [255, 0, 0])]
    {
        let id = window(&hands, title).await.id;
        hands.computer("focus_window", json!({ "window": id })).await;
        let focused = window(&hands, title).await;
        assert!(focused.active, "{focused:?}");
        hands.computer("type", json!({ "text": format!("to the {title}\n") })).await;
        let wanted = format!("to the {title}");
        hands
            .shell(&format!(
                "until tail -n 1 {title}.txt | grep -x '{wanted}'; do sleep 0.05; done"
            ))
            .await;
        hands.still().await;
        let shot = json!({ "action": "screenshot", "window": id });
        let shot = hands.call("computer", shot).await;
        assert_eq!(size_of(&shot.pictures[0]), focused.size);
        let (x, y) = focused.place;
        assert!(shot.text.contains(&format!("origin {x},{y} of the screen")), "{}", shot.text);
        // All of it is to be seen: nothing of the other lies upon it.
        let picture = image::load_from_memory(&shot.pictures[0]).unwrap().to_rgb8();
        assert!(picture.pixels().all(|pixel| pixel.0 == colour), "{title}");
        // And points are points of it.
        hands.computer("move", json!({ "x": 7, "y": 9 })).await;
        let place = hands.succeed("xdot", json!({ "command": "getmouselocation" })).await;
        assert!(place.starts_with(&format!("x:{} y:{} ", x + 7, y + 9)), "{place}");
    }
    assert_eq!(
        hands.shell("cat first.txt second.txt").await,
        "to the first\nto the first\nto the second\n"
    );
    hands.succeed("screenshot", json!({})).await;
    let id = window(&hands, "first").await.id;
    let mut places = Vec::new();
    for (x, y) in [(300, 200), (420, 260)] {
        hands.computer("move_window", json!({ "window": id, "to_x": x, "to_y": y })).await;
        places.push(window(&hands, "first").await.place);
    }
    assert_eq!((places[1].0 - places[0].0, places[1].1 - places[0].1), (120, 60), "{places:?}");
    let gone = hands.call("computer", json!({ "action": "focus_window", "window": 1 })).await;
    assert!(gone.failed && gone.text.contains("there is no window 1"), "{gone:?}");
    hands.end().await;
}

#[tokio::test]
async fn waiting_for_a_change_tells_whether_one_came_since_the_last_look() {
    let server = TestServer::start();
    let hands = Hands::start(&server, json!({ "desktop": true })).await;
    hands.shell("mkfifo words").await;
    // It ends at no end of its input, for it is a writer of its own.
    hands
        .shell(
            "setsid xterm -T words -e 'exec 3<>words; cat words' >/dev/null 2>&1 & \
             until xdotool search --onlyvisible --name words >/dev/null 2>&1; do sleep 0.05; done",
        )
        .await;
    hands.still().await;
    let wait = |timeout: f64| with_action("wait_for_change", json!({ "timeout": timeout }));
    // Another look is another beginning.
    hands.succeed("screenshot", json!({})).await;
    let nothing = hands.call("computer", wait(1.0)).await;
    assert!(nothing.failed && nothing.text.contains("did not come to that in time"), "{nothing:?}");
    // What changed before anybody waited for it is no less a change.
    hands.shell("echo early > words").await;
    hands.still().await;
    assert_eq!(hands.succeed("computer", wait(30.0)).await, "the screen changed");
    assert!(hands.call("computer", wait(1.0)).await.failed, "it is not told twice");
    hands.shell("(sleep 1; echo late > words) >/dev/null 2>&1 &").await;
    assert_eq!(hands.succeed("computer", wait(30.0)).await, "the screen changed");
    hands.end().await;
}
