//! What has changed in the workspace since a checkpoint, sent to the worker.
//!
//! The guest remembers how everything looked at the last checkpoint that the worker has safe, and at
//! the one that it sent last, which may be lost. Contents it does not remember.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use bellglass_protocol::checkpoint::{
    Change, CheckpointNumber, LinkTarget, PathFault, What, WorkspacePath,
};
use bellglass_protocol::step::ToolError;
use bellglass_protocol::wire::Reply;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::pack::allow_owner;
use super::send::send_content;
use super::survey::{Stamp, Survey, let_time_pass};
use crate::inside::failure::failure;
use crate::inside::transfer::{Frames, Unwanted};
use crate::inside::workspace::{Workspace, file_type, open_child, own_path};

/// The checkpoints that the guest knows.
#[derive(Default)]
pub(in crate::inside) struct Checkpoints(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// The worker has this one safe.
    safe: Option<Remembered>,
    /// This one was sent, and nobody knows what became of it.
    sent: Option<Remembered>,
}

struct Remembered {
    number: CheckpointNumber,
    stamps: HashMap<Vec<u8>, Stamp>,
}

/// What the worker wants.
#[derive(Clone, Copy)]
pub(in crate::inside) struct Wanted {
    pub(in crate::inside) since: Option<CheckpointNumber>,
    pub(in crate::inside) number: CheckpointNumber,
    pub(in crate::inside) most_bytes: u64,
}

impl Checkpoints {
    /// Sends what has changed. One at a time: a second worker waits for the first to be done.
    pub(in crate::inside) fn send(
        &self,
        workspace: &Workspace,
        wanted: Wanted,
        frames: &Frames,
    ) -> Result<(), Unwanted> {
        let mut known = self.lock();
        known.settle(wanted.since);
        match Draft::make(workspace, &known, wanted) {
            Ok(draft) => {
                if let Some(sent) = draft.send(workspace, frames)? {
                    known.sent = Some(Remembered { number: wanted.number, stamps: sent });
                }
                frames.reply(&Reply::End)
            }
            Err(error) => frames.reply(&Reply::Error { error }),
        }
    }

    /// The workspace is, as it stands, what the worker knows under this number.
    pub(super) fn remember(
        &self,
        workspace: &Workspace,
        number: CheckpointNumber,
    ) -> Result<(), ToolError> {
        let mut known = self.lock();
        let survey = Survey::take(workspace)?;
        let newest = survey.found.iter().map(|(_, stamp)| stamp.changed()).max();
        let settled = newest.is_none_or(let_time_pass);
        let stamps = survey
            .found
            .iter()
            .map(|(path, stamp)| (path.clone(), if settled { *stamp } else { Stamp::Unsure }));
        let stamps = stamps.collect();
        *known = Known { safe: Some(Remembered { number, stamps }), sent: None };
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(|poisoned| {
            // Whoever broke may have left half of something; a whole checkpoint puts it right.
            let mut known = poisoned.into_inner();
            *known = Known::default();
            known
        })
    }
}

impl Known {
    /// Learns from what the worker asks for which checkpoint it has.
    fn settle(&mut self, since: Option<CheckpointNumber>) {
        let is_wanted = |known: &Option<Remembered>| {
            known.as_ref().is_some_and(|known| Some(known.number) == since)
        };
        if is_wanted(&self.sent) {
            self.safe = self.sent.take();
        } else {
            self.sent = None;
            if !is_wanted(&self.safe) {
                self.safe = None;
            }
        }
    }
}

/// The changes, before any content is read.
struct Draft<'a> {
    survey: Survey,
    safe: Option<&'a Remembered>,
    /// Positions in the survey.
    changed: Vec<usize>,
    gone: Vec<WorkspacePath>,
}

impl<'a> Draft<'a> {
    fn make(workspace: &Workspace, known: &'a Known, wanted: Wanted) -> Result<Self, ToolError> {
        let survey = Survey::take(workspace)?;
        let room = room(workspace);
        let safe = known.safe.as_ref();
        let none = HashMap::new();
        let before = safe.map_or(&none, |safe| &safe.stamps);
        let (mut changed, mut still_there, mut bytes) = (Vec::new(), 0, 0u64);
        for (at, (path, stamp)) in survey.found.iter().enumerate() {
            let old = before.get(path);
            still_there += usize::from(old.is_some());
            if old == Some(stamp) {
                continue;
            }
            changed.push(at);
            if let Stamp::File { bytes: size, .. } = stamp
                && *size <= room
            {
                // One that is larger can only have holes, and is left out when it is its turn.
                bytes = bytes.saturating_add(*size);
            }
        }
        if bytes > wanted.most_bytes {
            let words = format!(
                "{bytes} bytes of files have changed, and {} are left to keep them",
                wanted.most_bytes
            );
            return Err(failure("too_large", words));
        }
        let gone = match still_there == before.len() {
            true => Vec::new(),
            false => gone(&survey, before),
        };
        Ok(Self { survey, safe, changed, gone })
    }

    /// Sends all. Returns how everything looked, if anything was another than before.
    fn send(
        self,
        workspace: &Workspace,
        frames: &Frames,
    ) -> Result<Option<HashMap<Vec<u8>, Stamp>>, Unwanted> {
        let since = self.safe.map(|safe| safe.number);
        frames.reply(&Reply::Changes { since })?;
        if self.changed.is_empty() && self.gone.is_empty() {
            return Ok(None);
        }
        for path in self.gone {
            frames.reply(&Reply::Change { change: Change { path, what: What::Gone } })?;
        }
        let found = &self.survey.found;
        let newest = self.changed.iter().map(|at| found[*at].1.changed()).max();
        let _ = newest.is_none_or(let_time_pass);
        let mut looked: HashMap<Vec<u8>, Stamp> = HashMap::with_capacity(found.len());
        looked.extend(found.iter().cloned());
        for at in self.changed {
            let (bytes, stamp) = &found[at];
            match send_one(workspace, bytes, *stamp, frames)? {
                Some(stamp) => _ = looked.insert(bytes.clone(), stamp),
                None => _ = looked.remove(bytes),
            }
        }
        Ok(Some(looked))
    }
}

/// What is not there any more: the topmost of it, since what is below goes along.
fn gone(survey: &Survey, before: &HashMap<Vec<u8>, Stamp>) -> Vec<WorkspacePath> {
    let now: std::collections::HashSet<&[u8]> =
        survey.found.iter().map(|(path, _)| &path[..]).collect();
    let gone = before.keys().filter(|path| !now.contains(&path[..]));
    let gone = gone.filter_map(|path| WorkspacePath::new(path.clone()).ok());
    gone.filter(|path| path.parent().is_none_or(|parent| now.contains(parent.as_bytes()))).collect()
}

/// Sends one thing that is new or another. Returns how it looked then; `None` if it is gone.
fn send_one(
    workspace: &Workspace,
    bytes: &[u8],
    stamp: Stamp,
    frames: &Frames,
) -> Result<Option<Stamp>, Unwanted> {
    // A path that is too long to be kept is left out, as is all below it.
    let Ok(path) = WorkspacePath::new(bytes.to_vec()) else { return Ok(Some(stamp)) };
    let change = |what| Reply::Change { change: Change { path: path.clone(), what } };
    match stamp {
        Stamp::Folder { mode } => {
            frames.reply(&change(What::Folder { mode }))?;
            Ok(Some(stamp))
        }
        Stamp::Symlink { .. } => match target_of(workspace, &path) {
            Ok(target) => {
                frames.reply(&change(What::Symlink { target }))?;
                Ok(Some(stamp))
            }
            Err(_) => {
                frames.reply(&change(What::Gone))?;
                Ok(None)
            }
        },
        Stamp::File { mode, bytes: size, modified, .. } => {
            let modified = i64::try_from(modified).unwrap_or_default();
            let file = |bytes| change(What::File { mode, bytes, modified });
            match open_file(workspace, bytes) {
                Ok((mut content, stat)) => {
                    let (seen, size) = match Stamp::of(&stat) {
                        Some(seen @ Stamp::File { bytes, .. }) => (seen, bytes),
                        _ => (Stamp::Unsure, size),
                    };
                    let (modified, mode) = match seen {
                        Stamp::File { modified, mode, .. } => {
                            (i64::try_from(modified).unwrap_or_default(), mode)
                        }
                        _ => (modified, mode),
                    };
                    frames.reply(&change(What::File { mode, bytes: size, modified }))?;
                    if size > room(workspace) {
                        // Only holes can be so large. Sent as zeros, they would crowd out the rest.
                        let error = Some("larger than the sandbox's disk; it is sparse".into());
                        frames.reply(&Reply::EntryEnd { error })?;
                        return Ok(Some(seen));
                    }
                    let error = send_content(&mut content, size, frames)?.err();
                    let is_sure = error.is_none() && let_time_pass(seen.changed());
                    frames.reply(&Reply::EntryEnd { error })?;
                    Ok(Some(if is_sure { seen } else { Stamp::Unsure }))
                }
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                    frames.reply(&change(What::Gone))?;
                    Ok(None)
                }
                Err(error) => {
                    frames.reply(&file(size))?;
                    let error = Some(format!("cannot be read: {error}"));
                    frames.reply(&Reply::EntryEnd { error })?;
                    Ok(Some(stamp))
                }
            }
        }
        Stamp::Unsure => Ok(Some(stamp)),
    }
}

/// Bytes that the workspace's file system holds in all.
fn room(workspace: &Workspace) -> u64 {
    rustix::fs::fstatvfs(workspace.root())
        .map_or(u64::MAX, |disk| disk.f_blocks.saturating_mul(disk.f_frsize))
}

fn target_of(workspace: &Workspace, path: &WorkspacePath) -> Result<LinkTarget, PathFault> {
    let read = || match path.parent() {
        None => rustix::fs::readlinkat(workspace.root(), path.name(), Vec::new()),
        Some(parent) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let folder = open_child(workspace.root(), as_path(&parent), flags)?;
            rustix::fs::readlinkat(&folder, path.name(), Vec::new())
        }
    };
    LinkTarget::new(read().map_err(|_| PathFault::Empty)?.into_bytes())
}

fn open_file(workspace: &Workspace, path: &[u8]) -> Result<(File, Stat), Errno> {
    // It may have become a pipe since it was looked at, which must not be waited for.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = match open_child(workspace.root(), path, flags) {
        Err(Errno::ACCESS) => open_closed(workspace, path, flags)?,
        other => other?,
    };
    let stat = rustix::fs::fstat(&opened)?;
    let is_file = file_type(&stat) == FileType::RegularFile;
    if is_file { Ok((File::from(opened), stat)) } else { Err(Errno::NOENT) }
}

/// Opens a file that its owner closed to itself, and leaves it closed.
fn open_closed(workspace: &Workspace, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let named = open_child(workspace.root(), path, OFlags::PATH)?;
    let mode = Mode::from_raw_mode(rustix::fs::fstat(&named)?.st_mode);
    allow_owner(&named, Mode::RUSR)?;
    let opened = open_child(workspace.root(), path, flags);
    rustix::fs::chmod(own_path(&named), mode)?;
    opened
}

/// A path of bytes as the system takes it.
pub(super) fn as_path(path: &WorkspacePath) -> &Path {
    Path::new(OsStr::from_bytes(path.as_bytes()))
}
