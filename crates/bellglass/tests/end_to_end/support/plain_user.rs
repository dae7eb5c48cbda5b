//! A server that an ordinary user runs, with subordinate ids or without.
//!
//! The user exists for that server only: in a mount namespace of its own it finds its line in the
//! lists of users and of subordinate ids. Such a user needs an image that it owns; a small one is
//! copied once out of the usual one.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which ids the user can give to a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlainUser {
    /// A range of subordinate ids, by `newuidmap`.
    WithRange,
    /// Its own and no other.
    WithSingleId,
}

/// Nobody on the host has these.
pub(crate) const UID: u32 = 54_321;
pub(crate) const FIRST_SUBORDINATE_ID: u32 = 700_000_000;

/// People who log in have more groups than their own.
const GROUP: u32 = 27;

/// What the tools' user is inside becomes this outside, where there is a range: 0 is the user itself.
const TOOL_UID_OUTSIDE: u32 = FIRST_SUBORDINATE_ID + 1000 - 1;

impl PlainUser {
    /// Gives the test's folder to the user and puts into it what the user's world is made of.
    pub(crate) fn move_in(self, folder: &Path) {
        let is_root = rustix::process::geteuid().is_root();
        assert!(is_root, "only root can be another user; `make test` leaves such tests out");
        let user = format!("plain:x:{UID}:{UID}::{}:/bin/sh\n", folder.display());
        let users = fs::read_to_string("/etc/passwd").unwrap() + &user;
        fs::write(folder.join("passwd"), users).unwrap();
        let range = match self {
            Self::WithRange => format!("plain:{FIRST_SUBORDINATE_ID}:65536\n"),
            Self::WithSingleId => String::new(),
        };
        for list in ["subuid", "subgid"] {
            fs::write(folder.join(list), &range).unwrap();
        }
        fs::write(folder.join("bellglass"), "").unwrap();
        fs::create_dir(folder.join("images")).unwrap();
        let log = fs::File::create(folder.join("server.log")).unwrap();
        drop(log);
        for owned in ["", "images"] {
            chown(folder.join(owned), Some(UID), Some(UID)).unwrap();
        }
    }

    /// The same command as that user, in its world.
    pub(crate) fn command(self, folder: &Path, command: &Command, images: &Path) -> Command {
        const ENTER: &str = "set -e; home=$1 program=$2 images=$3; shift 3\n\
            for list in passwd subuid subgid; do mount --bind \"$home/$list\" /etc/$list; done\n\
            mount --bind \"$program\" \"$home/bellglass\"; mount --bind \"$images\" \"$home/images\"\n\
            exec setpriv --reuid $UID --regid $UID --groups $UID,$GROUP -- \"$home/bellglass\" \"$@\"";
        let mut entering = Command::new("unshare");
        entering.args(["--mount", "--propagation", "private", "--", "sh", "-c"]);
        entering
            .arg(ENTER.replace("$UID", &UID.to_string()).replace("$GROUP", &GROUP.to_string()))
            .arg("sh");
        entering.arg(folder).arg(command.get_program()).arg(self.image(images));
        entering.args(command.get_args()).current_dir(folder);
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => entering.env(name, value),
                None => entering.env_remove(name),
            };
        }
        entering.env("HOME", folder).env("BELLGLASS_IMAGES", folder.join("images"));
        entering
    }

    /// A folder of images with one small image that belongs to this user.
    fn image(self, images: &Path) -> PathBuf {
        let build = fs::read_link(images.join("base")).expect("`base` is a link to a build");
        let cached = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plain-user").join(&build);
        let kind = match self {
            Self::WithRange => "range",
            Self::WithSingleId => "single",
        };
        let folder = cached.join(kind);
        if !folder.exists() {
            fs::create_dir_all(&cached).unwrap();
            let draft = tempfile::tempdir_in(&cached).unwrap();
            self.copy_image(&images.join(&build), &draft.path().join("base"));
            // If another test was faster, its copy is as good.
            let _ = fs::rename(draft.keep(), &folder);
            fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o755))
                .unwrap();
        }
        folder
    }

    fn copy_image(self, from: &Path, to: &Path) {
        // Enough for bash, Python and C.
        const LEFT_OUT: [&str; 8] = [
            "./usr/local/*",
            "./usr/share",
            "./usr/lib/git-core",
            "./usr/lib/*/perl",
            "./var/lib",
            "lib*san.*",
            "cc1plus",
            "lto1",
        ];
        let rootfs = to.join("rootfs");
        fs::create_dir_all(&rootfs).unwrap();
        let excluded: Vec<String> = LEFT_OUT.map(|path| format!("--exclude={path}")).into();
        let script =
            "from=$1 to=$2; shift 2; tar -C \"$from\" \"$@\" -cf - . | tar -C \"$to\" -xf -";
        run(Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(from.join("rootfs"))
            .arg(&rootfs)
            .args(excluded));
        run(Command::new("chown").args(["-hR", &format!("{UID}:{UID}")]).arg(&rootfs));
        if self == Self::WithRange {
            for folder in ["workspace", "home/agent", "usr/local"] {
                let owner = Some(TOOL_UID_OUTSIDE);
                chown(rootfs.join(folder), owner, owner).unwrap();
            }
        }
        fs::copy(from.join("manifest.json"), to.join("manifest.json")).unwrap();
    }
}

fn run(command: &mut Command) {
    let status = command.status().unwrap();
    assert!(status.success(), "{command:?}");
}
