//! Which user ids a sandbox is given: as root a range that no other sandbox has, else what there is.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Mutex;

use bellglass_protocol::launch::IdMapping;

use super::id_blocks::{IdBlocks, NoIds};

/// Gives out id mappings.
#[derive(Debug)]
pub(super) struct IdRanges {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Root(Mutex<Ranges>),
    Fixed(IdMapping),
}

#[derive(Debug)]
struct Ranges {
    /// Who else on this host has which ranges.
    host: IdBlocks,
    /// Ranges that are ours to give, by their numbers.
    own: Vec<u32>,
    /// The bases of those that sandboxes have.
    used: HashSet<u32>,
    /// Where among our own the search begins, so that a range rests before it is given again.
    next: usize,
}

/// How many ids a sandbox has when root gives them.
const RANGE: u32 = 65_536;
/// The first range: above everything that distributions give out to people and to containers.
const FIRST_BASE: u32 = 0x4000_0000;

/// Tools run as this user inside, so fewer ids would not do.
const LEAST_SUBORDINATE_IDS: u32 = 1001;

impl IdRanges {
    /// For the sandboxes below this folder.
    pub(super) fn detect(folder: &Path) -> Self {
        let kind = if rustix::process::geteuid().is_root() {
            Kind::Root(Mutex::new(Ranges::new(IdBlocks::of_host(folder))))
        } else {
            Kind::Fixed(subordinate_ids().unwrap_or(IdMapping::Single))
        };
        Self { kind }
    }

    pub(super) fn take(&self) -> Result<IdMapping, NoIds> {
        match &self.kind {
            Kind::Fixed(mapping) => Ok(*mapping),
            Kind::Root(ranges) => {
                let mut ranges = ranges.lock().expect("no code panics while it holds this lock");
                ranges.take().map(|base| IdMapping::Range { base })
            }
        }
    }

    /// Marks a range as taken by a sandbox that runs already.
    pub(super) fn reserve(&self, mapping: IdMapping) {
        if let (Kind::Root(ranges), IdMapping::Range { base }) = (&self.kind, mapping) {
            ranges.lock().expect("no code panics while it holds this lock").used.insert(base);
        }
    }

    pub(super) fn give_back(&self, mapping: IdMapping) {
        if let (Kind::Root(ranges), IdMapping::Range { base }) = (&self.kind, mapping) {
            ranges.lock().expect("no code panics while it holds this lock").used.remove(&base);
        }
    }
}

impl Ranges {
    fn new(host: IdBlocks) -> Self {
        let own = host.held_already();
        Self { host, own, used: HashSet::new(), next: 0 }
    }

    fn take(&mut self) -> Result<u32, NoIds> {
        loop {
            if let Some(base) = self.take_own() {
                return Ok(base);
            }
            self.own.extend(self.host.claim()?);
        }
    }

    fn take_own(&mut self) -> Option<u32> {
        for _ in 0..self.own.len() {
            let base = FIRST_BASE + self.own[self.next % self.own.len()] * RANGE;
            self.next = (self.next + 1) % self.own.len();
            if self.used.insert(base) {
                return Some(base);
            }
        }
        None
    }
}

/// What /etc/subuid and /etc/subgid give to the user of this process, if `newuidmap` is there.
pub(crate) fn subordinate_ids() -> Option<IdMapping> {
    let programs = ["newuidmap", "newgidmap"];
    if !programs.iter().all(|program| crate::host::finds_program(program)) {
        return None;
    }
    let uid = rustix::process::getuid().as_raw();
    let name = user_name(uid);
    let read = |file| {
        let text = fs::read_to_string(file).unwrap_or_default();
        range_of(&text, uid, name.as_deref())
    };
    let (uid_base, uids) = read("/etc/subuid")?;
    let (gid_base, gids) = read("/etc/subgid")?;
    let count = uids.min(gids).min(RANGE);
    (count >= LEAST_SUBORDINATE_IDS).then_some(IdMapping::Subordinate { uid_base, gid_base, count })
}

fn user_name(uid: u32) -> Option<String> {
    let users = fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid.to_string()).then(|| name.to_owned())
    })
}

/// The first line for a user, by number or by name: base and count.
fn range_of(text: &str, uid: u32, name: Option<&str>) -> Option<(u32, u32)> {
    text.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let owner = fields.next()?;
        let is_ours = owner == uid.to_string() || Some(owner) == name;
        is_ours.then(|| Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?)))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_by_name_or_number() {
        let text = "# comment\nroot:1:2\nann:100000:65536\n1001:200000:65536\n";
        assert_eq!(range_of(text, 1000, Some("ann")), Some((100_000, 65_536)));
        assert_eq!(range_of(text, 1001, None), Some((200_000, 65_536)));
        assert_eq!(range_of(text, 1002, Some("bob")), None);
        assert_eq!(range_of("ann:x:y\n", 1000, Some("ann")), None);
    }

    #[test]
    fn no_range_is_given_twice() {
        let folders = tempfile::tempdir().unwrap();
        let register = folders.path().join("register");
        let ranges = |name: &str| {
            let owner = folders.path().join(name);
            fs::create_dir_all(&owner).unwrap();
            IdRanges { kind: Kind::Root(Mutex::new(Ranges::new(IdBlocks::new(&register, &owner)))) }
        };
        let (one, other) = (ranges("one"), ranges("other"));
        let mut given = HashSet::new();
        for _ in 0..100 {
            for ranges in [&one, &other] {
                let Ok(IdMapping::Range { base }) = ranges.take() else { panic!("there are more") };
                assert!(given.insert(base), "{base} twice");
            }
        }
        // One that starts again has what it had, and knows from records what is in use of it.
        let again = ranges("one");
        let Ok(IdMapping::Range { base }) = again.take() else { panic!("there are more") };
        assert!(given.contains(&base));
        // What belongs to a folder that is gone is free.
        fs::remove_dir(folders.path().join("other")).unwrap();
        let third = ranges("third");
        let Ok(IdMapping::Range { base }) = third.take() else { panic!("there are more") };
        assert!(given.contains(&base));
    }
}
