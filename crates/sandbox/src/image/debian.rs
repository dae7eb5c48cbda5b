//! The Debian part of an image: packages fetched by the host's apt, put together by mmdebstrap.

mod output;
mod sources;

use std::path::Path;

use tokio::process::Command;

use super::enclosure::{Enclosure, Network, require_program};
use super::error::{ImageError, Registry};
use super::identity::Architecture;
use super::program::run;
use super::progress::{Stage, StageBoard};
use super::recipe::Recipe;
use output::InstallationProgress;
use sources::HostApt;
pub(crate) use sources::{ASK_FOR_TARGETS, debian_sources};

const STAGES: [Stage; 3] = [Stage::Resolve, Stage::EssentialPackages, Stage::Packages];

/// dpkg syncs its database thousands of times in one build, and `force-unsafe-io` does not cover
/// that. So the database stays in memory until the packages are installed.
const DPKG_TO_MEMORY: &str = r#"set -e; cd "$1/var/lib"; mv dpkg dpkg.disk; mkdir dpkg
mount -t tmpfs -o mode=0755 dpkg dpkg; cp -a dpkg.disk/. dpkg; rm -r dpkg.disk"#;
const DPKG_TO_DISK: &str =
    r#"set -e; cd "$1/var/lib"; cp -a dpkg dpkg.disk; umount dpkg; rmdir dpkg; mv dpkg.disk dpkg"#;

/// Makes a Debian tree at `rootfs`, which must not exist yet.
pub(super) async fn install(
    recipe: &Recipe,
    architecture: Architecture,
    enclosure: Enclosure,
    rootfs: &Path,
    board: &StageBoard<'_>,
) -> Result<(), ImageError> {
    require_program("mmdebstrap", "mmdebstrap")?;
    let apt = HostApt::ask(&recipe.suite).await;
    let mut progress = InstallationProgress::default();
    let command = mmdebstrap(recipe, architecture, enclosure, rootfs, &apt);
    let outcome = run(command, |line| {
        if let Some(update) = progress.read(line) {
            let earlier = STAGES.iter().take_while(|stage| **stage < update.stage);
            board.finished(&earlier.copied().collect::<Vec<_>>());
            board.update(update);
        }
    })
    .await
    .map_err(ImageError::io("run mmdebstrap for", rootfs))?;
    if !outcome.status.success() {
        let stage = progress.stage();
        return Err(ImageError::of_outcome(stage, "mmdebstrap", Some(Registry::Debian), &outcome));
    }
    board.finished(&STAGES);
    Ok(())
}

fn mmdebstrap(
    recipe: &Recipe,
    architecture: Architecture,
    enclosure: Enclosure,
    rootfs: &Path,
    apt: &HostApt,
) -> Command {
    let mut command = enclosure.command(Network::OfTheHost, "mmdebstrap");
    command.args(["--verbose", "--mode=root", "--format=directory", "--variant=apt"]);
    // Sandboxes make their own /dev; /sys cannot be mounted in a user namespace that does not own
    // its network, and no package of an image needs it.
    command.args(["--skip=output/dev", "--skip=chroot/mount/sys"]);
    // An interrupted build is thrown away, so there is no use in waiting for the disk.
    command.arg("--dpkgopt=force-unsafe-io");
    command.arg(format!("--setup-hook={DPKG_TO_MEMORY}"));
    command.arg(format!("--customize-hook={DPKG_TO_DISK}"));
    command.args(recipe.debian.exclude.iter().map(|glob| format!("--dpkgopt=path-exclude={glob}")));
    command.args(apt.settings.iter().map(|setting| format!("--aptopt={setting}")));
    command.arg(format!("--architectures={}", architecture.debian_name()));
    command.arg(format!("--include={}", recipe.debian.packages.join(",")));
    command.arg("--").arg(&recipe.suite).arg(rootfs);
    match &recipe.debian.mirror {
        Some(mirror) => {
            command.arg(format!("deb {mirror} {} main", recipe.suite));
        }
        // With no source at all, mmdebstrap knows where Debian is.
        None => {
            command.args(&apt.sources);
        }
    }
    command
}
