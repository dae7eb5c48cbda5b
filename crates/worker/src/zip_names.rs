//! Names in a ZIP that are safe to unpack anywhere, whatever a guest calls its files.

use std::collections::{HashMap, HashSet};

use unicode_normalization::UnicodeNormalization as _;

/// Checks and remembers the names of one ZIP.
#[derive(Debug, Default)]
pub(crate) struct ZipNames {
    given: Given,
    places: Places,
}

impl ZipNames {
    /// A safe name for an entry, or why it must be left out.
    pub(crate) fn admit(&mut self, path: &str, is_symlink: bool) -> Result<String, &'static str> {
        let parts = parts_of(path)?;
        let names = self.given.names_of(&parts);
        let folded: Vec<String> = names.iter().map(|name| folded(name)).collect();
        match self.places.find(&folded) {
            // Unpacking such an entry would write through the symlink, to wherever it points.
            Found::BelowSymlink => return Err("lies below a symlink"),
            Found::Symlink => return Err("has the same name as a symlink"),
            Found::Other if is_symlink => {
                return Err("is a symlink with the name of another entry");
            }
            // Files that differ by case alone are two files to whoever made them.
            Found::Other | Found::Nothing => {}
        }
        self.given.take(&parts, &names)?;
        self.places.take(folded, is_symlink);
        Ok(names.join("/"))
    }

    /// The first of these names that can still be had. The workspace may have taken all of them,
    /// or made a symlink of the folder that one of them lies in.
    pub(crate) fn admit_first(&mut self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| self.admit(name, false).ok())
    }
}

/// What each of the guest's own names is in the ZIP. Names that differ stay different also where what
/// makes them safe would make them the same.
#[derive(Debug, Default)]
struct Given {
    /// By the number of the folder, of which the root has 0, and the guest's own name.
    parts: HashMap<(u32, String), Part>,
    /// The names in the ZIP that are not the guest's own.
    changed: HashSet<(u32, String)>,
    /// With what to tell the next one apart. Counted on, so that a guest with many such names keeps
    /// nobody busy.
    next: HashMap<(u32, String), u32>,
}

#[derive(Debug)]
struct Part {
    number: u32,
    /// Its name in the ZIP, if that is another one.
    name: Option<String>,
    /// Whether an entry has this name, and not only something that lies below it.
    is_entry: bool,
}

/// An honest guest names every folder, so there are hardly more places than entries.
const MOST_PLACES: usize = 1_000_000;

impl Given {
    /// The names that the parts of a path have, or would get.
    fn names_of(&mut self, parts: &[&str]) -> Vec<String> {
        let mut folder = Some(0);
        let mut names = Vec::with_capacity(parts.len());
        for part in parts {
            let key = folder.map(|folder| (folder, (*part).to_owned()));
            names.push(match key.and_then(|key| self.parts.get(&key)) {
                Some(known) => {
                    folder = Some(known.number);
                    known.name.clone().unwrap_or_else(|| (*part).to_owned())
                }
                // In a folder that is new there is nothing to be told apart from.
                None => match folder.take() {
                    Some(folder) => self.apart(folder, safe_part(part)),
                    None => safe_part(part),
                },
            });
        }
        names
    }

    fn apart(&mut self, folder: u32, name: String) -> String {
        if !self.is_taken(folder, &name) {
            return name;
        }
        let mut number = self.next.get(&(folder, name.clone())).copied().unwrap_or(2);
        loop {
            let other = numbered(&name, number);
            number += 1;
            if !self.is_taken(folder, &other) {
                self.next.insert((folder, name), number);
                return other;
            }
        }
    }

    fn is_taken(&self, folder: u32, name: &str) -> bool {
        let key = (folder, name.to_owned());
        self.changed.contains(&key) || self.parts.get(&key).is_some_and(|part| part.name.is_none())
    }

    fn take(&mut self, parts: &[&str], names: &[String]) -> Result<(), &'static str> {
        if self.parts.len() + parts.len() > MOST_PLACES {
            return Err("lies in one folder too many");
        }
        let mut folder = 0;
        for (index, (part, name)) in parts.iter().zip(names).enumerate() {
            let number = self.parts.len() as u32 + 1;
            let other = (name != part).then(|| name.clone());
            if let Some(other) = &other {
                self.changed.insert((folder, other.clone()));
            }
            let new = Part { number, name: other, is_entry: false };
            let part = self.parts.entry((folder, (*part).to_owned())).or_insert(new);
            let is_last = index + 1 == parts.len();
            if is_last && std::mem::replace(&mut part.is_entry, true) {
                return Err("has the same name as another entry");
            }
            folder = part.number;
        }
        Ok(())
    }
}

/// A name that is told apart by a number, before its ending.
fn numbered(name: &str, number: u32) -> String {
    match name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()) {
        Some((stem, ending)) => format!("{stem}~{number}.{ending}"),
        None => format!("{name}~{number}"),
    }
}

/// Where something lies when the ZIP is unpacked, as a system sees it that ignores case.
#[derive(Debug, Default)]
struct Places {
    /// The number of a part of a name below the number of the part before it. The root has 0.
    numbers: HashMap<(u32, String), u32>,
    symlinks: HashSet<u32>,
}

enum Found {
    Nothing,
    Symlink,
    BelowSymlink,
    /// A file or a folder.
    Other,
}

impl Places {
    fn find(&self, parts: &[String]) -> Found {
        let mut place = 0;
        for (index, part) in parts.iter().enumerate() {
            let Some(next) = self.numbers.get(&(place, part.clone())) else {
                return Found::Nothing;
            };
            place = *next;
            if self.symlinks.contains(&place) {
                let is_last = index + 1 == parts.len();
                return if is_last { Found::Symlink } else { Found::BelowSymlink };
            }
        }
        Found::Other
    }

    /// There are no more of them than of the names that were given.
    fn take(&mut self, parts: Vec<String>, is_symlink: bool) {
        let place = parts.into_iter().fold(0, |place, part| {
            let new = self.numbers.len() as u32 + 1;
            *self.numbers.entry((place, part)).or_insert(new)
        });
        if is_symlink {
            self.symlinks.insert(place);
        }
    }
}

/// One spelling for all that a system may take for the same name. Systems fold case by tables of
/// their own; lower case is near enough, as what they differ in are single letters of few scripts.
/// Some also take composed and decomposed letters for the same.
fn folded(part: &str) -> String {
    part.nfkd().collect::<String>().to_lowercase().nfkd().collect()
}

/// The parts of a path that stays where it is unpacked.
fn parts_of(path: &str) -> Result<Vec<&str>, &'static str> {
    if path.is_empty() || path.len() > 4096 {
        return Err("has no usable name");
    }
    if path.starts_with('/') {
        return Err("has an absolute name");
    }
    let checked = path.split('/').map(|part| match part {
        "" => Err("has an empty part in its name"),
        "." | ".." => Err("has a name that leads elsewhere"),
        part => Ok(part),
    });
    checked.collect()
}

/// A backslash separates folders and a colon names a drive on other systems, the rest cannot be in
/// a name there. Control characters, which confuse terminals, go too.
const FORBIDDEN: [char; 8] = ['\\', ':', '<', '>', '"', '|', '?', '*'];

fn safe_part(part: &str) -> String {
    let mut name: String = part
        .chars()
        .map(|c| if FORBIDDEN.contains(&c) || c.is_control() { '_' } else { c })
        .collect();
    // Windows drops these at the end, which would make another name of it.
    let kept = name.trim_end_matches(['.', ' ']).len();
    let dropped = name.split_off(kept).len();
    name.extend(std::iter::repeat_n('_', dropped));
    if is_device(&name) {
        name.insert(0, '_');
    }
    name
}

/// Whether Windows takes the name for a device, wherever it lies and whatever its extension is.
fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().trim_end_matches(' ').to_uppercase();
    let numbered = stem.strip_prefix("COM").or_else(|| stem.strip_prefix("LPT"));
    matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$")
        || numbered.is_some_and(|number| {
            let mut digits = number.chars();
            matches!((digits.next(), digits.next()), (Some('0'..='9' | '¹' | '²' | '³'), None))
        })
}

// By its path, since the fuzz target takes this file in from elsewhere.
#[cfg(test)]
#[path = "zip_names/tests.rs"]
mod tests;
