//! File tools beyond reading and writing: several edits at once, copies, globs, diffs, pictures.

mod support;

use std::os::unix::fs::{PermissionsExt as _, symlink};

use serde_json::{Value, json};
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

fn edit(path: &str, old: &str, new: &str) -> Value {
    json!({"tool": "edit_file", "path": path, "old": old, "new": new})
}

#[tokio::test]
async fn a_text_in_other_blanks_is_edited_where_it_is_the_only_one() {
    let guest = TestGuest::start();
    guest.write("a.rs", "fn f() {\n\tone();\n\ttwo();\n}\n");
    let tools = Tools::of(&guest).await;
    let new = "    if x {\n        one();\n    }\n    two();";
    let text = tools.text(edit("a.rs", "    one();\n    two();", new)).await;
    assert_eq!(guest.read("a.rs"), "fn f() {\n\tif x {\n\t\tone();\n\t}\n\ttwo();\n}\n");
    let said = "edited a.rs in 1 place\n     2\t\tif x {\n";
    assert!(text.starts_with(said) && text.contains("line 2, where only indentations"), "{text}");

    guest.write("dos", "one  \r\ntwo\r\nthree\r\n");
    let edits = json!({"tool": "multi_edit", "path": "dos", "edits": [
        {"old": "three", "new": "3"}, {"old": "one\ntwo\n", "new": "one\n2\n2.5\n"},
    ]});
    let text = tools.text(edits).await;
    assert!(text.starts_with("edited dos: 2 edits in 2 places\nedit 2: "), "{text}");
    assert!(text.contains("spaces at the ends of lines and line breaks (\\r\\n) differ"), "{text}");
    // What the caller did not mean to change is as it was.
    assert_eq!(guest.read("dos"), "one  \r\n2\r\n2.5\r\n3\r\n");
    let already = edit("dos", "2 \n2.5", "2\n2.5");
    assert_eq!(tools.code(already).await, "nothing_to_change");
}

#[tokio::test]
async fn a_text_in_other_blanks_is_refused_where_it_could_mean_more() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    let twice = "\tone();\n\ttwo();\n  one();\n  two();\n";
    guest.write("twice", twice);
    let done = tools.run(edit("twice", "    one();\n    two();", "x")).await;
    assert_eq!(done.code(), "not_unique");
    assert!(done.result.error.unwrap().message.contains("(lines 1, 3)"));
    let edits = json!({"tool": "multi_edit", "path": "twice", "edits": [
        {"old": "\tone", "new": "\t1"}, {"old": "    two();", "new": "x"},
    ]});
    assert_eq!(tools.code(edits).await, "not_unique");
    assert_eq!(guest.read("twice"), twice);

    // Nothing says how many spaces a tab is, and other nesting is another meaning.
    guest.write("tabs", "\tone();\n\ttwo();\n");
    let done = tools.run(edit("tabs", "one();\ntwo();", "if x {\n    one();\n}\ntwo();")).await;
    assert_eq!(done.code(), "not_found_in_file");
    assert!(done.result.error.unwrap().message.contains("at line 1 in other blanks"));
    guest.write("nested.py", "if a:\n    b()\nc()\n");
    let nested = edit("nested.py", "    b()\n    c()", "    d()");
    assert_eq!(tools.code(nested).await, "not_found_in_file");
    assert_eq!(guest.read("nested.py"), "if a:\n    b()\nc()\n");
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
    symlink("/etc/passwd", guest.workspace().join("out")).unwrap();
    let out = json!({"tool": "copy_file", "from": "out", "to": "x"});
    assert_eq!(tools.code(out).await, "outside_workspace");
    // A symlink stands there too, wherever it leads.
    symlink("nowhere", guest.workspace().join("dangling")).unwrap();
    assert_eq!(tools.code(copy("dangling")).await, "already_exists");
}

#[tokio::test]
async fn folders_are_copied_whole_or_not_at_all() {
    let guest = TestGuest::start();
    let workspace = guest.workspace();
    guest.write("from/run.sh", "#!/bin/sh\n");
    guest.write("from/deep/er/file", "x");
    guest.write("from/.gitignore", "deep/\n");
    std::fs::create_dir(workspace.join("from/empty")).unwrap();
    let mode = |path: &str, mode| {
        std::fs::set_permissions(workspace.join(path), std::fs::Permissions::from_mode(mode))
    };
    mode("from/run.sh", 0o755).unwrap();
    mode("from/deep/er", 0o555).unwrap();
    symlink("/etc/passwd", workspace.join("from/out")).unwrap();
    let tools = Tools::of(&guest).await;
    let copy = |from: &str, to: &str| json!({"tool": "copy_file", "from": from, "to": to});
    let text = tools.text(copy("from", "new/to")).await;
    assert_eq!(text, "copied from to new/to (3 files, 17 B)");
    let bits = |path: &str| workspace.join(path).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((bits("new/to/run.sh"), bits("new/to/deep/er")), (0o755, 0o555));
    assert_eq!(guest.read("new/to/deep/er/file"), "x");
    assert!(workspace.join("new/to/empty").is_dir());
    let link = std::fs::read_link(workspace.join("new/to/out")).unwrap();
    assert_eq!(link.to_str(), Some("/etc/passwd"));

    assert_eq!(tools.code(copy("from", "new/to")).await, "already_exists");
    assert_eq!(tools.code(copy("from", "from")).await, "already_exists");
    assert_eq!(tools.code(copy("from", "from/deep/copy")).await, "into_itself");
    symlink("from/deep", workspace.join("in")).unwrap();
    assert_eq!(tools.code(copy("from", "in/copy")).await, "into_itself");
    assert_eq!(tools.code(copy("from", "../out")).await, "outside_workspace");
    // What cannot be copied leaves nothing behind.
    rustix::fs::mkfifoat(rustix::fs::CWD, workspace.join("from/z"), 0o644.into()).unwrap();
    assert_eq!(tools.code(copy("from", "other")).await, "not_a_file");
    let mut names: Vec<_> = std::fs::read_dir(&workspace).unwrap().flatten().collect();
    names.sort_by_key(std::fs::DirEntry::file_name);
    let names: Vec<_> = names.iter().map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["from", "in", "new"]);
    assert!(!workspace.join("from/deep/copy").exists());
    let mut deep = String::from("deepest");
    for _ in 0..120 {
        deep.push_str("/d");
    }
    guest.write(&format!("{deep}/file"), "x");
    assert_eq!(tools.code(copy("deepest", "other")).await, "too_many_files");
    assert!(!workspace.join("other").exists());
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
    guest.write("dos.txt", "a\r\nb\u{1b}\r\n");
    let text = tools.text(diff("old.txt", "dos.txt")).await;
    assert!(text.ends_with("+a\r\n+b\u{1b}\r\n"), "every byte is there: {text:?}");
    guest.write("latin.txt", b"a\nb\xe9\nc\n");
    let text = tools.text(diff("old.txt", "latin.txt")).await;
    assert!(text.contains("+b\u{fffd}\n") && text.ends_with("needs the shell's diff]\n"), "{text}");
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
