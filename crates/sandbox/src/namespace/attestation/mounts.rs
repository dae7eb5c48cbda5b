//! What is mounted in a sandbox, held against what stands in every cage. Pure.

use bellglass_protocol::cage::{
    COVERED_FILES, COVERED_FOLDERS, DEVICES, READ_ONLY_FOLDERS, WORKSPACE,
};
use bellglass_protocol::report::{Check, MountPoint};

use super::check;

/// Nothing of the host is mounted: only what stands in every cage, no set-uid anywhere, and device
/// files only as single files below /dev. What `open_proc` names is covered or read-only.
pub(super) fn mounts(mounts: &[MountPoint], open_proc: &[&str]) -> Check {
    let mut problems = Vec::new();
    for MountPoint { path, kind, flags } in mounts {
        let has = |flag: &str| flags.split(',').any(|each| each == flag);
        let furniture = Furniture::at(path);
        if !furniture.as_ref().is_some_and(|expected| expected.is_of(kind, mounts)) {
            problems.push(format!("{path} is {kind}"));
        }
        let is_device = matches!(furniture, Some(Furniture::Device | Furniture::CoveredFile));
        let is_in_proc = path.starts_with("/proc/");
        if !has("nosuid") && !is_device && !is_in_proc {
            problems.push(format!("{path} allows set-uid programs"));
        }
        if !has("nodev") && !path.starts_with("/dev") && !is_in_proc {
            problems.push(format!("{path} allows device files"));
        }
    }
    let last_at = |path: &str| mounts.iter().rev().find(|mount| mount.path == path);
    let is_read_only = |path: &str| {
        last_at(path).is_some_and(|mount| mount.flags.split(',').any(|flag| flag == "ro"))
    };
    if !is_read_only("/dev") {
        problems.push("/dev is not read-only".into());
    }
    for name in open_proc {
        let path = format!("/proc/{name}");
        match READ_ONLY_FOLDERS.contains(name) {
            true if !is_read_only(&path) => problems.push(format!("{path} is not read-only")),
            false if last_at(&path).is_none() => problems.push(format!("{path} is not covered")),
            _ => {}
        }
    }
    check("mounts", "the sandbox's own, without set-uid programs and devices", problems)
}

/// What is mounted at a place in every cage.
#[derive(Debug, PartialEq, Eq)]
enum Furniture {
    Of(&'static [&'static str]),
    Device,
    CoveredFile,
}

impl Furniture {
    fn at(path: &str) -> Option<Self> {
        let below = |folder: &str, names: &[&str]| {
            path.strip_prefix(folder).is_some_and(|name| names.contains(&name))
        };
        match path {
            "/" => Some(Self::Of(&["overlay"])),
            // The sandbox's scratch space, which is in memory or on a disk of its own.
            WORKSPACE | "/tmp" => Some(Self::Of(&["tmpfs", "ext4"])),
            "/dev" | "/dev/shm" => Some(Self::Of(&["tmpfs"])),
            "/dev/pts" => Some(Self::Of(&["devpts"])),
            "/proc" => Some(Self::Of(&["proc"])),
            _ if below("/dev/", &DEVICES) => Some(Self::Device),
            _ if below("/proc/", &COVERED_FILES) => Some(Self::CoveredFile),
            _ if below("/proc/", &COVERED_FOLDERS) => Some(Self::Of(&["tmpfs"])),
            _ if below("/proc/", &READ_ONLY_FOLDERS) => Some(Self::Of(&["proc"])),
            _ => None,
        }
    }

    fn is_of(&self, kind: &str, mounts: &[MountPoint]) -> bool {
        match self {
            Self::Of(kinds) => kinds.contains(&kind),
            // Of whatever kind the host's /dev is.
            Self::Device => true,
            // What lies there is /dev/null.
            Self::CoveredFile => {
                mounts.iter().any(|mount| mount.path == "/dev/null" && mount.kind == kind)
            }
        }
    }
}
