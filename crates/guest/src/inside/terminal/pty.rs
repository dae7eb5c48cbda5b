//! A pseudo-terminal: the guest holds one end, a program has the other as its terminal.

use std::ffi::CStr;
use std::io;
use std::num::NonZeroU16;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use bellglass_protocol::tunnel::TerminalSize;
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, Termios, Winsize, tcgetattr, tcsetattr, tcsetwinsize};
use tokio::io::unix::AsyncFd;

/// How large a session's terminal is. Wide enough for tables, small enough to be shown whole.
pub(super) const ROWS: NonZeroU16 = NonZeroU16::new(40).unwrap();
pub(super) const COLUMNS: NonZeroU16 = NonZeroU16::new(120).unwrap();

pub(super) const SESSION_SIZE: TerminalSize =
    TerminalSize { columns: COLUMNS.get(), rows: ROWS.get() };

/// The guest's end.
pub(super) struct Pty {
    end: AsyncFd<OwnedFd>,
    /// The settings that programs find, and that are put back after one was killed.
    settings: Termios,
}

impl Pty {
    /// Makes a terminal. Also gives the program's end, and the path of that.
    pub(super) fn open() -> io::Result<(Self, OwnedFd, String)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let end = openpt(flags)?;
        grantpt(&end)?;
        unlockpt(&end)?;
        let name = ptsname(&end, Vec::new())?;
        let inner = open_terminal(&name)?;
        tcsetwinsize(&end, window(SESSION_SIZE))?;
        let settings = tcgetattr(&inner)?;
        rustix::io::ioctl_fionbio(&end, true)?;
        // SAFETY: the descriptor is owned, so it stays open and the same for as long as it is
        // registered.
        let end = unsafe { AsyncFd::register(end)? };
        Ok((Self { end, settings }, inner, name.to_string_lossy().into_owned()))
    }

    /// Reads what was written to the terminal; nothing once nobody has it open any more.
    pub(super) async fn read(&self, buffer: &mut [u8]) -> usize {
        loop {
            let Ok(mut ready) = self.end.readable().await else { return 0 };
            match ready.try_io(|end| Ok(rustix::io::read(end, &mut *buffer)?)) {
                Ok(Ok(count)) => return count,
                // That the last program has let go of the terminal is an error to the kernel.
                Ok(Err(error)) if error.kind() != io::ErrorKind::Interrupted => return 0,
                _ => {}
            }
        }
    }

    /// Types. Waits while the program does not read and the terminal holds no more.
    pub(super) async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.end.writable().await?;
            match ready.try_io(|end| Ok(rustix::io::write(end, bytes)?)) {
                Ok(Ok(count)) => bytes = bytes.get(count..).unwrap_or_default(),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Err(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// The process group that has the terminal now.
    pub(super) fn foreground(&self) -> Option<libc::pid_t> {
        // SAFETY: the descriptor is open; the call gives back a number.
        let group = unsafe { libc::tcgetpgrp(self.end.as_raw_fd()) };
        (group > 0).then_some(group)
    }

    /// Tells the programs in it how large the terminal is now.
    pub(super) fn resize(&self, size: TerminalSize) {
        let _ = tcsetwinsize(self.end.get_ref().as_fd(), window(size.bounded()));
    }

    /// Undoes what a program that was killed did to the terminal.
    pub(super) fn restore(&self) {
        let _ = tcsetattr(self.end.get_ref().as_fd(), OptionalActions::Now, &self.settings);
    }
}

fn window(size: TerminalSize) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn open_terminal(name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(name, flags, Mode::empty())?)
}
