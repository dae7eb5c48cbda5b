//! The guest's executable, carried inside our own and handed to the kernel from memory.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

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
        fcntl_add_seals(
            &file,
            SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
        )?;
        Ok(Self(file.into()))
    }

    /// A path under which this process and its children can execute the guest.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}
