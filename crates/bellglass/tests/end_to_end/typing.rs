//! Text typed into windows: any text, exactly once, in its order, whoever else follows the clipboard.

use serde_json::json;

use crate::live::Viewer;
use crate::support::TestServer;
use crate::support::hands::Hands;

/// Every line has something that the keyboard lacks, so every line is pasted.
const POEM: &str = "Γειά σου Κόσμε\n你好世界 🎉🦀\nnaïve café — done\n";

/// Opens a terminal in which a program writes down what is typed, and gives it the keyboard.
async fn terminal_that_writes(hands: &Hands<'_>, name: &str) {
    let reader = format!("stty -echo; touch {name}.ready; cat > {name}.txt");
    hands
        .shell(&format!(
            "setsid xterm -T {name} -fa DejaVuSansMono -e '{reader}' >/dev/null 2>&1 & \
             until [ -e {name}.ready ] && xdotool search --onlyvisible --name {name} >/dev/null 2>&1; \
             do sleep 0.05; done"
        ))
        .await;
    hands.still().await;
    hands.computer("click", json!({ "x": 200, "y": 150 })).await;
}

/// Ends the program and returns what it wrote down.
async fn written(hands: &Hands<'_>, name: &str) -> String {
    hands.computer("key", json!({ "keys": "ctrl+d" })).await;
    hands.shell(&format!("while pgrep xterm >/dev/null; do sleep 0.05; done; cat {name}.txt")).await
}

#[tokio::test]
async fn what_is_typed_into_a_terminal_arrives_in_its_order_while_a_viewer_follows_the_clipboard() {
    let server = TestServer::start();
    let hands = Hands::start(&server, json!({ "desktop": true })).await;
    // The X server asks for all that is offered at once, for this viewer's clipboard.
    let mut viewer = Viewer::open(&server, &hands.job).await;
    terminal_that_writes(&hands, "typed").await;
    for _ in 0..20 {
        hands.computer("type", json!({ "text": POEM })).await;
    }
    assert_eq!(written(&hands, "typed").await, POEM.repeat(20));
    // It did follow.
    viewer.wait_for_clipboard().await;
    hands.end().await;
}

/// A hundred texts, of which a single wrong letter fails.
#[tokio::test]
async fn any_text_is_typed_exactly_once_into_a_terminal() {
    let server = TestServer::start();
    let hands = Hands::start(&server, json!({ "desktop": true })).await;
    terminal_that_writes(&hands, "typed").await;
    let text =
        "Γειά σου Κόσμε, 你好世界, 🎉🦀 naïve café — done\nplain 'ASCII' ~!@#$%^&*()_+{}|:\"<>?\n";
    for n in 0..100 {
        hands.computer("type", json!({ "text": format!("{n} {text}") })).await;
    }
    let all: String = (0..100).map(|n| format!("{n} {text}")).collect();
    assert_eq!(written(&hands, "typed").await, all);
    hands.end().await;
}

#[tokio::test]
async fn what_is_typed_is_the_same_on_another_keyboard_and_with_caps_lock_on() {
    let server = TestServer::start();
    let hands = Hands::start(&server, json!({ "desktop": true })).await;
    terminal_that_writes(&hands, "typed").await;
    hands.shell("setxkbmap de").await;
    hands.computer("type", json!({ "text": "|yz;ab-/|\n" })).await;
    hands.computer("key", json!({ "keys": "Caps_Lock" })).await;
    hands.computer("type", json!({ "text": "Some small letters\n" })).await;
    hands.computer("key", json!({ "keys": "Caps_Lock" })).await;
    hands.computer("type", json!({ "text": "done\n" })).await;
    assert_eq!(written(&hands, "typed").await, "|yz;ab-/|\nSome small letters\ndone\n");
    hands.end().await;
}

const FIELD: &str = r#"<!doctype html><meta charset=utf-8><title>field</title>
<textarea id=field rows=10 cols=60 autofocus></textarea>
<script>
// What pages with an editor of their own do: they look at what is pasted before it is taken.
const seen = [];
field.addEventListener('paste', (event) => seen.push(event.clipboardData.getData('text/plain')));
</script>"#;

#[tokio::test]
async fn what_is_typed_into_chromium_arrives_in_its_order_while_a_viewer_follows_the_clipboard() {
    let server = TestServer::start();
    let files = json!([{ "path": "field.html", "content": FIELD }]);
    let hands = Hands::start(&server, json!({ "desktop": true, "files": files })).await;
    let _viewer = Viewer::open(&server, &hands.job).await;
    hands.browser("open", json!({ "url": "file:///workspace/field.html" })).await;
    hands.browser("screenshot", json!({})).await;
    hands.computer("click", json!({ "x": 60, "y": 60 })).await;
    for _ in 0..10 {
        hands.computer("type", json!({ "text": POEM })).await;
    }
    // The last key comes after the last text.
    let all = POEM.repeat(10);
    let lines = all.lines().count() + 1;
    let typed = format!(
        "(async () => {{
            while (field.value.split('\\n').length < {lines}) await new Promise(requestAnimationFrame);
            return JSON.stringify([field.value, seen.join('\\n') + '\\n']);
        }})()"
    );
    let typed: (String, String) = serde_json::from_str(&hands.script(&typed).await).unwrap();
    assert_eq!(typed, (all.clone(), all));
    hands.end().await;
}

#[tokio::test]
async fn a_slow_program_is_not_given_a_text_twice() {
    let server = TestServer::start();
    let hands = Hands::start(&server, json!({ "desktop": true })).await;
    terminal_that_writes(&hands, "slow").await;
    // It stands still for longer than most people would wait.
    let stop = "pid=$(pgrep xterm); kill -STOP $pid; (sleep 5; kill -CONT $pid) >/dev/null 2>&1 &";
    hands.shell(stop).await;
    hands.computer("type", json!({ "text": "μία φορά\n" })).await;
    assert_eq!(written(&hands, "slow").await, "μία φορά\n");
    hands.end().await;
}

#[tokio::test]
async fn typing_leaves_the_clipboard_as_it_was() {
    let server = TestServer::start();
    let files = json!([{ "path": "field.html", "content": FIELD }]);
    let hands = Hands::start(&server, json!({ "desktop": true, "files": files })).await;
    terminal_that_writes(&hands, "typed").await;
    // Ours.
    hands.computer("set_clipboard", json!({ "text": "κράτα με ✂" })).await;
    hands.computer("type", json!({ "text": POEM })).await;
    assert_eq!(hands.computer("get_clipboard", json!({})).await, "κράτα με ✂");
    assert_eq!(hands.shell("xclip -o -selection clipboard").await, "κράτα με ✂");
    // Another program's.
    hands.shell("echo 'from xclip ☂' | xclip -selection clipboard").await;
    hands.computer("type", json!({ "text": POEM })).await;
    assert_eq!(hands.shell("xclip -o -selection clipboard").await, "from xclip ☂\n");
    assert_eq!(written(&hands, "typed").await, POEM.repeat(2));
    // Chromium pastes from the clipboard itself.
    hands.browser("open", json!({ "url": "file:///workspace/field.html" })).await;
    hands.browser("screenshot", json!({})).await;
    hands.computer("click", json!({ "x": 60, "y": 60 })).await;
    hands.computer("type", json!({ "text": "één ✓" })).await;
    assert_eq!(hands.shell("xclip -o -selection clipboard").await, "from xclip ☂\n");
    hands.computer("key", json!({ "keys": "ctrl+v" })).await;
    let all = "(async () => {
        while (!field.value.includes('☂')) await new Promise(requestAnimationFrame);
        return field.value;
    })()";
    assert_eq!(hands.script(all).await, "één ✓from xclip ☂\n");
    hands.end().await;
}

#[tokio::test]
async fn what_nobody_takes_does_not_stay_in_the_clipboard() {
    let server = TestServer::start();
    let hands = Hands::start(&server, json!({ "desktop": true })).await;
    // No window has the keyboard.
    let lost = json!({ "action": "type", "text": "χαμένο", "timeout": 2 });
    for owner in ["ours", "another's"] {
        if owner == "ours" {
            hands.computer("set_clipboard", json!({ "text": "κράτα με ✂" })).await;
        } else {
            hands.shell("printf 'κράτα με ✂' | xclip -selection clipboard").await;
        }
        let typed = hands.call("computer", lost.clone()).await;
        assert!(typed.failed && typed.text.contains("took nothing"), "{owner}: {typed:?}");
        assert_eq!(hands.computer("get_clipboard", json!({})).await, "κράτα με ✂", "{owner}");
        assert_eq!(hands.shell("xclip -o -selection clipboard").await, "κράτα με ✂", "{owner}");
        assert!(hands.call("shell", json!({ "command": "xclip -o" })).await.failed, "{owner}");
    }
    hands.end().await;
}
