//! The file tools: what they answer, what they change, and what they refuse.

mod support;

use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::{Value, json};
use support::{TestGuest, Tools};

fn read(path: &str) -> Value {
    json!({"tool": "read_file", "path": path})
}

fn write(path: &str, content: &str) -> Value {
    json!({"tool": "write_file", "path": path, "content": content})
}

fn edit(path: &str, old: &str, new: &str) -> Value {
    json!({"tool": "edit_file", "path": path, "old": old, "new": new})
}

fn mode(guest: &TestGuest, path: &str) -> u32 {
    guest.workspace().join(path).metadata().unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn writing_creates_and_replaces() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    let text = tools.text(write("a/b/ünïcode 文.txt", "Grüße\n")).await;
    assert_eq!(text, "created a/b/ünïcode 文.txt (8 B)");
    assert_eq!(guest.read("a/b/ünïcode 文.txt"), "Grüße\n");
    assert_eq!(mode(&guest, "a/b/ünïcode 文.txt"), 0o644);

    guest.write("tool.sh", "old");
    let restricted = std::fs::Permissions::from_mode(0o640);
    std::fs::set_permissions(guest.workspace().join("tool.sh"), restricted).unwrap();
    assert!(tools.text(write("/workspace/tool.sh", "new")).await.starts_with("replaced"));
    assert_eq!((guest.read("tool.sh").as_str(), mode(&guest, "tool.sh")), ("new", 0o640));
    let call = json!({"tool": "write_file", "path": "tool.sh", "content": "bmV3\nZXI=", "encoding": "base64", "executable": true});
    tools.text(call).await;
    assert_eq!((guest.read("tool.sh").as_str(), mode(&guest, "tool.sh")), ("newer", 0o750));

    let bad = json!({"tool": "write_file", "path": "x", "content": "?", "encoding": "base64"});
    assert_eq!(tools.code(bad).await, "invalid_base64");
    assert_eq!(tools.code(write("a", "x")).await, "is_a_folder");
    assert_eq!(tools.code(write("tool.sh/x", "x")).await, "not_a_folder");
    assert_eq!(tools.code(write(".", "x")).await, "invalid_path");
    let leftovers = std::fs::read_dir(guest.workspace()).unwrap().flatten();
    assert_eq!(leftovers.filter(|e| e.file_name().to_string_lossy().contains("part")).count(), 0);
}

#[tokio::test]
async fn reading_shows_numbered_lines_and_how_to_go_on() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    guest.write("three", "one\ntwo\r\n\x1b[1mthree");
    assert_eq!(tools.text(read("three")).await, "     1\tone\n     2\ttwo\n     3\t␛[1mthree\n");
    let part = json!({"tool": "read_file", "path": "three", "offset": 2, "limit": 1});
    assert_eq!(
        tools.text(part).await,
        "     2\ttwo\n[the file has more lines; go on with offset 3]\n"
    );
    let past = json!({"tool": "read_file", "path": "three", "offset": 9});
    assert_eq!(tools.code(past).await, "past_end");

    guest.write("empty", "");
    assert_eq!(tools.text(read("empty")).await, "[the file is empty]\n");
    guest.write("binary", b"\x89PNG\0\0");
    assert_eq!(tools.code(read("binary")).await, "binary_file");
    assert_eq!(tools.code(read("missing")).await, "not_found");
    assert_eq!(tools.code(read("")).await, "invalid_path");
    assert_eq!(tools.code(read("/etc/passwd")).await, "outside_workspace");
    std::fs::create_dir(guest.workspace().join("folder")).unwrap();
    assert_eq!(tools.code(read("folder")).await, "is_a_folder");
    rustix::fs::mkfifoat(rustix::fs::CWD, guest.workspace().join("pipe"), 0o644.into()).unwrap();
    assert_eq!(tools.code(read("pipe")).await, "not_a_file");
}

#[tokio::test]
async fn large_files_are_read_in_part() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    let lines: String = (1..=100_000).map(|n| format!("line {n} \u{1}\"\\\n")).collect();
    guest.write("many", lines);
    let text = tools.text(read("many")).await;
    assert_eq!(text.lines().count(), 2001);
    assert!(text.ends_with("[the file has more lines; go on with offset 2001]\n"));

    let all = json!({"tool": "read_file", "path": "many", "limit": 100_000});
    let text = tools.text(all).await;
    assert!(text.len() <= 256 << 10 && text.len() > 250 << 10);
    let next: u64 = text.trim_end_matches("]\n").rsplit(' ').next().unwrap().parse().unwrap();
    let last = text.lines().rev().nth(1).unwrap();
    assert!(last.contains(&format!("line {} ", next - 1)), "{last}");

    guest.write("wide", [vec![b'x'; 3_000_000], b"\nsecond".to_vec()].concat());
    let text = tools.text(read("wide")).await;
    assert!(text.contains("… [a line of 3000000 bytes]\n     2\tsecond\n") && text.len() < 5000);
}

#[tokio::test]
async fn editing_is_exact() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    guest.write("code.rs", "fn a() {\n    one();\n}\nfn b() {\n    one();\n}\n");
    let error = tools.run(edit("code.rs", "one();", "two();")).await;
    assert_eq!(error.code(), "not_unique");
    let message = &error.result.error.as_ref().unwrap().message;
    assert!(message.contains("2 times") && message.contains("lines 2, 5"), "{message}");

    let text =
        tools.text(edit("code.rs", "b() {\n    one();", "b() {\n    zwölf();\n    x();")).await;
    assert_eq!(
        text,
        "edited code.rs in 1 place\n     4\tfn b() {\n     5\t    zwölf();\n     6\t    x();"
    );
    assert!(guest.read("code.rs").contains("zwölf"));
    let all = json!({"tool": "edit_file", "path": "code.rs", "old": "fn ", "new": "pub fn ", "replace_all": true});
    assert!(tools.text(all).await.starts_with("edited code.rs in 2 places\n     1\tpub fn a"));

    assert_eq!(tools.code(edit("code.rs", "nothing like it", "x")).await, "not_found_in_file");
    assert_eq!(tools.code(edit("code.rs", "", "x")).await, "invalid_argument");
    assert_eq!(tools.code(edit("code.rs", "pub", "pub")).await, "nothing_to_change");
    assert_eq!(tools.code(edit("none", "a", "b")).await, "not_found");
    guest.write("braces", "}\n}\n}\n");
    let error = tools.run(edit("braces", "}\n}\n", "x")).await;
    assert_eq!(error.code(), "not_unique", "the two places overlap");
    assert!(error.result.error.unwrap().message.contains("(lines 1, 2)"));
    assert_eq!(guest.read("braces"), "}\n}\n}\n");
    let large = std::fs::File::create(guest.workspace().join("large")).unwrap();
    large.set_len((16 << 20) + 1).unwrap();
    assert_eq!(tools.code(edit("large", "a", "b")).await, "file_too_large");
    guest.write("binary", b"\0\xffold\0");
    tools.text(edit("binary", "old", "newer")).await;
    assert_eq!(std::fs::read(guest.workspace().join("binary")).unwrap(), b"\0\xffnewer\0");
}

#[tokio::test]
async fn moving_never_replaces() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    let move_file = |from: &str, to: &str| json!({"tool": "move_file", "from": from, "to": to});
    guest.write("a", "a");
    guest.write("b", "b");
    assert_eq!(tools.code(move_file("a", "b")).await, "already_exists");
    assert_eq!(tools.code(move_file("none", "deep/c")).await, "not_found");
    assert!(!guest.workspace().join("deep").exists(), "nothing is made for a move that fails");
    assert_eq!(tools.text(move_file("a", "deep/er/c")).await, "moved a to deep/er/c");
    assert_eq!(guest.read("deep/er/c"), "a");
    tools.text(move_file("deep", "folder")).await;
    assert_eq!(guest.read("folder/er/c"), "a");
    assert_eq!(tools.code(move_file("folder", "folder/er/x")).await, "into_itself");
    symlink("/etc", guest.workspace().join("link")).unwrap();
    tools.text(move_file("link", "moved-link")).await;
    assert_eq!(
        std::fs::read_link(guest.workspace().join("moved-link")).unwrap().to_str(),
        Some("/etc")
    );
}

#[tokio::test]
async fn deleting_follows_nothing() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    let delete = |path: &str| json!({"tool": "delete_file", "path": path});
    let delete_all = |path: &str| json!({"tool": "delete_file", "path": path, "recursive": true});
    guest.write("folder/sub/file", "x");
    std::fs::write(guest.outside().join("precious"), "x").unwrap();
    symlink(guest.outside(), guest.workspace().join("folder/out")).unwrap();
    symlink(guest.outside(), guest.workspace().join("out")).unwrap();
    assert_eq!(tools.code(delete("folder")).await, "folder_not_empty");
    tools.text(delete("out")).await;
    tools.text(delete_all("folder")).await;
    assert!(!guest.workspace().join("folder").exists());
    assert!(guest.outside().join("precious").exists());
    for path in [".", "/workspace", "/workspace/", "./"] {
        assert_eq!(tools.code(delete_all(path)).await, "is_the_workspace", "{path}");
    }
    assert_eq!(tools.code(delete("..")).await, "outside_workspace");
    assert_eq!(tools.code(delete("gone")).await, "not_found");
    std::fs::create_dir(guest.workspace().join("empty")).unwrap();
    tools.text(delete("empty")).await;
}

#[tokio::test]
async fn no_symlink_leads_out() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    std::fs::write(guest.outside().join("secret"), "secret line\n").unwrap();
    std::fs::create_dir(guest.outside().join("around")).unwrap();
    let workspace = guest.workspace();
    guest.write("folder/inner", "inner\n");
    symlink("/etc/passwd", workspace.join("absolute")).unwrap();
    symlink("../secret", workspace.join("relative")).unwrap();
    symlink("..", workspace.join("up")).unwrap();
    symlink("/proc/self/root", workspace.join("magic")).unwrap();
    symlink("../../around", workspace.join("folder/middle")).unwrap();
    symlink("chain2", workspace.join("chain1")).unwrap();
    symlink("up/secret", workspace.join("chain2")).unwrap();

    for path in
        ["absolute", "relative", "up/secret", "chain1", "magic/etc/passwd", "folder/middle/x"]
    {
        for call in [
            read(path),
            write(path, "overwritten"),
            edit(path, "secret", "changed"),
            json!({"tool": "search_files", "pattern": "s", "path": path}),
            json!({"tool": "list_files", "path": path}),
        ] {
            assert_eq!(tools.code(call.clone()).await, "outside_workspace", "{call}");
        }
    }
    for call in [
        json!({"tool": "delete_file", "path": "up/secret"}),
        json!({"tool": "delete_file", "path": "up/around", "recursive": true}),
        json!({"tool": "move_file", "from": "up/secret", "to": "mine"}),
        json!({"tool": "move_file", "from": "folder/inner", "to": "up/theirs"}),
        json!({"tool": "move_file", "from": "folder/inner", "to": "folder/middle/new/theirs"}),
        write("folder/middle/new/file", "x"),
        write("up/new", "x"),
    ] {
        assert_eq!(tools.code(call.clone()).await, "outside_workspace", "{call}");
    }
    assert_eq!(std::fs::read_to_string(guest.outside().join("secret")).unwrap(), "secret line\n");
    assert_eq!(std::fs::read_dir(guest.outside().join("around")).unwrap().count(), 0);

    // Walks do not enter them either, and links that stay inside do work.
    let found = json!({"tool": "search_files", "pattern": "secret line|root:"});
    assert_eq!(tools.text(found).await, "[no line matches]\n");
    symlink("folder/inner", workspace.join("inside")).unwrap();
    symlink("../folder", workspace.join("folder/self")).unwrap();
    assert_eq!(tools.text(read("inside")).await, "     1\tinner\n");
    tools.text(write("inside", "through\n")).await;
    assert_eq!(guest.read("folder/inner"), "through\n");
    assert!(workspace.join("inside").is_symlink());
    tools.text(edit("folder/self/self/inner", "through", "again")).await;
    assert_eq!(guest.read("folder/inner"), "again\n");
    symlink("nowhere", workspace.join("dangling")).unwrap();
    assert_eq!(tools.code(write("dangling", "x")).await, "not_found");
    symlink("loop", workspace.join("loop")).unwrap();
    assert_eq!(tools.code(read("loop")).await, "symlink_loop");
}
