//! What tools may leave in a workspace to trip those who look into it.

mod support;

use std::os::unix::fs::symlink;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::json;
use support::{TestGuest, Tools};

#[tokio::test]
async fn rules_are_read_from_plain_files_only() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    let rules = guest.workspace().join(".gitignore");
    let list = || json!({"tool": "list_files"});
    let search = || json!({"tool": "search_files", "pattern": "needle", "glob": "*.txt"});
    guest.write("a.txt", "needle\n");

    symlink("/dev/zero", &rules).unwrap();
    assert_eq!(tools.text(list()).await, ".gitignore -> /dev/zero\na.txt  7 B\n");
    assert_eq!(tools.text(search()).await, "a.txt:1:needle\n");
    std::fs::remove_file(&rules).unwrap();

    rustix::fs::mkfifoat(CWD, &rules, 0o644.into()).unwrap();
    assert_eq!(tools.text(list()).await, ".gitignore  (not a plain file)\na.txt  7 B\n");
    assert_eq!(tools.text(search()).await, "a.txt:1:needle\n");
    std::fs::remove_file(&rules).unwrap();

    // Rules in a file elsewhere are not this folder's.
    std::fs::write(guest.outside().join("rules"), "*.txt\n").unwrap();
    symlink(guest.outside().join("rules"), &rules).unwrap();
    assert_eq!(tools.text(search()).await, "a.txt:1:needle\n");
    std::fs::remove_file(&rules).unwrap();

    guest.write(".gitignore", "*.txt\n".repeat(1 << 20));
    assert_eq!(tools.text(search()).await, "a.txt:1:needle\n", "so large a file is no list");
    guest.write(".gitignore", "*.txt\n");
    assert_eq!(tools.text(search()).await, "[no line matches]\n");
    guest.write("below/.gitignore", "!b.txt\n");
    guest.write("below/b.txt", "needle\n");
    guest.write("below/c.txt", "needle\n");
    assert_eq!(tools.text(search()).await, "below/b.txt:1:needle\n", "the nearest rule decides");
}

#[tokio::test]
async fn a_folder_that_turns_into_a_symlink_leads_nowhere() {
    let guest = TestGuest::start();
    let tools = Tools::of(&guest).await;
    std::fs::create_dir(guest.outside().join("secret")).unwrap();
    for n in 0..20 {
        guest.write(&format!("folder/{n}"), "needle inside\n");
        std::fs::write(guest.outside().join(format!("secret/{n}")), "needle outside\n").unwrap();
    }
    let (folder, link) = (guest.workspace().join("folder"), guest.workspace().join("link"));
    symlink(guest.outside().join("secret"), &link).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let exchanging = std::thread::spawn({
        let done = done.clone();
        move || {
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, &folder, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        }
    });
    let mut seen = String::new();
    for _ in 0..200 {
        seen += &tools.text(json!({"tool": "search_files", "pattern": "needle"})).await;
        seen += &tools.text(json!({"tool": "list_files"})).await;
    }
    done.store(true, Ordering::Relaxed);
    exchanging.join().unwrap();
    assert!(seen.contains("needle inside"));
    assert!(!seen.contains("needle outside"));
}
