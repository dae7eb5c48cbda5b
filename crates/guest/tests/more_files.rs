//! File tools beyond reading and writing: several edits at once, copies, globs, diffs, pictures.

mod support;

use serde_json::json;
use support::{TestGuest, Tools, succeeded};

#[tokio::test]
async fn several_edits_are_made_all_or_none() {
    let guest = TestGuest::start();
    guest.write("a.txt", "one two\nthree\n");
    let tools = Tools::of(&guest).await;
    let edits = json!({"tool": "multi_edit", "path": "a.txt", "edits": [
        {"old": "two", "new": "2"}, {"old": "one 2", "new": "1 2"}, {"old": "e", "new": "E", "replace_all": true},
    ]});
    assert_eq!(tools.text(edits).await, "edited a.txt: 3 edits in 4 places");
    assert_eq!(guest.read("a.txt"), "1 2\nthrEE\n");
    let bad = json!({"tool": "multi_edit", "path": "a.txt", "edits": [
        {"old": "1", "new": "one"}, {"old": "missing", "new": "x"},
    ]});
    let bad = tools.run(bad).await;
    assert_eq!(bad.code(), "not_found_in_file");
    assert!(bad.result.error.unwrap().message.starts_with("edit 2: "));
    assert_eq!(guest.read("a.txt"), "1 2\nthrEE\n");
    let none = json!({"tool": "multi_edit", "path": "a.txt", "edits": []});
    assert_eq!(tools.code(none).await, "invalid_argument");
}

#[tokio::test]
async fn an_edit_that_fails_for_spaces_says_where() {
    let guest = TestGuest::start();
    guest.write("a.rs", "fn f() {\n\tone();\n\ttwo();\n}\n");
    let tools = Tools::of(&guest).await;
    let edit =
        json!({"tool": "edit_file", "path": "a.rs", "old": "    one();\n    two();", "new": "x"});
    let done = tools.run(edit).await;
    assert_eq!(done.code(), "not_found_in_file");
    assert!(done.result.error.unwrap().message.contains("line 2 differs in spaces"));
}

#[tokio::test]
async fn copies_are_whole_and_replace_nothing() {
    let guest = TestGuest::start();
    let content: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    guest.write("big.bin", &content);
    let tools = Tools::of(&guest).await;
    let copy = |to: &str| json!({"tool": "copy_file", "from": "big.bin", "to": to});
    tools.text(copy("deep/er/copy.bin")).await;
    assert!(std::fs::read(guest.workspace().join("deep/er/copy.bin")).unwrap() == content);
    assert_eq!(tools.code(copy("big.bin")).await, "already_exists");
    assert_eq!(tools.code(copy("../out")).await, "outside_workspace");
    let folder = json!({"tool": "copy_file", "from": "deep", "to": "x"});
    assert_eq!(tools.code(folder).await, "is_a_folder");
    std::os::unix::fs::symlink("/etc/passwd", guest.workspace().join("out")).unwrap();
    let out = json!({"tool": "copy_file", "from": "out", "to": "x"});
    assert_eq!(tools.code(out).await, "outside_workspace");
}

#[tokio::test]
async fn globs_find_files_and_leave_out_what_git_ignores() {
    let guest = TestGuest::start();
    guest.write("src/main.rs", "");
    guest.write("src/deep/lib.rs", "");
    guest.write("notes.md", "");
    guest.write("target/made.rs", "");
    guest.write(".gitignore", "target/\n");
    let tools = Tools::of(&guest).await;
    let find = |glob: &str| json!({"tool": "find_files", "glob": glob});
    assert_eq!(tools.text(find("*.rs")).await, "src/deep/lib.rs\nsrc/main.rs\n");
    assert_eq!(tools.text(find("src/*.rs")).await, "src/main.rs\n");
    assert_eq!(tools.text(find("*.py")).await, "[no file matches]\n");
    assert_eq!(tools.code(find("[")).await, "invalid_glob");
}

#[tokio::test]
async fn differences_are_shown_as_patch_takes_them() {
    let guest = TestGuest::start();
    guest.write("old.txt", "a\nb\nc\n");
    guest.write("new.txt", "a\nB\nc\n");
    guest.write("binary", b"a\0b");
    let tools = Tools::of(&guest).await;
    let diff = |from: &str, to: &str| json!({"tool": "diff_files", "from": from, "to": to});
    let text = tools.text(diff("old.txt", "new.txt")).await;
    assert_eq!(text, "--- old.txt\n+++ new.txt\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n");
    assert_eq!(tools.text(diff("old.txt", "old.txt")).await, "[the files are the same]\n");
    assert_eq!(tools.code(diff("old.txt", "binary")).await, "binary_file");
    assert_eq!(tools.code(diff("old.txt", "none")).await, "not_found");
}

#[tokio::test]
async fn a_picture_is_read_as_a_picture() {
    let guest = TestGuest::start();
    guest.write("p.png", b"\x89PNG\r\n\x1a\nrest of it");
    let tools = Tools::of(&guest).await;
    let done = tools.run(json!({"tool": "read_file", "path": "p.png"})).await;
    succeeded(&done);
    assert_eq!(done.text(), "p.png: image/png, 18 B");
    let offered = &done.result.attachments;
    assert_eq!(
        (offered.len(), offered[0].media_type.as_str(), offered[0].bytes),
        (1, "image/png", 18)
    );
    guest.write("huge.png", [b"\x89PNG\r\n\x1a\n".to_vec(), vec![0; 9 << 20]].concat());
    let huge = json!({"tool": "read_file", "path": "huge.png"});
    assert_eq!(tools.code(huge).await, "file_too_large");
}
