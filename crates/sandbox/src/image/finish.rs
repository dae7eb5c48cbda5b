//! The last stage of a build: lays the recipe's files and packages over the Debian tree and runs
//! the finishing script inside it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::enclosure::{Enclosure, Network};
use super::error::ImageError;
use super::identity::Architecture;
use super::program::run;
use super::progress::{Progress, Stage, StageBoard};
use super::recipe::Recipe;

/// Runs inside the tree. Part of an image's identity.
pub(super) const SCRIPT: &str = include_str!("../../../../image/finish.sh");

/// Goes into the tree and runs the script there. The arguments are the tree, what to lay over it,
/// the wheels, and the environment and command for inside.
const ENTER: &str = r#"
set -eu
root=$1 overlay=$2 wheels=$3 modules=usr/local/lib/node_modules
shift 3
# What the host's tools wrote must not depend on the host's umask.
chmod -R u=rwX,go=rX "$overlay" "$wheels"
# By far the most of it is moved, because a copy would take seconds.
if [ -d "$overlay/$modules" ] && [ ! -e "$root/$modules" ]; then
    mv --no-target-directory "$overlay/$modules" "$root/$modules"
fi
# Sandboxes make their own devices.
find "$root/dev" -mindepth 1 -delete
mount -t tmpfs -o mode=0755 dev "$root/dev"
mkdir -m 1777 "$root/dev/shm"
: >"$root/dev/null"
mount --bind /dev/null "$root/dev/null"
mount --bind "$overlay" "$root/mnt"
mount --bind "$wheels" "$root/media"
exec chroot "$root" /usr/bin/env -i "$@"
"#;

/// What is fetched on the host before it goes into the image.
pub(super) struct Staging {
    /// Laid over the image's root.
    pub overlay: PathBuf,
    pub wheels: PathBuf,
}

impl Staging {
    /// Makes the directories and writes the recipe's own files and links.
    pub(super) fn prepare(
        recipe: &Recipe,
        architecture: Architecture,
        parent: &Path,
    ) -> Result<Self, ImageError> {
        let staging = Self { overlay: parent.join("overlay"), wheels: parent.join("wheels") };
        for folder in [&staging.npm_prefix(), &staging.wheels] {
            fs::create_dir_all(folder).map_err(ImageError::io("create", folder))?;
        }
        for (path, content) in &recipe.files {
            let path = staging.inside(path)?;
            fs::write(&path, content).map_err(ImageError::io("write", &path))?;
        }
        for (path, target) in &recipe.links {
            let path = staging.inside(path)?;
            symlink(architecture.fill(target), &path).map_err(ImageError::io("link", &path))?;
        }
        Ok(staging)
    }

    pub(super) fn npm_prefix(&self) -> PathBuf {
        self.overlay.join("usr/local")
    }

    /// Where an absolute path of the image lies in the overlay; its folder is made.
    fn inside(&self, path: &str) -> Result<PathBuf, ImageError> {
        let path = self.overlay.join(path.trim_start_matches('/'));
        let folder = path.parent().unwrap_or(&self.overlay);
        fs::create_dir_all(folder).map_err(ImageError::io("create", folder))?;
        Ok(path)
    }
}

/// Completes the tree at `rootfs` and says how many bytes it takes on disk.
pub(super) async fn finish(
    recipe: &Recipe,
    enclosure: Enclosure,
    staging: &Staging,
    rootfs: &Path,
    board: &StageBoard<'_>,
) -> Result<u64, ImageError> {
    let detail = "configuring the image".to_owned();
    board.update(Progress { done: 0, total: 2, detail, stage: Stage::Finish });
    let user = &recipe.user;
    let python = recipe.python.as_ref().map_or("", |python| python.version.as_str());
    let mut command = enclosure.command(Network::None, "sh");
    command.args(["-c", ENTER, "enter"]).arg(rootfs).arg(&staging.overlay).arg(&staging.wheels);
    command.args(["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "HOME=/root"]);
    command.arg("LC_ALL=C.UTF-8");
    command.args([format!("USER_NAME={}", user.name), format!("USER_ID={}", user.id)]);
    command.args([format!("USER_HOME={}", user.home), format!("USER_SHELL={}", user.shell)]);
    command.arg(format!("PYTHON_VERSION={python}")).args(["/bin/sh", "-c", SCRIPT]);
    let outcome =
        run(command, |_| {}).await.map_err(ImageError::io("run the last steps in", rootfs))?;
    if !outcome.status.success() {
        let program = "the finishing script";
        return Err(ImageError::of_outcome(Stage::Finish, program, None, &outcome));
    }
    let detail = "measuring".to_owned();
    board.update(Progress { done: 1, total: 2, detail, stage: Stage::Finish });
    let size = disk_usage(enclosure, rootfs).await?;
    let detail = "done".to_owned();
    board.update(Progress { done: 2, total: 2, detail, stage: Stage::Finish });
    Ok(size)
}

/// Some folders of an image can only be read by its root.
async fn disk_usage(enclosure: Enclosure, path: &Path) -> Result<u64, ImageError> {
    let mut command = enclosure.command(Network::None, "du");
    command.args(["-s", "-x", "--block-size=1", "--"]).arg(path);
    let outcome = run(command, |_| {}).await.map_err(ImageError::io("measure", path))?;
    let size = outcome.last_lines.iter().find_map(|line| line.split('\t').next()?.parse().ok());
    size.ok_or_else(|| ImageError::of_outcome(Stage::Finish, "du", None, &outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_links_of_the_recipe_are_staged() {
        let parent = tempfile::tempdir().unwrap();
        let staging =
            Staging::prepare(&Recipe::base(), Architecture::Amd64, parent.path()).unwrap();
        let read = |path: &str| fs::read_to_string(staging.overlay.join(path)).unwrap();
        assert!(read("etc/pip.conf").starts_with("[global]\n"));
        assert!(read("home/agent/.npmrc").contains("fund=false\n"));
        let link = fs::read_link(staging.overlay.join("usr/local/bin/deno")).unwrap();
        assert_eq!(link, Path::new("../lib/node_modules/@deno/linux-x64-glibc/deno"));
    }
}
