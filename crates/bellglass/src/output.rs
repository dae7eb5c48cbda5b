//! Standard output and standard error, which may lead to somebody who has stopped reading.
//!
//! `println!` and `eprintln!` of the standard library panic then, and a panic would leave whatever
//! the command was doing half done. The macros here take their place in the whole program.

use std::fmt;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::sync::OnceLock;

use rustix::termios::tcgetwinsize;

/// Whether anybody takes what is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    There,
    /// The other end of the pipe is closed: nothing that is written matters any more.
    Gone,
}

/// Writes text to standard output, at once.
pub(crate) fn write(text: &str) -> io::Result<Reader> {
    let mut out = io::stdout().lock();
    reader_after(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

fn reader_after(written: io::Result<()>) -> io::Result<Reader> {
    match written {
        Ok(()) => Ok(Reader::There),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => Err(error),
    }
}

/// Columns and rows of the terminal that standard output is, if it is one.
pub(crate) fn window() -> Option<(u16, u16)> {
    let size = tcgetwinsize(io::stdout().as_fd()).ok()?;
    (size.ws_col > 0 && size.ws_row > 0).then_some((size.ws_col, size.ws_row))
}

static FAILURE: OnceLock<io::Error> = OnceLock::new();

/// The first reason but a closed pipe for which a line could not be written. A command that ends
/// well all the same has not said what it found.
pub(crate) fn failure() -> Option<&'static io::Error> {
    FAILURE.get()
}

/// What `println!` does.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    if let Err(error) = write(&format!("{text}\n")) {
        let _ = FAILURE.set(error);
    }
}

/// What `eprintln!` does. There is no place left to say that it failed.
pub(crate) fn error_line(text: fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

macro_rules! println {
    () => { $crate::output::line(format_args!("")) };
    ($($text:tt)+) => { $crate::output::line(format_args!($($text)+)) };
}

macro_rules! eprintln {
    ($($text:tt)+) => { $crate::output::error_line(format_args!($($text)+)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_closed_pipe_is_no_failure() {
        assert_eq!(reader_after(Ok(())).unwrap(), Reader::There);
        let broken = io::Error::from(io::ErrorKind::BrokenPipe);
        assert_eq!(reader_after(Err(broken)).unwrap(), Reader::Gone);
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(reader_after(Err(full)).is_err());
    }
}
