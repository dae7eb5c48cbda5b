//! Where groups can be made on a host with version 2 only.
//!
//! A group there has either processes or groups below it that get controllers, so room is made first.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Controller, FAMILY, is_usable, mount_point};

/// The name of the group beside all sandboxes' that our own process moves to.
const SERVER: &str = "bellglass-server";

/// The folder for groups, once for each controller that they can have there.
pub(super) fn parents(mounts: &str, own: &str) -> Vec<(Controller, PathBuf)> {
    let Some(mount) = mount_point(mounts, "cgroup2", None) else { return Vec::new() };
    let path = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let mut here = mount.join(path.trim_start_matches('/'));
    // Where this process was before it moved, also if that was in another look at the host.
    if here.ends_with(SERVER) {
        here.pop();
    }
    let mut found = places(here, &mount).into_iter().map(|base| parents_below(&base, &mount));
    found.find(|parents| !parents.is_empty()).unwrap_or_default()
}

/// Where groups may be made, the best first: below the group this process is in, so that limits set on us
/// from outside hold too. But a service manager hands on no more controllers than it needs itself, which
/// for a service that is not delegated are too few: then a job's own limits are worth more, and root finds
/// all at the top. Only looked at, since a group that was divided for nothing takes no process any more.
fn places(here: PathBuf, mount: &Path) -> Vec<PathBuf> {
    let offer = |group: &Path| {
        let names = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
        let is_offered =
            |each: &&Controller| names.split_whitespace().any(|it| it == each.kernel_name());
        Controller::ALL.iter().filter(is_offered).count()
    };
    let mut places = vec![here, mount.to_owned()];
    places.dedup();
    // The sort is stable: among equals the nearest stays the first.
    places.sort_by_key(|group| std::cmp::Reverse(offer(group)));
    places
}

fn parents_below(base: &Path, mount: &Path) -> Vec<(Controller, PathBuf)> {
    let family = base.join(FAMILY);
    if !is_usable(&family) {
        return Vec::new();
    }
    if !make_room(base, mount) {
        // Nobody else's group keeps one of ours that is of no use.
        let _ = fs::remove_dir(&family);
        return Vec::new();
    }
    for controller in Controller::ALL {
        let word = format!("+{}", controller.kernel_name());
        let _ = fs::write(base.join("cgroup.subtree_control"), &word);
        let _ = fs::write(family.join("cgroup.subtree_control"), &word);
    }
    let given = fs::read_to_string(family.join("cgroup.subtree_control")).unwrap_or_default();
    let is_given = |each: &Controller| given.split_whitespace().any(|it| it == each.kernel_name());
    let controllers = Controller::ALL.into_iter().filter(is_given);
    controllers.map(|each| (each, family.clone())).collect()
}

/// Moves the processes of a group to a leaf below it: ours, and others too if the group was made to be
/// divided. Says whether none is left. The root group is exempt from the rule and stays as it is.
fn make_room(base: &Path, mount: &Path) -> bool {
    /// Who is about to be moved may be starting others, which have to be moved then.
    const ROUNDS: usize = 10;
    if is_root_group(base) {
        return true;
    }
    let own = std::process::id().to_string();
    let leaf = base.join(SERVER).join("cgroup.procs");
    for _ in 0..ROUNDS {
        let members = fs::read_to_string(base.join("cgroup.procs")).unwrap_or_default();
        if members.is_empty() {
            return true;
        }
        if members.lines().any(|pid| pid != own) && !is_made_to_be_divided(base, mount) {
            return false;
        }
        let _ = fs::create_dir(base.join(SERVER));
        for pid in members.lines() {
            let _ = fs::write(&leaf, pid);
        }
    }
    false
}

/// Whether all that is in a group is its owner's to arrange: in a container, whose groups begin with this
/// one, and where systemd has marked it as delegated. A group that merely belongs to our user may be the one
/// of a terminal, which is systemd's.
fn is_made_to_be_divided(group: &Path, mount: &Path) -> bool {
    let is_marked = |name: &str| {
        let mut mark = [0; 1];
        rustix::fs::getxattr(group, name, &mut mark).is_ok_and(|size| size == 1 && mark == *b"1")
    };
    group == mount || is_marked("user.delegate") || is_marked("trusted.delegate")
}

/// Whether this is the group that all of the machine's are in. What is mounted need not be: in a
/// container it mostly is a group far below. All but the root have a type.
fn is_root_group(group: &Path) -> bool {
    !group.join("cgroup.type").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree that looks like version 2's, as far as folders and files do: no kernel is behind them.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            // The machine's root group has no type, and processes in it are in nobody's way.
            fs::write(tree.mount().join("cgroup.procs"), "1\n2\n").unwrap();
            tree
        }

        fn mount(&self) -> &Path {
            self.0.path()
        }

        fn group(&self, path: &str, members: &[u32]) {
            let group = self.mount().join(path);
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join("cgroup.type"), "domain\n").unwrap();
            let members: String = members.iter().map(|pid| format!("{pid}\n")).collect();
            fs::write(group.join("cgroup.procs"), members).unwrap();
        }

        /// The groups of ours that are there after a look.
        fn made(&self, own: &str) -> Vec<PathBuf> {
            let mounts =
                format!("30 25 0:26 /x {} rw - cgroup2 cgroup2 rw\n", self.mount().display());
            // Nothing is given here, since no kernel is behind these files.
            assert_eq!(parents(&mounts, &format!("0::/{own}\n")), []);
            let mut made = Vec::new();
            let mut folders = vec![self.mount().to_owned()];
            while let Some(folder) = folders.pop() {
                let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
                folders.extend(entries.filter(|path| path.is_dir()));
                if folder.ends_with(SERVER) {
                    made.push(folder.strip_prefix(self.mount()).unwrap().to_owned());
                }
            }
            made.sort();
            made
        }
    }

    fn own() -> u32 {
        std::process::id()
    }

    #[test]
    fn our_process_makes_room_in_every_group_but_the_root() {
        let tree = Tree::new();
        assert_eq!(tree.made(""), Vec::<PathBuf>::new());
        // In a container the group that is mounted looks like the root by its path alone.
        tree.group("", &[own()]);
        assert_eq!(tree.made(""), [PathBuf::from(SERVER)]);
        assert_eq!(tree.made(SERVER), [PathBuf::from(SERVER)]);
        let moved = fs::read_to_string(tree.mount().join(SERVER).join("cgroup.procs")).unwrap();
        assert_eq!(moved, own().to_string());
    }

    #[test]
    fn looking_again_moves_our_process_no_deeper() {
        let tree = Tree::new();
        tree.group("user.slice/app.scope", &[own()]);
        let leaf = PathBuf::from("user.slice/app.scope").join(SERVER);
        assert_eq!(tree.made("user.slice/app.scope"), std::slice::from_ref(&leaf));
        assert_eq!(tree.made(&leaf.display().to_string()), [leaf]);
    }

    #[test]
    fn others_are_moved_only_where_all_is_ours_to_arrange() {
        let tree = Tree::new();
        tree.group("user.slice/session.scope", &[own(), 77]);
        assert_eq!(tree.made("user.slice/session.scope"), Vec::<PathBuf>::new());
        let left = tree.mount().join("user.slice/session.scope").join(FAMILY);
        assert!(!left.exists(), "a group that is of no use stays in somebody else's");
        // A container's first process is in the group that is mounted there.
        tree.group("", &[1, own()]);
        assert_eq!(tree.made(""), [PathBuf::from(SERVER)]);
    }

    #[test]
    fn the_group_that_offers_the_most_comes_first_and_among_equals_the_nearest() {
        let tree = Tree::new();
        let (here, mount) = (tree.mount().join("plain.service"), tree.mount().to_owned());
        tree.group("plain.service", &[own()]);
        let offers = |group: &Path, names: &str| {
            fs::write(group.join("cgroup.controllers"), names).unwrap();
        };
        offers(&mount, "cpuset cpu io memory pids\n");
        offers(&here, "memory pids\n");
        assert_eq!(places(here.clone(), &mount), [mount.clone(), here.clone()]);
        offers(&here, "cpu memory pids\n");
        assert_eq!(places(here.clone(), &mount), [here, mount.clone()]);
        assert_eq!(places(mount.clone(), &mount), [mount]);
    }
}
