//! Names in a ZIP that are safe to unpack anywhere, whatever a guest calls its files.

use std::collections::{HashMap, HashSet};

use unicode_normalization::UnicodeNormalization as _;

/// Checks and remembers the names of one ZIP.
#[derive(Debug, Default)]
pub(crate) struct ZipNames {
    used: HashSet<String>,
    places: Places,
}

impl ZipNames {
    /// A safe name for an entry, or why it must be left out.
    pub(crate) fn admit(&mut self, path: &str, is_symlink: bool) -> Result<String, &'static str> {
        let name = safe_name(path)?;
        let parts: Vec<String> = name.split('/').map(folded).collect();
        match self.places.find(&parts) {
            // Unpacking such an entry would write through the symlink, to wherever it points.
            Found::BelowSymlink => return Err("lies below a symlink"),
            Found::Symlink => return Err("has the same name as a symlink"),
            Found::Other if is_symlink => {
                return Err("is a symlink with the name of another entry");
            }
            // Files that differ by case alone are two files to whoever made them.
            Found::Other | Found::Nothing => {}
        }
        if self.used.contains(&name) {
            return Err("has the same name as another entry");
        }
        self.places.take(parts, is_symlink)?;
        self.used.insert(name.clone());
        Ok(name)
    }

    /// The first of these names that can still be had. The workspace may have taken all of them,
    /// or made a symlink of the folder that one of them lies in.
    pub(crate) fn admit_first(&mut self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| self.admit(name, false).ok())
    }
}

/// Where something lies when the ZIP is unpacked, as a system sees it that ignores case.
#[derive(Debug, Default)]
struct Places {
    /// The number of a part of a name below the number of the part before it. The root has 0.
    numbers: HashMap<(u32, String), u32>,
    symlinks: HashSet<u32>,
}

/// An honest guest names every folder, so there are hardly more places than entries.
const MOST_PLACES: usize = 1_000_000;

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

    fn take(&mut self, parts: Vec<String>, is_symlink: bool) -> Result<(), &'static str> {
        if self.numbers.len() + parts.len() > MOST_PLACES {
            return Err("lies in one folder too many");
        }
        let place = parts.into_iter().fold(0, |place, part| {
            let new = self.numbers.len() as u32 + 1;
            *self.numbers.entry((place, part)).or_insert(new)
        });
        if is_symlink {
            self.symlinks.insert(place);
        }
        Ok(())
    }
}

/// One spelling for all that a system may take for the same name. Systems fold case by tables of
/// their own; lower case is near enough, as what they differ in are single letters of few scripts.
/// Some also take composed and decomposed letters for the same.
fn folded(part: &str) -> String {
    part.nfkd().collect::<String>().to_lowercase().nfkd().collect()
}

fn safe_name(path: &str) -> Result<String, &'static str> {
    if path.is_empty() || path.len() > 4096 {
        return Err("has no usable name");
    }
    if path.starts_with('/') {
        return Err("has an absolute name");
    }
    let parts: Result<Vec<String>, _> = path.split('/').map(safe_part).collect();
    Ok(parts?.join("/"))
}

/// A backslash separates folders and a colon names a drive on other systems, the rest cannot be in
/// a name there. Control characters, which confuse terminals, go too.
const FORBIDDEN: [char; 8] = ['\\', ':', '<', '>', '"', '|', '?', '*'];

fn safe_part(part: &str) -> Result<String, &'static str> {
    match part {
        "" => return Err("has an empty part in its name"),
        "." | ".." => return Err("has a name that leads elsewhere"),
        _ => {}
    }
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
    Ok(name)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_changed_or_refused() {
        for (path, expected) in [
            ("a/b.txt", Some("a/b.txt")),
            ("C:\\windows\\x", Some("C__windows_x")),
            ("line\nbreak", Some("line_break")),
            ("what?<*>|\"", Some("what______")),
            ("ünï/文件", Some("ünï/文件")),
            ("con", Some("_con")),
            ("sub/NUL.txt", Some("sub/_NUL.txt")),
            ("Lpt1/x", Some("_Lpt1/x")),
            ("com9 .tar.gz", Some("_com9 .tar.gz")),
            ("console", Some("console")),
            ("com10", Some("com10")),
            ("COM", Some("COM")),
            ("con.", Some("con_")),
            ("end. .", Some("end___")),
            ("...", Some("___")),
            ("a /b.", Some("a_/b_")),
            (".hidden", Some(".hidden")),
            ("../x", None),
            ("a/../../x", None),
            ("/etc/passwd", None),
            ("a//b", None),
            ("", None),
            (".", None),
        ] {
            let name = ZipNames::default().admit(path, false);
            assert_eq!(name.ok().as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn nothing_is_written_through_a_symlink_or_twice() {
        let mut names = ZipNames::default();
        assert!(names.admit("link", true).is_ok());
        assert!(names.admit("link/passwd", false).is_err());
        assert!(names.admit("linked", false).is_ok());
        assert!(names.admit("a:b", false).is_ok());
        assert!(names.admit("a_b", false).is_err());
        assert_eq!(names.admit_first(&["linked", "link/x", "new"]).as_deref(), Some("new"));
        assert_eq!(names.admit_first(&["new", "link/x"]), None);
    }

    /// Each row is a ZIP: names, `@` before a symlink's, and whether each is let in.
    #[test]
    fn case_makes_no_way_through_a_symlink() {
        for row in [
            &[("@link", true), ("LINK/passwd", false), ("Link", false), ("@LINK", false)][..],
            &[("d", true), ("@d/Über", true), ("D/üBER/x", false), ("D/x", true)],
            // The same letter, composed and not.
            &[("@\u{e9}", true), ("e\u{301}/x", false)],
            // A folder that is there only because something lies in it.
            &[("LINK/a", true), ("@link", false), ("LINK/passwd", true)],
            &[("Makefile", true), ("makefile", true), ("@MAKEFILE", false)],
            &[("src/A", true), ("SRC/a", true), ("src/a", true), ("src/a", false)],
        ] {
            let mut names = ZipNames::default();
            for (name, expected) in row {
                let (path, is_symlink) =
                    name.strip_prefix('@').map_or((*name, false), |path| (path, true));
                assert_eq!(names.admit(path, is_symlink).is_ok(), *expected, "{name} in {row:?}");
            }
        }
    }
}
