//! The name of the sandbox among the process's arguments.
//!
//! By that a sandbox is found whose maker died before it could write down which process it is. A launcher
//! may have been started before anybody knew what it will be for, so it is given room for a name, and puts
//! the name there itself. Nothing inside can change it: no tool reaches the guest's memory.

use std::{fs, io};

/// Where the arguments of this process lie.
pub(super) struct Place {
    start: usize,
    end: usize,
}

impl Place {
    pub(super) fn find() -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/self/stat")?;
        arguments(&stat).ok_or_else(|| io::Error::other("it is not known where"))
    }

    /// Puts the name in the place of the arguments that follow the program's name. The new process, which
    /// begins as a copy, carries it too.
    pub(super) fn carry(self, name: &str) -> io::Result<()> {
        let Self { start, end } = self;
        // SAFETY: the kernel says that the arguments of this process, which are its own to change, lie
        // there. The process has one thread, and what has read them before holds copies.
        let place = unsafe { std::slice::from_raw_parts_mut(start as *mut u8, end - start) };
        put(name, place).ok_or_else(|| io::Error::other("there is no room for it"))
    }
}

/// The name after the first text, and nothing after the name.
fn put(name: &str, place: &mut [u8]) -> Option<()> {
    let program = place.iter().position(|byte| *byte == 0)? + 1;
    let (name_place, rest) = place[program..].split_at_mut_checked(name.len())?;
    // One byte at least ends it.
    rest.first()?;
    name_place.copy_from_slice(name.as_bytes());
    rest.fill(0);
    Some(())
}

/// The 48th and the 49th field of `/proc/PID/stat`. The second may contain anything, so counting starts
/// after it.
fn arguments(stat: &str) -> Option<Place> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    let mut fields = after_name.split_whitespace().skip(45);
    let (start, end) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    (start != 0 && start < end).then_some(Place { start, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_takes_the_place_of_what_follows_the_program() {
        let put_into = |place: &str| {
            let mut place = place.as_bytes().to_vec();
            let done = put("name", &mut place);
            (done.is_some(), String::from_utf8(place).unwrap())
        };
        assert_eq!(put_into("guest\0------\0"), (true, "guest\0name\0\0\0".into()));
        assert_eq!(put_into("guest\0----\0"), (true, "guest\0name\0".into()));
        assert_eq!(put_into("guest\0---\0"), (false, "guest\0---\0".into()));
        assert_eq!(put_into("guest\0"), (false, "guest\0".into()));
        assert_eq!(put_into("guest"), (false, "guest".into()));
    }

    #[test]
    fn the_arguments_of_this_process_are_found() {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let Place { start, end } = arguments(&stat).unwrap();
        let line = fs::read("/proc/self/cmdline").unwrap();
        assert_eq!(end - start, line.len());
    }
}
