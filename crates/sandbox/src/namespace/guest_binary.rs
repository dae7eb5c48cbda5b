//! The guest's executable, carried inside our own and handed to the kernel from memory.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

/// Before the kernel says that a page is in use, it has waited for that itself, for a tenth of a second and more.
const MOST_TRIES: usize = 10;

static GUEST: &[u8] = include_bytes!(env!("BELLGLASS_GUEST_PATH"));

/// A sealed file in memory that holds the guest. It cannot be changed by anybody any more, also not
/// through `/proc/PID/exe` from inside a sandbox, and no path on disk leads to it.
pub(super) struct GuestBinary(OwnedFd);

impl GuestBinary {
    pub(super) fn load() -> io::Result<Self> {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("bellglass-guest", flags)?);
        file.write_all(GUEST)?;
        let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
        until_free(|| fcntl_add_seals(&file, seals))?;
        Ok(Self(file.into()))
    }

    /// A path under which this process and its children can execute the guest.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

/// A file cannot be sealed while the kernel holds one of its pages, as it does for a moment when it moves or counts
/// memory.
fn until_free(mut seal: impl FnMut() -> rustix::io::Result<()>) -> rustix::io::Result<()> {
    for _ in 1..MOST_TRIES {
        match seal() {
            Err(rustix::io::Errno::BUSY) => std::thread::sleep(std::time::Duration::from_millis(1)),
            sealed => return sealed,
        }
    }
    seal()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn a_page_in_use_is_waited_for_but_not_for_ever() {
        let mut answers = [Err(Errno::BUSY), Err(Errno::BUSY), Ok(())].into_iter();
        assert_eq!(until_free(|| answers.next().unwrap()), Ok(()));
        let mut tries = 0;
        let always = until_free(|| {
            tries += 1;
            Err(Errno::BUSY)
        });
        assert_eq!((always, tries), (Err(Errno::BUSY), MOST_TRIES));
        assert_eq!(until_free(|| Err(Errno::PERM)), Err(Errno::PERM));
    }
}
