//! What stands on a page: fields that take what they can, and frames.

use serde_json::json;

use crate::browsing::{SECOND, at, number, served};
use crate::support::TestServer;

const FIELDS: &str = r##"<!doctype html><meta charset=utf-8><title>Fields</title>
<label>Other <input id=other value=kept autofocus></label>
<label>Off <input id=off value=before disabled></label>
<fieldset disabled><label>Within <input id=within value=before></label></fieldset>
<label>Fixed <input id=fixed value=before readonly></label>
<label>Level <input id=level type=range min=0 max=10 value=3></label>
<label>Paint <input id=paint type=color value="#112233"></label>
<label>Day <input id=day type=date value=2026-12-24></label>
<label><input id=tick type=checkbox checked> Tick</label>
<label>Count <input id=count type=number value=5></label>
<label>Size <select id=size><option>small<option disabled>large</select></label>
<label>Gone <input id=gone value=before></label>
<div id=note contenteditable role=textbox aria-label=Note>old <b>words</b></div>"##;

#[tokio::test]
async fn what_a_field_does_not_take_is_refused_and_goes_nowhere_else() {
    let server = TestServer::start();
    let hands = served(&server, &[("index.html", FIELDS)]).await;
    let page = hands.browser("open", at("")).await;
    let gone = number(&page, "textbox \"Gone\"");
    hands.script("gone.style.display = 'none'; other.focus()").await;
    let value = async |id: &str| {
        let field = format!("document.getElementById('{id}')");
        let script = format!("JSON.stringify({field}.value ?? {field}.textContent)");
        serde_json::from_str::<String>(&hands.script(&script).await).unwrap()
    };
    for (name, text, words, id, stays) in [
        ("Off", "x", "is disabled", "off", "before"),
        ("Within", "x", "is disabled", "within", "before"),
        ("Fixed", "x", "can only be read", "fixed", "before"),
        ("Level", "20", "does not take this value", "level", "3"),
        ("Level", "loud", "does not take this value", "level", "3"),
        ("Paint", "blue", "does not take this value", "paint", "#112233"),
        ("Day", "tomorrow", "does not take this value", "day", "2026-12-24"),
        ("Size", "large", "does not take this value", "size", "small"),
        ("Tick", "perhaps", "is ticked by `true`", "other", "kept"),
    ] {
        let fill = json!({ "action": "fill", "name": name, "text": text });
        let filled = hands.call("browser", fill).await;
        assert!(filled.failed && filled.text.contains(words), "{name} {text}: {filled:?}");
        assert_eq!(value(id).await, stays, "{name} {text}");
    }
    let fill = json!({ "action": "fill", "ref": gone, "text": "x" });
    let filled = hands.call("browser", fill).await;
    assert!(filled.failed && filled.text.contains("cannot be typed into"), "{filled:?}");
    let fill = json!({ "action": "fill", "name": "Count", "text": "many" });
    let filled = hands.call("browser", fill).await;
    assert!(filled.failed && filled.text.contains("not_taken"), "{filled:?}");
    assert_eq!((value("other").await, value("gone").await), ("kept".into(), "before".into()));
    assert_eq!(hands.script("tick.checked").await, "true");

    for (name, text, id, becomes) in [
        ("Level", "7", "level", "7"),
        ("Paint", "#00FF7f", "paint", "#00ff7f"),
        ("Day", "", "day", ""),
        ("Count", "12", "count", "12"),
        ("Other", "", "other", ""),
        ("Note", "new λέξεις", "note", "new λέξεις"),
    ] {
        hands.browser("fill", json!({ "name": name, "text": text })).await;
        assert_eq!(value(id).await, becomes, "{name}");
    }
    for (word, ticked) in [("no", "false"), ("Yes", "true"), ("false", "false")] {
        hands.browser("fill", json!({ "name": "Tick", "text": word })).await;
        assert_eq!(hands.script("tick.checked").await, ticked, "{word}");
    }
    hands.end().await;
}

const OUTER: &str = r#"<!doctype html><meta charset=utf-8><title>Outer</title><h1>Outer</h1>
<iframe src="inner.html" style="margin: 60px 0 0 200px"></iframe>
<iframe srcdoc="<p>Written within</p>"></iframe>
<iframe src="http://localhost:8000/second.html"></iframe>"#;
const INNER: &str = r#"<!doctype html><meta charset=utf-8><title>Inner</title>
<label>Word <input id=word></label>
<button onclick="said.textContent = 'got ' + word.value">Give</button><p id=said></p>"#;

#[tokio::test]
async fn what_frames_show_is_read_and_worked_on() {
    let server = TestServer::start();
    let files = [("index.html", OUTER), ("inner.html", INNER), ("second.html", SECOND)];
    let hands = served(&server, &files).await;
    let outer = hands.browser("open", at("")).await;
    for part in [
        "heading: Outer\n",
        "frame: http://127.0.0.1:8000/inner.html\n",
        "textbox \"Word\"",
        "Written within\n",
        "frame of another site: http://localhost:8000/second.html (`open` it to read it)\n",
    ] {
        assert!(outer.contains(part), "{part:?} is not in {outer}");
    }
    let filled = hands.browser("fill", json!({ "name": "Word", "text": "λέξη 🎩" })).await;
    assert!(filled.contains("textbox \"Word\" = \"λέξη 🎩\""), "{filled}");
    let given = hands.browser("click", json!({ "ref": number(&filled, "button \"Give\"") })).await;
    assert!(given.contains("got λέξη 🎩"), "{given}");
    hands.end().await;
}
