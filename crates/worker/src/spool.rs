//! A step's output on this machine's disk until the step's end is recorded.
//!
//! The guest forgets what it was told is kept, so output is kept here before it is confirmed. The
//! file lives exactly as long as the sandbox can: if this process dies, its successor reads the
//! file and asks the guest for the rest; if the machine dies, the sandbox is gone too.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bellglass_protocol::step::OutputStream;

use crate::capture::Capture;

/// The file of one step. Each record is a byte for the stream, a length, and the bytes; or a byte
/// that says so, and how many bytes were let go.
#[derive(Debug)]
pub(crate) struct Spool {
    path: PathBuf,
    file: Option<File>,
    /// Where the next record goes.
    end: u64,
    /// Output bytes that came so far.
    bytes: u64,
    /// No more than so many are written; what comes after is only counted.
    limit: u64,
    /// How many were only counted.
    let_go: u64,
    /// The last record, if it only counts: its place and its count. It is written over as the
    /// count grows, or output without end would make a file without end.
    counting: Option<(u64, u32)>,
}

const HEADER: usize = 5;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const LET_GO: u8 = 3;

impl Spool {
    /// Opens a step's spool and feeds what it holds already to `capture`.
    pub(crate) fn open(path: PathBuf, limit: u64, capture: &mut Capture) -> io::Result<Self> {
        let mut spool =
            Self { path, file: None, end: 0, bytes: 0, limit, let_go: 0, counting: None };
        let file = match File::open(&spool.path) {
            Ok(file) => file,
            // Only this means that nothing was kept so far; any other error hides what was.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(spool),
            Err(error) => return Err(error),
        };
        let mut reader = BufReader::new(file);
        while let Some(record) = read_record(&mut reader)? {
            let place = spool.end;
            spool.end += HEADER as u64;
            match record {
                Record::Kept(stream, piece) => {
                    capture.push(stream, &piece);
                    spool.bytes += piece.len() as u64;
                    spool.end += piece.len() as u64;
                    spool.counting = None;
                }
                Record::LetGo(count) => {
                    capture.skip(count.into());
                    spool.bytes += u64::from(count);
                    spool.let_go += u64::from(count);
                    spool.counting = Some((place, count));
                }
            }
        }
        // A record that was cut off by a crash was never confirmed; it is written anew.
        let file = File::options().write(true).open(&spool.path)?;
        file.set_len(spool.end)?;
        spool.file = Some(file);
        Ok(spool)
    }

    /// Output bytes that are safe here. Beyond the limit this counts what was let go on purpose.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many of them were let go.
    pub(crate) fn let_go(&self) -> u64 {
        self.let_go
    }

    pub(crate) fn write(&mut self, stream: OutputStream, piece: &[u8]) -> io::Result<()> {
        let kept = piece.len().min(self.limit.saturating_sub(self.bytes) as usize);
        self.bytes += piece.len() as u64;
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                if let Some(folder) = self.path.parent() {
                    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
                }
                // What a job says is for nobody else on this machine.
                let mut options = File::options();
                options.create(true).truncate(false).write(true).mode(0o600);
                let file = options.open(&self.path)?;
                self.file.insert(file)
            }
        };
        if kept > 0 {
            let kind = match stream {
                OutputStream::Stdout => STDOUT,
                OutputStream::Stderr => STDERR,
            };
            let mut record = Vec::with_capacity(HEADER + kept);
            record.extend_from_slice(&header(kind, kept as u32));
            record.extend_from_slice(&piece[..kept]);
            file.write_all_at(&record, self.end)?;
            self.end += record.len() as u64;
            self.counting = None;
        }
        if kept < piece.len() {
            let more = (piece.len() - kept) as u32;
            let (place, count) = match self.counting {
                Some((place, count)) if count.checked_add(more).is_some() => (place, count + more),
                _ => (self.end, more),
            };
            file.write_all_at(&header(LET_GO, count), place)?;
            self.end = self.end.max(place + HEADER as u64);
            self.counting = Some((place, count));
            self.let_go += u64::from(more);
        }
        Ok(())
    }

    /// Copies the output, both streams as they came, to `target`, and says at its end if it is not
    /// whole.
    pub(crate) fn copy_to(&self, target: &mut impl Write) -> io::Result<()> {
        let mut reader = BufReader::new(File::open(&self.path)?);
        while let Some(record) = read_record(&mut reader)? {
            if let Record::Kept(_, piece) = record {
                target.write_all(&piece)?;
            }
        }
        if self.let_go > 0 {
            let (let_go, kept) = (self.let_go, self.bytes - self.let_go);
            let note = format!("\n[… {let_go} bytes more were not kept: the limit is {kept} …]\n");
            target.write_all(note.as_bytes())?;
        }
        Ok(())
    }
}

fn header(kind: u8, length: u32) -> [u8; HEADER] {
    let [a, b, c, d] = length.to_be_bytes();
    [kind, a, b, c, d]
}

enum Record {
    Kept(OutputStream, Vec<u8>),
    /// So many bytes beyond the limit.
    LetGo(u32),
}

/// The next whole record; `None` at the end and where the rest is not whole.
fn read_record(reader: &mut impl Read) -> io::Result<Option<Record>> {
    let mut header = [0; HEADER];
    if !read_whole(reader, &mut header)? {
        return Ok(None);
    }
    let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]);
    let stream = match header[0] {
        STDOUT => OutputStream::Stdout,
        STDERR => OutputStream::Stderr,
        _ => return Ok(Some(Record::LetGo(length))),
    };
    let mut piece = vec![0; length as usize];
    Ok(read_whole(reader, &mut piece)?.then_some(Record::Kept(stream, piece)))
}

fn read_whole(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes the spool of a step whose end is recorded.
pub(crate) async fn remove(path: &Path) {
    match tokio::fs::remove_file(path).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, "could not remove a step's spool");
        }
        _ => {}
    }
}

/// Where a step's spool is.
pub(crate) fn of_step(spools: &Path, job: bellglass_protocol::id::JobId, n: u32) -> PathBuf {
    job_folder(spools, job).join(n.to_string())
}

/// Where a job's spools are.
pub(crate) fn job_folder(spools: &Path, job: bellglass_protocol::id::JobId) -> PathBuf {
    spools.join(job.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Recording;

    #[test]
    fn a_successor_goes_on_where_the_file_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job/1");
        let mut spool =
            Spool::open(path.clone(), 1000, &mut Capture::new(Recording::Full)).unwrap();
        spool.write(OutputStream::Stdout, b"one ").unwrap();
        spool.write(OutputStream::Stderr, b"two ").unwrap();
        drop(spool);
        // A crash in the middle of a record.
        File::options()
            .append(true)
            .open(&path)
            .unwrap()
            .write_all(&[1, 0, 0, 0, 9, b'x'])
            .unwrap();

        let mut capture = Capture::new(Recording::Full);
        let mut spool = Spool::open(path, 1000, &mut capture).unwrap();
        assert_eq!(
            (spool.bytes(), capture.stdout(), capture.stderr()),
            (8, "one ".into(), "two ".into())
        );
        spool.write(OutputStream::Stdout, b"three").unwrap();
        let mut all = Vec::new();
        spool.copy_to(&mut all).unwrap();
        assert_eq!(all, b"one two three");
    }

    #[test]
    fn only_a_missing_file_is_an_empty_spool() {
        let folder = tempfile::tempdir().unwrap();
        let below_a_file = folder.path().join("file/1");
        fs::write(folder.path().join("file"), "").unwrap();
        let error =
            Spool::open(below_a_file, 1000, &mut Capture::new(Recording::Full)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }

    #[test]
    fn only_the_owner_may_look() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("spools/job/1");
        let mut spool =
            Spool::open(path.clone(), 1000, &mut Capture::new(Recording::Full)).unwrap();
        spool.write(OutputStream::Stdout, b"secret").unwrap();
        for (place, mode) in [("spools", 0o700), ("spools/job", 0o700), ("spools/job/1", 0o600)] {
            let metadata = fs::metadata(folder.path().join(place)).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o777, mode, "{place}");
        }
    }

    #[test]
    fn no_more_than_the_limit_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut spool =
            Spool::open(folder.path().join("1"), 6, &mut Capture::new(Recording::Full)).unwrap();
        for _ in 0..3 {
            spool.write(OutputStream::Stdout, b"abcd").unwrap();
        }
        let mut all = Vec::new();
        spool.copy_to(&mut all).unwrap();
        let note = "\n[… 6 bytes more were not kept: the limit is 6 …]\n";
        assert_eq!(String::from_utf8(all).unwrap(), format!("abcdab{note}"));
        assert_eq!((spool.bytes(), spool.let_go()), (12, 6));
        // Also a successor knows how much there was.
        let again =
            Spool::open(folder.path().join("1"), 6, &mut Capture::new(Recording::Full)).unwrap();
        assert_eq!((again.bytes(), again.let_go()), (12, 6));
    }

    #[test]
    fn output_without_end_makes_no_file_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1");
        let mut spool = Spool::open(path.clone(), 6, &mut Capture::new(Recording::Full)).unwrap();
        for _ in 0..1000 {
            spool.write(OutputStream::Stdout, b"abcd").unwrap();
        }
        drop(spool);
        let mut spool = Spool::open(path.clone(), 6, &mut Capture::new(Recording::Full)).unwrap();
        for _ in 0..1000 {
            spool.write(OutputStream::Stderr, b"abcd").unwrap();
        }
        assert_eq!((spool.bytes(), spool.let_go()), (8000, 7994));
        assert!(fs::metadata(&path).unwrap().len() < 100);
        let again = Spool::open(path, 6, &mut Capture::new(Recording::Full)).unwrap();
        assert_eq!((again.bytes(), again.let_go()), (8000, 7994));
    }
}
