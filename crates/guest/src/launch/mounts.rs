//! The sandbox's file system: image, overlay, workspace, and nothing of the host.

use std::fs::{self, Permissions};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use bellglass_protocol::launch::{IdMapping, LaunchOrder};
use bellglass_protocol::quantity::ByteSize;

use super::Failed;
use super::syscalls::{
    Stage as _, attach_mount, mount, open_tree_clone, set_id_mapped, set_read_only,
};

/// Where the image comes from.
pub(super) enum ImageSource {
    /// A detached mount whose owners are shifted into the sandbox's ids; only root can make one.
    Shifted(OwnedFd),
    /// A folder whose files already belong to the ids that the sandbox is given.
    Folder(PathBuf),
}

impl ImageSource {
    pub(super) fn prepare(order: &LaunchOrder) -> Result<Self, Failed> {
        let folder = PathBuf::from(&order.rootfs);
        match order.ids {
            IdMapping::Range { .. } => {
                open_tree_clone(&folder).map(Self::Shifted).stage("open the image")
            }
            IdMapping::Subordinate { .. } | IdMapping::Single => Ok(Self::Folder(folder)),
        }
    }

    /// Shifts the image's owners into the ids of a user namespace.
    pub(super) fn map_ids(&self, namespace: BorrowedFd<'_>) -> Result<(), Failed> {
        match self {
            Self::Shifted(tree) => set_id_mapped(tree.as_fd(), namespace)
                .stage("shift the image's owners (an idmapped mount)"),
            Self::Folder(_) => Ok(()),
        }
    }

    /// Goes to the image while this process still is the user who may reach it: the folders above
    /// it are often closed to the ids that the sandbox is given.
    pub(super) fn approach(&self) -> Result<(), Failed> {
        match self {
            Self::Shifted(_) => Ok(()),
            Self::Folder(folder) => rustix::process::chdir(folder).stage("enter the image"),
        }
    }

    fn attach(self, target: &Path) -> Result<(), Failed> {
        match self {
            Self::Shifted(tree) => attach_mount(tree.as_fd(), target).stage("attach the image"),
            Self::Folder(_) => {
                mount(".", target, "", libc::MS_BIND, "").stage("attach the image")?;
                set_read_only(target).stage("make the image read-only")
            }
        }
    }
}

/// A folder of the host that exists everywhere. Inside the new mount namespace it is covered at
/// once by the sandbox's own scratch space, and after the pivot it is gone.
pub(super) const SCRATCH: &str = "/tmp";

/// Builds the new root and returns where it stands, still beside the host's.
///
/// What is written inside goes to the file system `scratch_disk`, or to memory if there is none.
pub(super) fn assemble(
    order: &LaunchOrder,
    image: ImageSource,
    scratch_disk: Option<OwnedFd>,
) -> Result<PathBuf, Failed> {
    // Nothing mounted here may reach the host, and nothing mounted there may appear here.
    mount("none", Path::new("/"), "", libc::MS_REC | libc::MS_PRIVATE, "")
        .stage("separate the mounts")?;
    let scratch = Path::new(SCRATCH);
    match scratch_disk {
        Some(disk) => attach_mount(disk.as_fd(), scratch),
        None => {
            let options = format!("mode=0755,{}", room(order.disk));
            mount("bellglass", scratch, "tmpfs", libc::MS_NOSUID | libc::MS_NODEV, &options)
        }
    }
    .stage("mount the sandbox's scratch space")?;
    let [lower, upper, work, root, workspace, tmp] =
        ["lower", "upper", "work", "root", "workspace", "tmp"].map(|name| scratch.join(name));
    for folder in [&lower, &upper, &work, &root, &workspace, &tmp] {
        fs::create_dir(folder).stage("make the sandbox's folders")?;
    }
    image.attach(&lower)?;
    // Before the overlay is there, which would copy what stands in the image first.
    let as_in_image =
        fs::metadata(lower.join("etc")).stage("find /etc in the image")?.permissions();
    let etc = upper.join("etc");
    fs::create_dir(&etc).stage("make /etc")?;
    fs::set_permissions(&etc, as_in_image).stage("make /etc as it is in the image")?;
    write_hosts(&order.name, &upper)?;
    let options = format!(
        "lowerdir={},upperdir={},workdir={},userxattr",
        lower.display(),
        upper.display(),
        work.display()
    );
    mount("overlay", &root, "overlay", libc::MS_NOSUID | libc::MS_NODEV, &options)
        .stage("mount the overlay")?;

    chown(&workspace, Some(order.guest.tool_uid), Some(order.guest.tool_gid))
        .stage("give the workspace to the tool user")?;
    fs::set_permissions(&tmp, Permissions::from_mode(0o1777)).stage("open /tmp to everybody")?;
    bind(&workspace, &root.join(order.guest.workspace.trim_start_matches('/')))?;
    bind(&tmp, &root.join("tmp"))?;
    Ok(root)
}

fn bind(source: &Path, target: &Path) -> Result<(), Failed> {
    fs::create_dir_all(target).stage("make a mount point")?;
    let flags = libc::MS_BIND;
    mount(&source.to_string_lossy(), target, "", flags, "")
        .stage(&format!("mount {}", target.display()))
}

/// Gives everything that is written inside another room. For a root that is in place.
pub(super) fn change_room(workspace: &str, disk: ByteSize) -> Result<(), Failed> {
    let flags = libc::MS_REMOUNT | libc::MS_NOSUID | libc::MS_NODEV;
    mount("none", Path::new(workspace), "", flags, &room(disk)).stage("change the disk's size")
}

fn room(disk: ByteSize) -> String {
    format!("size={},nr_inodes={}", disk.0, inodes(disk.0))
}

/// A file for each 8 KiB: enough for any source tree, bounded for a bomb of empty files.
fn inodes(bytes: u64) -> u64 {
    (bytes / 8192).max(1024)
}

pub(super) fn write_hosts(name: &str, root: &Path) -> Result<(), Failed> {
    let etc = root.join("etc");
    let hosts = format!("127.0.0.1 localhost {name}\n::1 localhost\n");
    fs::write(etc.join("hosts"), hosts).stage("write /etc/hosts")?;
    fs::write(etc.join("hostname"), format!("{name}\n")).stage("write /etc/hostname")
}
