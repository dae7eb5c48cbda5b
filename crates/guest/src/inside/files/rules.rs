//! What the .gitignore files on the way to a folder say, whether or not `git init` was run.
//!
//! These files come from tools, which may put anything in their place: only plain files of a
//! sensible size are read, and all that is in force at a time is bounded too.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{FileType, OFlags};

use crate::inside::workspace::{file_type, open_child};

/// Bytes of rules that are in force together. In memory they take up to 300 times as much, which
/// must fit the smallest sandbox; a file that would exceed this is taken for something else.
const MOST_IN_FORCE: usize = 64 << 10;

/// The rules of the folder that a walk is in and of those above it.
#[derive(Default)]
pub(super) struct Rules {
    levels: Vec<Option<Level>>,
    in_force: usize,
}

struct Level {
    rules: Gitignore,
    bytes: usize,
}

impl Rules {
    /// Adds the rules of a folder, by its path in the workspace. The folder's own descriptor may be
    /// one that only names it.
    pub(super) fn enter(&mut self, folder: impl AsFd, path: &Path) {
        let level = read(folder, MOST_IN_FORCE - self.in_force).and_then(|text| {
            let mut builder = GitignoreBuilder::new(Path::new("/").join(path));
            for line in text.lines() {
                // A line that is no pattern means nothing, as in git.
                let _ = builder.add_line(None, line);
            }
            Some(Level { rules: builder.build().ok()?, bytes: text.len() })
        });
        self.in_force += level.as_ref().map_or(0, |level| level.bytes);
        self.levels.push(level);
    }

    /// Enters a folder whose rules cannot be known.
    pub(super) fn enter_without(&mut self) {
        self.levels.push(None);
    }

    /// Drops the rules of the folder that was entered last.
    pub(super) fn leave(&mut self) {
        let level = self.levels.pop().flatten();
        self.in_force -= level.map_or(0, |level| level.bytes);
    }

    /// Whether a path of the workspace is named by the rules. The nearest that speaks of it decides.
    pub(super) fn leave_out(&self, path: &Path, is_folder: bool) -> bool {
        let path = Path::new("/").join(path);
        let mut said = self.levels.iter().rev().flatten();
        said.find_map(|level| match level.rules.matched(&path, is_folder) {
            Match::None => None,
            Match::Ignore(_) => Some(true),
            Match::Whitelist(_) => Some(false),
        })
        .unwrap_or(false)
    }
}

fn read(folder: impl AsFd, most: usize) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = open_child(folder, c".gitignore", flags).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    if file_type(&stat) != FileType::RegularFile {
        return None;
    }
    let mut text = Vec::new();
    // It may grow while it is read.
    File::from(file).take(most as u64 + 1).read_to_end(&mut text).ok()?;
    // Bytes that are no text become longer.
    Some(String::from_utf8_lossy(&text).into_owned()).filter(|text| text.len() <= most)
}
