//! `list_files` and `search_files`: what they show, in which order, and where they stop.

mod support;

use std::os::unix::fs::symlink;

use serde_json::{Value, json};
use support::{TestGuest, Tools};

#[tokio::test]
async fn listing_is_a_tree_without_what_git_ignores() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    let list = |call: Value| {
        let mut call = call;
        call["tool"] = json!("list_files");
        call
    };
    assert_eq!(tools.text(list(json!({}))).await, "[the folder is empty]\n");
    guest.write(".gitignore", "target/\n*.log\n");
    guest.write("a.txt", "12345");
    guest.write("src/deep/er/most/x", "");
    guest.write("src/main.rs", vec![b'x'; 2048]);
    guest.write("src/x.log", "");
    guest.write("target/huge", "");
    guest.write(".git/config", "");
    symlink("a.txt", guest.workspace().join("link")).unwrap();
    assert_eq!(
        tools.text(list(json!({}))).await,
        "src/\n  deep/\n    er/\n  main.rs  2 KiB\n.gitignore  14 B\na.txt  5 B\nlink -> a.txt\n"
    );
    assert_eq!(
        tools.text(list(json!({"path": "src", "depth": 1}))).await,
        "deep/\nmain.rs  2 KiB\n",
        "a rule of a folder above holds"
    );
    assert_eq!(tools.code(list(json!({"path": "a.txt"}))).await, "not_a_folder");
    for n in 0..1200 {
        guest.write(&format!("many/{n:04}"), "");
    }
    let text = tools.text(list(json!({"path": "many"}))).await;
    assert_eq!(text.lines().count(), 1001);
    assert!(text.contains("0999  0 B\n[1000 of 1200 entries;"));
}

#[tokio::test]
async fn searching_finds_lines() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    let search = |pattern: &str, more: Value| {
        let mut call = json!({"tool": "search_files", "pattern": pattern});
        for (key, value) in more.as_object().unwrap() {
            call[key] = value.clone();
        }
        call
    };
    guest.write("src/a.rs", "fn main() {}\nlet größe = 1;\n");
    guest.write("src/b.py", "def main(): pass\n");
    guest.write("ignored/c.rs", "fn main() {}\n");
    guest.write(".gitignore", "ignored\n");
    guest.write("binary", b"fn main\0\n");
    guest.write("wide", [vec![b'x'; 5000], b"needle".to_vec(), vec![b'y'; 5000]].concat());
    let none = json!({});
    assert_eq!(
        tools.text(search(r"\bmain\b", none.clone())).await,
        "src/a.rs:1:fn main() {}\nsrc/b.py:1:def main(): pass\n"
    );
    assert_eq!(
        tools.text(search("main", json!({"glob": "*.rs"}))).await,
        "src/a.rs:1:fn main() {}\n"
    );
    assert_eq!(
        tools.text(search("main", json!({"glob": "src/**/*.py"}))).await,
        "src/b.py:1:def main(): pass\n"
    );
    assert_eq!(
        tools.text(search("gr..e", json!({"path": "src/a.rs"}))).await,
        "src/a.rs:2:let größe = 1;\n"
    );
    let text = tools.text(search("needle", none.clone())).await;
    assert!(text.starts_with("wide:1:…x") && text.contains("xneedley"), "{text}");
    assert!(text.ends_with("y… [a line of 10006 bytes]\n") && text.len() < 600, "{text}");
    assert_eq!(tools.code(search("(", none.clone())).await, "invalid_pattern");
    assert_eq!(tools.code(search("a", json!({"glob": "[a"}))).await, "invalid_glob");
    assert_eq!(tools.code(search("a", json!({"path": "gone"}))).await, "not_found");
    guest.write("many", "hit\n".repeat(1000));
    let text = tools.text(search("^hit$", none)).await;
    assert!(text.ends_with(
        "many:200:hit\n[the first 200 matches; narrow the search by `path`, `glob` or `pattern`]\n"
    ));
}
