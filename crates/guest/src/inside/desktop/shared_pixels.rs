//! Memory that the X server puts pictures of the screen into, so that they need not go through its socket.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use x11rb::connection::{Connection as _, RequestConnection as _};
use x11rb::protocol::shm::{self, ConnectionExt as _};
use x11rb::protocol::xproto::{ImageFormat, Window};
use x11rb::rust_connection::RustConnection;

use super::picture::Area;
use super::{Broken, Done};

/// Room for one picture.
pub(super) struct SharedPixels {
    segment: shm::Seg,
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: the memory belongs to this value alone in this process, and is read through `&mut self` only.
unsafe impl Send for SharedPixels {}

impl SharedPixels {
    /// Nothing where the X server or this sandbox has no such memory: then pictures come over the socket.
    pub(super) fn open(connection: &RustConnection, width: u32, height: u32) -> Option<Self> {
        connection.extension_information(shm::X11_EXTENSION_NAME).ok()??;
        let version = connection.shm_query_version().ok()?.reply().ok()?;
        if (version.major_version, version.minor_version) < (1, 2) {
            return None;
        }
        let size = width as usize * height as usize * 4;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memory = rustix::fs::memfd_create("screen", flags).ok()?;
        rustix::fs::ftruncate(&memory, size as u64).ok()?;
        // Whoever is at the other end of the socket cannot take away what is read here.
        rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::SEAL).ok()?;
        let pixels =
            Self { segment: connection.generate_id().ok()?, start: map(&memory, size)?, size };
        connection.shm_attach_fd(pixels.segment, memory, false).ok()?.check().ok()?;
        Some(pixels)
    }

    pub(super) fn has_room_for(&self, area: Area) -> bool {
        area.width as usize * area.height as usize * 4 <= self.size
    }

    /// Lets the X server have it no more.
    pub(super) fn give_back(self, connection: &RustConnection) {
        // A server that is gone has let go of it.
        let _ = connection.shm_detach(self.segment);
    }

    /// Has an area of the screen put there, and takes it: four bytes for each pixel.
    pub(super) fn take(
        &mut self,
        connection: &RustConnection,
        root: Window,
        area: Area,
    ) -> Done<Vec<u8>> {
        let wanted = area.width as usize * area.height as usize * 4;
        if wanted > self.size {
            return Err(Broken("the screen is larger than it was".into()));
        }
        let (x, y, width, height) =
            (area.x as i16, area.y as i16, area.width as u16, area.height as u16);
        let format = ImageFormat::Z_PIXMAP.into();
        connection
            .shm_get_image(root, x, y, width, height, u32::MAX, format, self.segment, 0)?
            .reply()?;
        let mut pixels = Vec::with_capacity(wanted);
        // SAFETY: so many bytes are mapped, as checked above, and cannot be unmapped or cut off by others. A server
        // that writes meanwhile spoils its own picture.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.as_ptr(), pixels.as_mut_ptr(), wanted);
            pixels.set_len(wanted);
        }
        Ok(pixels)
    }
}

impl Drop for SharedPixels {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this size, and nobody reads it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.size) };
    }
}

fn map(memory: &OwnedFd, size: usize) -> Option<NonNull<u8>> {
    use std::os::fd::AsRawFd as _;
    // SAFETY: a new mapping, wherever the kernel wants it, of a file of this size.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            libc::PROT_READ,
            libc::MAP_SHARED,
            memory.as_raw_fd(),
            0,
        )
    };
    if start == libc::MAP_FAILED { None } else { NonNull::new(start.cast()) }
}
