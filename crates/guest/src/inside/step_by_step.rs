//! Opens what is beneath a folder where the kernel cannot promise that by itself (no `openat2`).
//!
//! Each component is opened by its single name in the folder before it and never followed as a
//! symlink by the kernel. Where a symlink stands, its text is taken apart here, and `..` goes back to
//! a folder that was passed on the way. So whatever is renamed meanwhile, no step leads out.

use std::collections::VecDeque;
use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// What is done where a symlink stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    /// It is followed if it stays beneath; the last component only without `NOFOLLOW`.
    FollowBeneath,
    /// On the way it is an error. The last component is opened as `NOFOLLOW` says.
    Refuse,
}

/// As many as the kernel follows.
const MOST_LINKS: u32 = 40;

pub(super) fn open(
    root: BorrowedFd<'_>,
    path: &CStr,
    flags: OFlags,
    links: Links,
) -> Result<OwnedFd, Errno> {
    let mut walk =
        Walk { root, passed: Vec::new(), ahead: VecDeque::new(), links_left: MOST_LINKS };
    walk.look_ahead(OsStr::from_bytes(path.to_bytes()))?;
    let follow_last = links == Links::FollowBeneath && !flags.contains(OFlags::NOFOLLOW);
    while let Some(part) = walk.ahead.pop_front() {
        let Part::Down(name) = part else {
            walk.passed.pop().ok_or(Errno::XDEV)?;
            continue;
        };
        let is_last = walk.ahead.is_empty();
        let found = open_at(walk.here(), &name, OFlags::PATH)?;
        let is_link = kind(&found)? == FileType::Symlink;
        if is_last && !(is_link && follow_last) {
            return open_last(walk.here(), &name, flags, is_link);
        }
        match (is_link, links) {
            (false, _) => walk.passed.push(found),
            (true, Links::FollowBeneath) => walk.follow(&name)?,
            (true, Links::Refuse) => return Err(Errno::LOOP),
        }
    }
    open_at(walk.here(), OsStr::new("."), flags)
}

/// Opens the last component for what it is wanted for. A symlink that came there since is not
/// followed: with `PATH` it would be opened as such, so it is looked at again.
fn open_last(
    folder: BorrowedFd<'_>,
    name: &OsStr,
    flags: OFlags,
    may_be_link: bool,
) -> Result<OwnedFd, Errno> {
    let opened = open_at(folder, name, flags)?;
    if !may_be_link && flags.contains(OFlags::PATH) && kind(&opened)? == FileType::Symlink {
        return Err(Errno::LOOP);
    }
    Ok(opened)
}

enum Part {
    Down(OsString),
    Up,
}

struct Walk<'a> {
    root: BorrowedFd<'a>,
    /// The folders from below the root to here.
    passed: Vec<OwnedFd>,
    ahead: VecDeque<Part>,
    links_left: u32,
}

impl Walk<'_> {
    fn here(&self) -> BorrowedFd<'_> {
        self.passed.last().map_or(self.root, |folder| folder.as_fd())
    }

    /// Puts the components of a path before those that are still to come.
    fn look_ahead(&mut self, path: &OsStr) -> Result<(), Errno> {
        for component in Path::new(path).components().rev() {
            self.ahead.push_front(match component {
                Component::Normal(name) => Part::Down(name.into()),
                Component::ParentDir => Part::Up,
                Component::CurDir => continue,
                Component::RootDir | Component::Prefix(_) => return Err(Errno::XDEV),
            });
        }
        Ok(())
    }

    fn follow(&mut self, name: &OsStr) -> Result<(), Errno> {
        self.links_left = self.links_left.checked_sub(1).ok_or(Errno::LOOP)?;
        let target = match rustix::fs::readlinkat(self.here(), name, Vec::new()) {
            // It is no symlink any more: somebody is renaming.
            Err(Errno::INVAL) => return Err(Errno::AGAIN),
            target => target?,
        };
        self.look_ahead(&OsString::from_vec(target.into_bytes()))
    }
}

fn open_at(folder: BorrowedFd<'_>, name: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    loop {
        match rustix::fs::openat(folder, name, flags, Mode::empty()) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn kind(fd: &OwnedFd) -> Result<FileType, Errno> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode))
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, ResolveFlags};

    use super::*;

    /// Both ways are tried on the same tree and must come to the same file or the same error.
    #[test]
    fn it_opens_what_the_kernel_would() {
        let outside = tempfile::tempdir().unwrap();
        let root = outside.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(outside.path().join("secret"), "s").unwrap();
        fs::write(root.join("file"), "f").unwrap();
        fs::write(root.join("a/b/deep"), "d").unwrap();
        for (link, target) in [
            ("to-file", "file"),
            ("a/up", "../file"),
            ("a/b/far-up", "../../a/b/deep"),
            ("out", "../secret"),
            ("a/out", "../../secret"),
            ("sly", "a/../../root/file"),
            ("absolute", "/etc/passwd"),
            ("to-folder", "a/b"),
            ("to-link", "to-folder/far-up"),
            ("loop", "loop"),
            ("dangling", "nothing"),
            ("dot", "."),
            ("a/parent", ".."),
        ] {
            symlink(target, root.join(link)).unwrap();
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(CWD, &root, flags, Mode::empty()).unwrap();
        let paths = [
            ".",
            "file",
            "a",
            "a/b",
            "a/b/deep",
            "to-file",
            "a/up",
            "a/b/far-up",
            "out",
            "a/out",
            "sly",
            "absolute",
            "to-folder",
            "to-folder/deep",
            "to-link",
            "loop",
            "dangling",
            "dot",
            "dot/file",
            "a/parent",
            "a/parent/file",
            "a/parent/out",
            "file/x",
            "missing",
            "..",
            "a/..",
            "a/../..",
            "../root/file",
            "/etc/passwd",
            "to-file/x",
            "a/./b//deep",
        ];
        let wanted = [
            OFlags::RDONLY,
            OFlags::PATH,
            OFlags::PATH | OFlags::NOFOLLOW,
            OFlags::RDONLY | OFlags::NOFOLLOW,
            OFlags::RDONLY | OFlags::DIRECTORY,
            OFlags::PATH | OFlags::DIRECTORY,
        ];
        for path in paths {
            let path = CString::new(path).unwrap();
            for flags in wanted {
                for links in [Links::FollowBeneath, Links::Refuse] {
                    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
                    let (resolve, flags) = match links {
                        Links::FollowBeneath => (resolve, flags | OFlags::CLOEXEC),
                        Links::Refuse => (
                            resolve | ResolveFlags::NO_SYMLINKS,
                            flags | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                        ),
                    };
                    // It asks to be asked again when anything on the system is renamed meanwhile.
                    let kernel = loop {
                        match rustix::fs::openat2(&folder, &path, flags, Mode::empty(), resolve) {
                            Err(Errno::AGAIN) => {}
                            said => break said,
                        }
                    };
                    let ours = open(folder.as_fd(), &path, flags, links);
                    let identity = |fd: OwnedFd| {
                        let stat = rustix::fs::fstat(&fd).unwrap();
                        (stat.st_dev, stat.st_ino)
                    };
                    let (kernel, ours) = (kernel.map(identity), ours.map(identity));
                    assert_eq!(ours, kernel, "{path:?} {flags:?} {links:?}");
                }
            }
        }
    }
}
