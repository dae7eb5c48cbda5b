//! Sends one file, or the entries of one folder, to the worker.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

use bellglass_protocol::step::ToolError;
use bellglass_protocol::wire::{DATA_CHUNK, Entry, EntryKind, Reply};
use bytes::BytesMut;
use rustix::fs::{AtFlags, Dir, FileType, OFlags, Stat};

use super::text::name;
use crate::inside::failure::{failure, path_failure};
use crate::inside::transfer::{Frames, Unwanted};
use crate::inside::workspace::{Workspace, file_type};

/// Answers a request for a file's content.
pub(in crate::inside) fn send_file(
    workspace: &Workspace,
    path: &str,
    frames: &Frames,
) -> Result<(), Unwanted> {
    let (mut file, stat) = match workspace.open_file(path) {
        Ok(opened) => opened,
        Err(error) => return frames.reply(&Reply::Error { error }),
    };
    let bytes = stat.st_size as u64;
    frames.reply(&Reply::File { bytes })?;
    match send_content(&mut file, bytes, frames)? {
        Ok(()) => frames.reply(&Reply::End),
        Err(reason) => {
            let error = failure("file_changed", format!("`{path}` {reason}; try again"));
            frames.reply(&Reply::Error { error })
        }
    }
}

/// Sends exactly as many bytes as were promised, or says why it could not.
pub(super) fn send_content(
    file: &mut File,
    promised: u64,
    frames: &Frames,
) -> Result<Result<(), String>, Unwanted> {
    let mut left = promised;
    while left > 0 {
        let mut buffer = BytesMut::zeroed(left.min(DATA_CHUNK as u64) as usize);
        match file.read(&mut buffer) {
            Ok(0) => return Ok(Err(format!("became shorter by {left} bytes while it was read"))),
            Ok(count) => {
                buffer.truncate(count);
                left -= count as u64;
                frames.data(buffer.freeze())?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Ok(Err(format!("cannot be read: {error}"))),
        }
    }
    Ok(Ok(()))
}

/// Answers a request for what is in a folder.
pub(in crate::inside) fn list_entries(
    workspace: &Workspace,
    path: &str,
    frames: &Frames,
) -> Result<(), Unwanted> {
    match entries(workspace, path) {
        Ok(entries) => {
            for entry in entries {
                frames.reply(&Reply::Entry { entry })?;
            }
            frames.reply(&Reply::End)
        }
        Err(error) => frames.reply(&Reply::Error { error }),
    }
}

fn entries(workspace: &Workspace, path: &str) -> Result<Vec<Entry>, ToolError> {
    let relative = workspace.inside_or_root(Some(path))?;
    let failed = |error| path_failure(path, error);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let folder = workspace.open_beneath(&relative, flags).map_err(failed)?;
    let names = names_in(&folder).map_err(failed)?;
    // What vanished since it was named is simply not there.
    Ok(names.iter().filter_map(|child| entry_of(&folder, child, name(child)).ok()).collect())
}

/// The names in a folder, in order.
pub(super) fn names_in(folder: impl AsFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Describes what has this name in the folder, without following it.
pub(super) fn entry_of(folder: impl AsFd, child: &[u8], path: String) -> rustix::io::Result<Entry> {
    let stat = rustix::fs::statat(&folder, child, AtFlags::SYMLINK_NOFOLLOW)?;
    let kind = match file_type(&stat) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Folder,
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(&folder, child, Vec::new())?;
            EntryKind::Symlink { target: name(target.to_bytes()) }
        }
        _ => EntryKind::Other,
    };
    Ok(described(path, kind, &stat))
}

pub(super) fn described(path: String, kind: EntryKind, stat: &Stat) -> Entry {
    let bytes = if kind == EntryKind::File { stat.st_size as u64 } else { 0 };
    Entry { path, kind, mode: stat.st_mode & 0o7777, bytes, modified: stat.st_mtime }
}
