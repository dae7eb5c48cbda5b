//! Reading a job's ZIP.

use std::io::{Cursor, Read as _};

use bytes::Bytes;
use zip::ZipArchive;

pub(crate) type Archive = ZipArchive<Cursor<Bytes>>;

/// The content of an entry that must be there. For a symlink this is where it leads.
pub(crate) fn content(archive: &mut Archive, name: &str) -> Vec<u8> {
    let names = names(archive);
    let entry = archive.by_name(name);
    let mut entry = entry.unwrap_or_else(|error| panic!("{name}: {error}; there are {names:?}"));
    let mut content = Vec::new();
    // Reading to the end also checks the sum that the archive keeps.
    entry.read_to_end(&mut content).unwrap();
    content
}

pub(crate) fn text(archive: &mut Archive, name: &str) -> String {
    String::from_utf8(content(archive, name)).unwrap()
}

pub(crate) fn names(archive: &Archive) -> Vec<String> {
    let mut names: Vec<String> =
        archive.file_names().map(|name| name.unwrap().into_owned()).collect();
    names.sort();
    names
}

/// Permission bits.
pub(crate) fn mode(archive: &mut Archive, name: &str) -> u32 {
    archive.by_name(name).unwrap().unix_mode().unwrap() & 0o7777
}

pub(crate) fn is_symlink(archive: &mut Archive, name: &str) -> bool {
    archive.by_name(name).unwrap().is_symlink()
}
