//! What may still be taken from a guest, which could send for ever.

use bellglass_protocol::wire::{EntryKind, Packed};

/// Counts what was taken.
pub(crate) struct Allowance {
    limit: u64,
    bytes: u64,
    entries: u64,
    name_bytes: u64,
    /// Every file has one, so there are no more of them than entries.
    ends: u64,
}

const MOST_ENTRIES: u64 = 500_000;
/// All names are held in memory until the ZIP is written.
const MOST_NAME_BYTES: u64 = 64 << 20;

impl Allowance {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, bytes: 0, entries: 0, name_bytes: 0, ends: 0 }
    }

    pub(crate) fn take(&mut self, packed: &Packed) -> Result<(), String> {
        match packed {
            Packed::Entry(entry) => {
                self.entries += 1;
                self.name_bytes += entry.path.len() as u64;
                if let EntryKind::Symlink { target } = &entry.kind {
                    self.bytes += target.len() as u64;
                }
            }
            // Also an empty piece counts, or there could be any number of them.
            Packed::Data(piece) => self.bytes += piece.len().max(1) as u64,
            Packed::FileEnd(_) => self.ends += 1,
        }
        if self.entries.max(self.ends) > MOST_ENTRIES {
            Err(format!("the workspace has more than {MOST_ENTRIES} entries"))
        } else if self.name_bytes > MOST_NAME_BYTES {
            Err(format!("the names of the workspace are longer than {MOST_NAME_BYTES} bytes"))
        } else if self.bytes > self.limit {
            Err(format!("the workspace is larger than {} bytes", self.limit))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bellglass_protocol::wire::Entry;
    use bytes::Bytes;

    fn entry(path: &str, kind: EntryKind) -> Packed {
        Packed::Entry(Entry { path: path.into(), kind, bytes: 0, mode: 0o644, modified: 0 })
    }

    #[test]
    fn whatever_a_guest_sends_has_an_end() {
        let new = || Allowance::new(10);
        let link = || EntryKind::Symlink { target: "12345678901".into() };
        for (mut allowance, piece, reason) in [
            (Allowance { entries: MOST_ENTRIES, ..new() }, entry("a", EntryKind::Other), "entries"),
            (
                Allowance { name_bytes: MOST_NAME_BYTES, ..new() },
                entry("a", EntryKind::Folder),
                "names",
            ),
            (
                Allowance { bytes: 10, ..new() },
                Packed::Data(Bytes::from_static(b"x")),
                "larger than 10",
            ),
            (Allowance { bytes: 10, ..new() }, Packed::Data(Bytes::new()), "larger than 10"),
            (Allowance { ends: MOST_ENTRIES, ..new() }, Packed::FileEnd(None), "entries"),
            (new(), entry("a", link()), "larger than 10"),
        ] {
            let refused = allowance.take(&piece).unwrap_err();
            assert!(refused.contains(reason), "{piece:?}: {refused}");
        }
        let mut allowance =
            Allowance { entries: MOST_ENTRIES - 2, name_bytes: MOST_NAME_BYTES - 1, ..new() };
        for piece in [
            entry("a", EntryKind::File),
            Packed::Data(Bytes::from_static(b"1234567890")),
            Packed::FileEnd(None),
        ] {
            assert_eq!(allowance.take(&piece), Ok(()), "{piece:?}");
        }
    }
}
