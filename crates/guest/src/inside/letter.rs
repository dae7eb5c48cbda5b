//! Memory that is shared with whoever waits for a program, and in which the program is named.
//!
//! That is a fork, so the memory lies at the same place for both and may contain pointers into itself.

use std::ffi::CString;
use std::io;
use std::ptr::{self, NonNull};

use libc::{c_char, pid_t};
use rustix::process::Pid;

use super::process::Texts;
use super::supervisor::Named;

/// Room for a long command and its environment. What is not touched is not there.
const BYTES: usize = 128 << 10;

pub(super) struct Letter {
    start: NonNull<u8>,
}

/// What lies at its start.
#[repr(C)]
struct Head {
    named: Named,
    /// Who waits for it.
    waiting: pid_t,
}

// SAFETY: the memory belongs to this value alone until it is handed over by an order.
unsafe impl Send for Letter {}

impl Letter {
    pub(super) fn new() -> io::Result<Self> {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, wherever the kernel has room.
        let start = unsafe { libc::mmap(ptr::null_mut(), BYTES, access, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start })
    }

    /// Keeps it from all that is forked from now on: it is for those alone who have it already.
    pub(super) fn seal(&self) {
        // SAFETY: the memory is ours. Where the kernel cannot, others have it and do not know where.
        unsafe { libc::madvise(self.start.as_ptr().cast(), BYTES, libc::MADV_DONTFORK) };
    }

    /// Where the program is named.
    pub(super) fn named(&self) -> *const Named {
        // SAFETY: the head lies within the memory.
        unsafe { &raw const (*self.head()).named }
    }

    /// Where the process id stands of whoever waits.
    pub(super) fn waiting(&self) -> *mut pid_t {
        // SAFETY: as above.
        unsafe { &raw mut (*self.head()).waiting }
    }

    /// Who waits for it, once somebody does.
    pub(super) fn reader(&self) -> Option<Pid> {
        // SAFETY: the kernel writes it once, whole.
        Pid::from_raw(unsafe { self.waiting().read_volatile() })
    }

    fn head(&self) -> *mut Head {
        self.start.as_ptr().cast()
    }

    /// Names the program. Says whether there was room.
    pub(super) fn write(&mut self, texts: &Texts) -> bool {
        let Texts { program, arguments, environment, folder } = texts;
        let pointers = arguments.len() + environment.len() + 2;
        let all = || [program, folder].into_iter().chain(arguments).chain(environment);
        let bytes: usize = all().map(|text| text.as_bytes_with_nul().len()).sum();
        let lists = size_of::<Head>();
        let words = lists + pointers * size_of::<*const c_char>();
        if words + bytes > BYTES {
            return false;
        }
        // SAFETY: all that is written lies within the memory, by the sum above: the head, then two lists
        // of pointers, then the texts. Its start is the start of a page, and each part keeps the
        // alignment that the next needs.
        unsafe {
            let start = self.start.as_ptr();
            let mut list: *mut *const c_char = start.add(lists).cast();
            let mut text = start.add(words);
            let mut put = |from: &CString| {
                let bytes = from.as_bytes_with_nul();
                ptr::copy_nonoverlapping(bytes.as_ptr(), text, bytes.len());
                let put = text.cast_const().cast::<c_char>();
                text = text.add(bytes.len());
                put
            };
            let (program, folder) = (put(program), put(folder));
            let mut put_list = |texts: &[CString]| {
                let first = list.cast_const();
                for pointer in texts.iter().map(&mut put).chain([ptr::null()]) {
                    list.write(pointer);
                    list = list.add(1);
                }
                first
            };
            let (arguments, environment) = (put_list(arguments), put_list(environment));
            let named = Named { program, arguments, environment, folder };
            (&raw mut (*start.cast::<Head>()).named).write(named);
        }
        true
    }
}

impl Drop for Letter {
    fn drop(&mut self) {
        // SAFETY: nothing of this process points there any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn texts(argument: usize) -> Texts {
        let text = |text: &str| CString::new(text).unwrap();
        Texts {
            program: text("/bin/bash"),
            arguments: vec![text("bash"), text("-c"), text(&"x".repeat(argument))],
            environment: vec![text("A=1"), text("")],
            folder: text("/workspace"),
        }
    }

    /// # Safety
    /// The list must end with a null pointer.
    unsafe fn read(mut list: *const *const c_char) -> Vec<String> {
        let mut read = Vec::new();
        // SAFETY: as promised.
        unsafe {
            while !(*list).is_null() {
                read.push(CStr::from_ptr(*list).to_str().unwrap().to_owned());
                list = list.add(1);
            }
        }
        read
    }

    #[test]
    fn what_was_written_is_read() {
        let mut letter = Letter::new().unwrap();
        // Room for everything else, to the last byte.
        let words = size_of::<Head>() + 7 * size_of::<usize>();
        let most = BYTES - words - "/bin/bash\0/workspace\0bash\0-c\0\0A=1\0\0".len();
        for argument in [0, 1, 4096, most] {
            assert!(letter.write(&texts(argument)), "{argument}");
            // SAFETY: it was just written.
            unsafe {
                let named = &*letter.named();
                assert_eq!(CStr::from_ptr(named.program), c"/bin/bash");
                assert_eq!(CStr::from_ptr(named.folder), c"/workspace");
                assert_eq!(read(named.arguments), ["bash", "-c", &"x".repeat(argument)]);
                assert_eq!(read(named.environment), ["A=1", ""]);
            }
        }
        assert!(!letter.write(&texts(most + 1)));
    }
}
