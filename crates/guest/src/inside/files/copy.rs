//! `copy_file`: copies a file, or a folder with all that is in it; never replaces anything.
//!
//! A folder is copied from descriptor to descriptor, beside its place, which it takes when it is
//! whole. Symlinks are copied as they are.

use std::fs::File;
use std::io::{Read as _, Write};
use std::os::fd::OwnedFd;

use bellglass_protocol::step::ToolError;
use bellglass_protocol::tool::CopyFile;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::replace::{Replacement, empty_place, take_empty_place, temporary_name};
use super::restore::empty;
use super::send::names_in;
use super::text::{counted, name, size};
use crate::inside::failure::{already_exists, failure, path_failure, path_io_failure};
use crate::inside::tools::Stop;
use crate::inside::workspace::{Place, Workspace, file_type, open_child};

const BUFFER: usize = 256 << 10;
/// Folders below this are not copied: each level costs two descriptors.
const DEEPEST: usize = 100;
/// What a folder may hold in all its levels; what holds more has better tools.
const MOST_ENTRIES: usize = 200_000;

pub(super) fn copy(
    workspace: &Workspace,
    call: &CopyFile,
    stop: &Stop,
) -> Result<String, ToolError> {
    let relative = workspace.inside(&call.from)?;
    let failed = |error| path_failure(&call.from, error);
    let from = workspace.open_beneath(&relative, OFlags::PATH).map_err(failed)?;
    let stat = rustix::fs::fstat(&from).map_err(failed)?;
    if file_type(&stat) == FileType::Directory {
        return copy_folder(workspace, &from, call, stop);
    }
    let (mut from, stat) = workspace.open_file(&call.from)?;
    let mut to = Replacement::begin_new(workspace, &call.to)?;
    let mut copying = Copying::new(stop);
    let done = copying.content(&mut from, &mut to);
    done.map_err(|(side, error)| path_io_failure(side.of(call), &error))?;
    if stop.is_requested() {
        return Ok(String::new());
    }
    const MAY_BE_RUN: u32 = 0o100;
    to.commit(stat.st_mode & MAY_BE_RUN != 0)?;
    Ok(format!("copied {} to {} ({})", call.from, call.to, size(copying.bytes)))
}

fn copy_folder(
    workspace: &Workspace,
    from: &OwnedFd,
    call: &CopyFile,
    stop: &Stop,
) -> Result<String, ToolError> {
    let failed = |error| path_failure(&call.from, error);
    let source = workspace.relative_of(from).map_err(failed)?;
    let into_itself = || {
        let words = format!("`{}` cannot be copied into itself; choose another place", call.from);
        failure("into_itself", words)
    };
    // Also by the words alone, before folders are made in it.
    if workspace.inside(&call.to)?.starts_with(workspace.inside(&call.from)?) {
        return Err(if call.to == call.from { already_exists(&call.to) } else { into_itself() });
    }
    let place = empty_place(workspace, &call.to)?;
    let parent = workspace.relative_of(&place.parent).map_err(|e| path_failure(&call.to, e))?;
    if parent.starts_with(&source) {
        return Err(into_itself());
    }
    let from = open_child(from, c".", OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
    let copy = Draft::begin(&place).map_err(|error| path_failure(&call.to, error))?;
    let mut copying = Copying::new(stop);
    copying.folder(&from, &copy.folder, DEEPEST).map_err(|stuck| stuck.told(call))?;
    if stop.is_requested() {
        return Ok(String::new());
    }
    copy.take_place().map_err(|error| match error {
        Errno::EXIST => already_exists(&call.to),
        error => path_failure(&call.to, error),
    })?;
    let files = counted(copying.files, "file", "files");
    Ok(format!("copied {} to {} ({files}, {})", call.from, call.to, size(copying.bytes)))
}

/// Which of the two something is about.
#[derive(Clone, Copy)]
enum Side {
    From,
    To,
}

impl Side {
    fn of(self, call: &CopyFile) -> &str {
        match self {
            Self::From => &call.from,
            Self::To => &call.to,
        }
    }
}

/// Why a folder could not be copied.
enum Stuck {
    /// By something in it, as a path below the folder.
    At(Side, String, Errno),
    /// It holds something that is no file, folder or symlink.
    Strange(String),
    TooMuch,
}

impl Stuck {
    /// The same from a folder further up.
    fn below(self, folder: &str) -> Self {
        let path = |rest: String| format!("{folder}/{rest}");
        match self {
            Self::At(side, rest, error) => Self::At(side, path(rest), error),
            Self::Strange(rest) => Self::Strange(path(rest)),
            Self::TooMuch => Self::TooMuch,
        }
    }

    fn told(self, call: &CopyFile) -> ToolError {
        match self {
            Self::At(side, rest, error) => {
                path_failure(&format!("{}/{rest}", side.of(call)), error)
            }
            Self::Strange(rest) => failure(
                "not_a_file",
                format!(
                    "`{}/{rest}` is a pipe, a socket or a device, which cannot be copied; delete it \
                     first, or copy with the shell",
                    call.from
                ),
            ),
            Self::TooMuch => failure(
                "too_many_files",
                format!(
                    "`{}` has more than {MOST_ENTRIES} files or {DEEPEST} levels; copy it with the shell",
                    call.from
                ),
            ),
        }
    }
}

/// What was copied so far.
struct Copying<'a> {
    stop: &'a Stop,
    buffer: Vec<u8>,
    entries: usize,
    files: usize,
    bytes: u64,
}

impl<'a> Copying<'a> {
    fn new(stop: &'a Stop) -> Self {
        Self { stop, buffer: vec![0; BUFFER], entries: 0, files: 0, bytes: 0 }
    }

    /// Copies until the end, or until it is stopped.
    fn content(
        &mut self,
        from: &mut File,
        to: &mut impl Write,
    ) -> Result<(), (Side, std::io::Error)> {
        while !self.stop.is_requested() {
            let count = from.read(&mut self.buffer).map_err(|error| (Side::From, error))?;
            if count == 0 {
                break;
            }
            to.write_all(&self.buffer[..count]).map_err(|error| (Side::To, error))?;
            self.bytes += count as u64;
        }
        Ok(())
    }

    fn folder(&mut self, from: &OwnedFd, to: &OwnedFd, deepest: usize) -> Result<(), Stuck> {
        let here = |side| move |error| Stuck::At(side, ".".into(), error);
        let names = names_in(from).map_err(here(Side::From))?;
        if deepest == 0 {
            return Err(Stuck::TooMuch);
        }
        for child in names {
            self.entries += 1;
            if self.entries > MOST_ENTRIES {
                return Err(Stuck::TooMuch);
            }
            if self.stop.is_requested() {
                return Ok(());
            }
            self.entry(from, to, &child, deepest)?;
        }
        // The folder's own mode comes last: one that is closed could not be filled.
        let mode = rustix::fs::fstat(from).map_err(here(Side::From))?.st_mode & 0o777;
        rustix::fs::fchmod(to, Mode::from(mode)).map_err(here(Side::To))
    }

    fn entry(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        child: &[u8],
        deepest: usize,
    ) -> Result<(), Stuck> {
        let at = |side| move |error| Stuck::At(side, name(child), error);
        let stat = rustix::fs::statat(from, child, AtFlags::SYMLINK_NOFOLLOW);
        match file_type(&stat.map_err(at(Side::From))?) {
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let below = open_child(from, child, flags).map_err(at(Side::From))?;
                rustix::fs::mkdirat(to, child, Mode::RWXU).map_err(at(Side::To))?;
                let made = open_child(to, child, flags).map_err(at(Side::To))?;
                let copied = self.folder(&below, &made, deepest - 1);
                copied.map_err(|stuck| stuck.below(&name(child)))
            }
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(from, child, Vec::new());
                rustix::fs::symlinkat(target.map_err(at(Side::From))?, to, child)
                    .map_err(at(Side::To))
            }
            FileType::RegularFile => self.file(from, to, child),
            _ => Err(Stuck::Strange(name(child))),
        }
    }

    fn file(&mut self, from: &OwnedFd, to: &OwnedFd, child: &[u8]) -> Result<(), Stuck> {
        let at = |side| move |error| Stuck::At(side, name(child), error);
        // A pipe could have taken its name since; it must not be waited for.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let source = open_child(from, child, flags).map_err(at(Side::From))?;
        let stat = rustix::fs::fstat(&source).map_err(at(Side::From))?;
        if file_type(&stat) != FileType::RegularFile {
            return Err(Stuck::Strange(name(child)));
        }
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(to, child, flags, Mode::from(0o600)).map_err(at(Side::To))?;
        let (mut source, mut made) = (File::from(source), File::from(made));
        self.content(&mut source, &mut made).map_err(|(side, error)| {
            let code = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
            at(side)(code)
        })?;
        self.files += 1;
        rustix::fs::fchmod(&made, Mode::from(stat.st_mode & 0o777)).map_err(at(Side::To))
    }
}

/// A folder that is being made beside its place; it goes if it does not get there.
struct Draft<'a> {
    place: &'a Place,
    temporary: String,
    folder: OwnedFd,
    is_there: bool,
}

impl<'a> Draft<'a> {
    fn begin(place: &'a Place) -> Result<Self, Errno> {
        let temporary = temporary_name();
        rustix::fs::mkdirat(&place.parent, &temporary, Mode::RWXU)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let folder = open_child(&place.parent, &*temporary, flags)?;
        Ok(Self { place, temporary, folder, is_there: false })
    }

    fn take_place(mut self) -> Result<(), Errno> {
        take_empty_place(self.place, &self.temporary)?;
        self.is_there = true;
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.is_there {
            let _ = empty(&self.folder);
            let flags = AtFlags::REMOVEDIR;
            let _ = rustix::fs::unlinkat(&self.place.parent, &self.temporary, flags);
        }
    }
}
