//! What the backend keeps true when launches fail and servers come back.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::DirBuilderExt as _;

use bellglass_protocol::job::Limits;
use bellglass_protocol::launch::{IdMapping, Launched};
use rustix::fs::CWD;
use rustix::process::Signal;

use super::unrecorded::processes_of;
use super::*;
use crate::backend::SetUp;
use crate::sandbox::Sandbox;

fn order(name: SandboxName, rootfs: PathBuf) -> SandboxOrder {
    SandboxOrder {
        name,
        rootfs,
        limits: Limits::default(),
        nested_sandboxing: false,
        orphaned_after: None,
    }
}

/// A backend in a folder of its own, and an order whose image has nothing in it.
fn empty() -> (tempfile::TempDir, NamespaceBackend, SandboxOrder) {
    let folder = tempfile::tempdir().unwrap();
    let backend = NamespaceBackend::new(folder.path().join("sandboxes")).unwrap();
    let order = order(SandboxName::throwaway(), folder.path().into());
    (folder, backend, order)
}

/// Children of this process that have ended and were not waited for.
fn corpses() -> Vec<String> {
    let own = std::process::id().to_string();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let stats = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let is_ours = |stat: &String| {
        let mut fields = stat[stat.rfind(')').unwrap() + 1..].split_whitespace();
        fields.next() == Some("Z") && fields.next() == Some(&own)
    };
    stats.filter(is_ours).collect()
}

#[tokio::test]
async fn a_failed_launch_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let backend = NamespaceBackend::new(folder.path().join("sandboxes")).unwrap();
    let image = folder.path().join("image");
    for needed in ["dev", "proc", "tmp", "workspace"] {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(image.join(needed)).unwrap();
    }
    let name = SandboxName::throwaway();
    let started = Sandbox::start(&backend, &order(name.clone(), image), "image").await;
    let failed = started.err().expect("there is no /etc");
    assert!(failed.to_string().contains("find /etc in the image"), "{failed}");
    assert_eq!(corpses(), Vec::<String>::new());
    assert!(!folder.path().join("sandboxes").join(name.as_str()).exists());
    let groups = backend.shared.groups.folders(name.as_str());
    assert!(groups.iter().all(|group| !group.exists()));
}

#[test]
fn a_launcher_that_hangs_is_ended() {
    let (folder, backend, order) = empty();
    let shared = &backend.shared;
    let launch_order = shared.launch_order(&order, folder.path(), IdMapping::Single);
    let time = std::time::Duration::from_millis(100);
    let mut launcher = shared.launcher.take(&shared.guest).unwrap();
    rustix::process::pidfd_send_signal(launcher.pidfd(), Signal::STOP).unwrap();
    launcher.prepare(&launch_order);
    let failed = launcher.launch_within(time, &order.name).err().expect("it stands still");
    assert!(failed.to_string().contains("has not answered"), "{failed}");
    assert_eq!(corpses(), Vec::<String>::new());
}

#[tokio::test]
async fn a_new_process_that_hangs_is_ended() {
    let (folder, backend, order) = empty();
    let shared = &backend.shared;
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(CWD, &pipe, 0o600.into()).unwrap();
    let mut launch_order = shared.launch_order(&order, folder.path(), IdMapping::Single);
    // A pipe that nobody reads is waited for when it is opened.
    launch_order.cgroup_joins = vec![pipe.to_string_lossy().into_owned()];
    let time = std::time::Duration::from_millis(300);
    let mut launcher = shared.launcher.take(&shared.guest).unwrap();
    launcher.prepare(&launch_order);
    let failed = launcher.launch_within(time, &order.name).err().expect("nobody reads there");
    assert!(failed.to_string().contains("has not answered"), "{failed}");
    assert!(processes_of(order.name.as_str()).is_empty());
    assert_eq!(corpses(), Vec::<String>::new());
}

#[tokio::test]
async fn what_was_begun_can_be_taken_back() {
    let (folder, backend, order) = empty();
    let shared = &backend.shared;
    let launch_order = shared.launch_order(&order, folder.path(), IdMapping::Single);
    let mut launcher = shared.launcher.take(&shared.guest).unwrap();
    launcher.prepare(&launch_order);
    while processes_of(order.name.as_str()).len() < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    launcher.abandon(&order.name, BackendError::Unsupported("not wanted".into()));
    assert!(processes_of(order.name.as_str()).is_empty());
    assert_eq!(corpses(), Vec::<String>::new());
}

/// Those that are kept, and orphans that are still there after the sweep.
#[tokio::test]
async fn a_sweep_reserves_the_ids_of_what_lives() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root gives out ranges of ids");
        return;
    }
    for is_kept in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let backend = NamespaceBackend::new(folder.path().join("sandboxes")).unwrap();
        let ids = backend.shared.ids.take().unwrap();
        backend.shared.ids.give_back(ids);
        let name = SandboxName::throwaway();
        let launched = Launched { pid: std::process::id() as i32, ..Launched::default() };
        let record = Record::new(name.clone(), launched, ids, vec![], SetUp::default(), None);
        let place = backend.shared.folder.join(name.as_str());
        private_folder(&place).unwrap();
        record.write(&place).unwrap();
        // Somebody holds it, so that it cannot be ended.
        let _hold = backend.shared.held.hold(&name);
        let keep = is_kept.then_some(name).into_iter().collect::<HashSet<_>>();
        assert_eq!(backend.sweep(&keep).await.unwrap(), 0);
        // More than are registered at once: all of those were given. The host has others who need some.
        for _ in 0..100 {
            assert_ne!(backend.shared.ids.take().unwrap(), ids, "it is in use");
        }
    }
}

#[test]
fn groups_are_removed_from_where_they_were_made() {
    let folder = tempfile::tempdir().unwrap();
    let backend = NamespaceBackend::new(folder.path().join("sandboxes")).unwrap();
    let elsewhere = folder.path().join("another-scope");
    fs::create_dir(&elsewhere).unwrap();
    let name = SandboxName::throwaway();
    let launched = Launched { pid: i32::MAX, ..Launched::default() };
    let groups = vec![elsewhere.clone()];
    let record = Record::new(
        name.clone(),
        launched,
        IdMapping::Single,
        groups.clone(),
        SetUp::default(),
        None,
    );
    let kept = backend.shared.folder.join(name.as_str());
    private_folder(&kept).unwrap();
    record.write(&kept).unwrap();
    assert_eq!(Record::read(&kept).unwrap().groups, groups);
    backend.shared.remove(&name).unwrap();
    assert!(!elsewhere.exists() && !kept.exists());
}
