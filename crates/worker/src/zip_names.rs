//! Names in a ZIP that are safe to unpack anywhere, whatever a guest calls its files.

use std::collections::HashSet;

/// Checks and remembers the names of one ZIP.
#[derive(Debug, Default)]
pub(crate) struct ZipNames {
    used: HashSet<String>,
    symlinks: HashSet<String>,
}

impl ZipNames {
    /// A safe name for an entry, or why it must be left out.
    pub(crate) fn admit(&mut self, path: &str, is_symlink: bool) -> Result<String, &'static str> {
        let name = safe_name(path)?;
        // Unpacking such an entry would write through the symlink, to wherever it points.
        let below_symlink =
            name.match_indices('/').any(|(at, _)| self.symlinks.contains(&name[..at]));
        if below_symlink {
            return Err("lies below a symlink");
        }
        if !self.used.insert(name.clone()) {
            return Err("has the same name as another entry");
        }
        if is_symlink {
            self.symlinks.insert(name.clone());
        }
        Ok(name)
    }

    /// The first of these names that can still be had. The workspace may have taken all of them,
    /// or made a symlink of the folder that one of them lies in.
    pub(crate) fn admit_first(&mut self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| self.admit(name, false).ok())
    }
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

fn safe_part(part: &str) -> Result<String, &'static str> {
    match part {
        "" => Err("has an empty part in its name"),
        "." | ".." => Err("has a name that leads elsewhere"),
        // A backslash separates folders and a colon names a drive on other systems, and control
        // characters confuse terminals.
        _ => Ok(part
            .chars()
            .map(|c| if matches!(c, '\\' | ':') || c.is_control() { '_' } else { c })
            .collect()),
    }
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
            ("ünï/文件", Some("ünï/文件")),
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
}
