//! The ZIP of a workspace, written as its pieces come. Believes nothing of what they say.
//!
//! Knows neither guest nor artifact store: pieces in, bytes out.

use std::io::{self, Write};

use bellglass_protocol::wire::{Entry, EntryKind, Packed};
use sha2::{Digest as _, Sha256};
use zip::result::ZipError;
use zip::write::{SimpleFileOptions, StreamWriter};
use zip::{CompressionMethod, DateTime, ZipWriter};

use crate::zip_names::ZipNames;

/// The most reasons that are kept for what could not be packed.
pub(super) const MOST_SKIPPED: usize = 100;

/// A ZIP that is being written.
pub(crate) struct Archive<W: Write> {
    zip: ZipWriter<StreamWriter<HashingWriter<W>>>,
    names: ZipNames,
    entries: u64,
    skipped: Vec<String>,
    /// The file whose data comes now; `None` when the data is to be thrown away.
    open: Option<String>,
}

/// A ZIP that is written, and what was learned on the way.
pub(crate) struct Finished<W> {
    pub(crate) writer: W,
    pub(crate) sha256: String,
    pub(crate) entries: u64,
    pub(crate) skipped: Vec<String>,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(writer: W) -> Self {
        let writer = HashingWriter { inner: writer, hash: Sha256::new() };
        Self {
            zip: ZipWriter::new_stream(writer),
            names: ZipNames::default(),
            entries: 0,
            skipped: Vec::new(),
            open: None,
        }
    }

    pub(crate) fn take(&mut self, packed: &Packed) -> Result<(), ZipError> {
        match packed {
            Packed::Entry(entry) => self.entry(entry)?,
            Packed::Data(piece) => self.data(piece)?,
            Packed::FileEnd(Some(error)) => self.skip_rest(error),
            Packed::FileEnd(None) => {}
        }
        Ok(())
    }

    fn entry(&mut self, entry: &Entry) -> Result<(), ZipError> {
        self.open = None;
        let is_symlink = matches!(entry.kind, EntryKind::Symlink { .. });
        let name = match self.names.admit(&entry.path, is_symlink) {
            Ok(name) => name,
            Err(why) => {
                self.skipped(format!("{}: {why}", printable(&entry.path)));
                return Ok(());
            }
        };
        let options = options(entry.mode, entry.modified);
        match &entry.kind {
            EntryKind::File => {
                self.zip.start_file(&name, options)?;
                self.open = Some(name);
            }
            EntryKind::Folder => self.zip.add_directory(name, options)?,
            EntryKind::Symlink { target } => self.zip.add_symlink(name, target, options)?,
            EntryKind::Other => {
                self.skipped(format!(
                    "{}: neither a file, a folder nor a symlink",
                    printable(&name)
                ));
                return Ok(());
            }
        }
        self.entries += 1;
        Ok(())
    }

    pub(crate) fn data(&mut self, piece: &[u8]) -> Result<(), ZipError> {
        if self.open.is_some() {
            self.zip.write_all(piece)?;
        }
        Ok(())
    }

    fn skip_rest(&mut self, error: &str) {
        if let Some(name) = self.open.take() {
            self.skipped(format!("{}: not whole: {}", printable(&name), printable(error)));
        }
    }

    fn skipped(&mut self, reason: String) {
        if self.skipped.len() < MOST_SKIPPED {
            self.skipped.push(reason);
        }
    }

    /// Begins a file of ours. The workspace's own file of that name, if there is one, keeps it.
    pub(crate) fn addition(&mut self, name: &str) -> Result<(), ZipError> {
        let hidden = format!(".bellglass/{name}");
        self.open = self.names.admit_first(&[name, &hidden]);
        match &self.open {
            Some(name) => {
                let now = jiff::Timestamp::now().as_second();
                self.zip.start_file(name, options(0o644, now))?;
            }
            // Kept also when there are many others: it is us who leave it out.
            None => self
                .skipped
                .push(format!("our own {name}: the workspace has files named {name} and {hidden}")),
        }
        Ok(())
    }

    /// Ends the ZIP. A note is kept also when there are many others.
    pub(crate) fn finish(mut self, note: Option<String>) -> Result<Finished<W>, ZipError> {
        self.skipped.extend(note);
        let HashingWriter { inner: writer, hash } = self.zip.finish()?.into_inner();
        let sha256 = hex::encode(hash.finalize());
        Ok(Finished { writer, sha256, entries: self.entries, skipped: self.skipped })
    }
}

fn options(mode: u32, modified: i64) -> SimpleFileOptions {
    SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .compression_level(Some(3))
        // Sizes are not known ahead, so every entry is written ready for more than 4 GiB.
        .large_file(true)
        // Nobody who unpacks this is given set-user-id or sticky bits.
        .unix_permissions(mode & 0o777)
        .last_modified_time(zip_time(modified))
}

/// ZIP knows the years 1980 to 2107; anything else becomes its first moment.
fn zip_time(seconds: i64) -> DateTime {
    let time = jiff::Timestamp::from_second(seconds).ok().and_then(|moment| {
        let utc = moment.to_zoned(jiff::tz::TimeZone::UTC);
        let part = |number: i8| u8::try_from(number).ok();
        DateTime::from_date_and_time(
            u16::try_from(utc.year()).ok()?,
            part(utc.month())?,
            part(utc.day())?,
            part(utc.hour())?,
            part(utc.minute())?,
            part(utc.second())?,
        )
        .ok()
    });
    time.unwrap_or(DateTime::DEFAULT)
}

/// A text of the guest's, fit for a note.
pub(crate) fn printable(text: &str) -> String {
    text.chars().take(200).flat_map(char::escape_debug).collect()
}

/// Hashes what passes through.
struct HashingWriter<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::process::Command;

    use super::*;

    fn packed(pieces: impl IntoIterator<Item = Packed>) -> Finished<Vec<u8>> {
        let mut archive = Archive::new(Vec::new());
        pieces.into_iter().for_each(|piece| archive.take(&piece).unwrap());
        archive.finish(None).unwrap()
    }

    fn file(path: String) -> Packed {
        let kind = EntryKind::File;
        Packed::Entry(Entry { path, kind, bytes: 0, mode: 0o644, modified: 1_700_000_000 })
    }

    /// What a program of others makes of a ZIP: every entry is read and its sum checked.
    fn seen_by_python(zip: &[u8]) -> String {
        const LOOK: &str = "import sys, zipfile\n\
            zip = zipfile.ZipFile(sys.argv[1])\n\
            names, size = zip.namelist(), sum(info.file_size for info in zip.infolist())\n\
            print(zip.testzip(), len(names), len(set(names)), names[0], names[-1], size)";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("result.zip");
        std::fs::write(&path, zip).unwrap();
        let output = Command::new("python3").args(["-c", LOOK]).arg(&path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// A ZIP's first format counts to 65,535.
    #[test]
    fn more_entries_than_the_first_format_can_count_are_all_there() {
        const MANY: usize = 70_000;
        let files = (0..MANY).map(|n| file(format!("folder/{n:05}")));
        let finished = packed(files.flat_map(|file| [file, Packed::FileEnd(None)]));
        assert_eq!((finished.entries, finished.skipped.len()), (MANY as u64, 0));
        let mut zip = zip::ZipArchive::new(Cursor::new(&finished.writer)).unwrap();
        assert_eq!(zip.len(), MANY);
        for n in [0, 65_534, 65_535, 65_536, MANY - 1] {
            let mut entry = zip.by_index(n).unwrap();
            assert_eq!(entry.name().unwrap(), format!("folder/{n:05}"));
            assert_eq!(io::copy(&mut entry, &mut io::sink()).unwrap(), 0);
        }
        let seen = seen_by_python(&finished.writer);
        assert_eq!(seen, "None 70000 70000 folder/00000 folder/69999 0\n");
    }

    /// A ZIP's first format knows files of less than 4 GiB.
    #[test]
    fn a_file_larger_than_the_first_format_can_hold_is_whole() {
        const PIECES: usize = 4097;
        let zeros = bytes::Bytes::from(vec![0; 1 << 20]);
        let data = (0..PIECES).map(|_| Packed::Data(zeros.clone()));
        let large = std::iter::once(file("large".into())).chain(data);
        let after = [Packed::FileEnd(None), file("after".into()), Packed::FileEnd(None)];
        let finished = packed(large.chain(after));
        let size = (PIECES as u64) << 20;
        let mut zip = zip::ZipArchive::new(Cursor::new(&finished.writer)).unwrap();
        assert_eq!(zip.by_name("large").unwrap().size(), size);
        assert_eq!(zip.by_name("after").unwrap().size(), 0);
        let seen = seen_by_python(&finished.writer);
        assert_eq!(seen, format!("None 2 2 large after {size}\n"));
    }
}
