//! What the launcher and the process that it made say to each other, and what is handed over.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use super::privileges;

/// One end of a pair.
pub(super) struct Talk {
    stream: UnixStream,
    /// Whether the launcher can look at processes that must not be traced.
    sees_all: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Word {
    /// By the launcher: the new process has its ids.
    Ids = b'i',
    /// By the new process: it is in its control groups and in all namespaces but the network's.
    Joined = b'j',
    /// By the launcher: it has seen the namespaces of a process that will not show them any more.
    Seen = b's',
}

impl Talk {
    /// Made by the launcher.
    pub(super) fn pair() -> io::Result<(Self, Self)> {
        const CAP_SYS_PTRACE: u32 = 19;
        let sees_all = privileges::has(CAP_SYS_PTRACE);
        let end = |stream| Self { stream, sees_all };
        UnixStream::pair().map(|(one, other)| (end(one), end(other)))
    }

    /// In the new process, before it becomes one that cannot be traced.
    pub(super) fn be_seen(&self) -> io::Result<()> {
        self.say(Word::Joined)?;
        if self.sees_all { Ok(()) } else { self.wait_for(Word::Seen) }
    }

    /// In the launcher.
    pub(super) fn see<T>(&self, look: impl FnOnce() -> T) -> io::Result<T> {
        self.wait_for(Word::Joined)?;
        let seen = look();
        if !self.sees_all {
            self.say(Word::Seen)?;
        }
        Ok(seen)
    }

    pub(super) fn say(&self, word: Word) -> io::Result<()> {
        (&self.stream).write_all(&[word as u8])
    }

    pub(super) fn wait_for(&self, word: Word) -> io::Result<()> {
        let mut heard = [0];
        match (&self.stream).read_exact(&mut heard) {
            Ok(()) if heard == [word as u8] => Ok(()),
            Ok(()) => Err(io::Error::other("another word came")),
            Err(_) => Err(io::Error::other("the other process is gone")),
        }
    }

    pub(super) fn hand_over(&self, descriptors: [BorrowedFd<'_>; 2]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        rights.push(SendAncillaryMessage::ScmRights(&descriptors));
        let word = [IoSlice::new(b"d")];
        Ok(rustix::net::sendmsg(&self.stream, &word, &mut rights, SendFlags::NOSIGNAL).map(drop)?)
    }

    pub(super) fn take_over(&self) -> io::Result<[OwnedFd; 2]> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut word = [IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(&self.stream, &mut word, &mut rights, RecvFlags::CMSG_CLOEXEC)?;
        let descriptors = rights.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptors: Vec<OwnedFd> = descriptors.flatten().collect();
        descriptors.try_into().map_err(|_| io::Error::other("the launcher is gone"))
    }
}
