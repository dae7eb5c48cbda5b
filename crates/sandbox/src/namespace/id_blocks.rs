//! Which ranges of ids belong to whom on this host.
//!
//! Several servers, and programs that run one job, share a host without knowing of each other. Each
//! folder of sandboxes takes ranges in blocks, by a file that names it. The files lie where a restart
//! of the machine, which ends all sandboxes, removes them; a folder that is gone has none any more.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

/// Where blocks are registered on a host.
const REGISTER: &str = "/run/bellglass/ids";

/// How many ranges are taken at once, and how many blocks there are.
const SIZE: u32 = 64;
const BLOCKS: u32 = 250;

/// Why there are no ids for another sandbox.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoIds {
    #[error("ids cannot be registered in {register}, which must be writable: {error}")]
    NotRegistered { register: String, error: io::Error },
    #[error(
        "no id range is left, by the files in {register}: let some sandboxes end, or remove folders of \
         servers that are no more"
    )]
    AllTaken { register: String },
}

#[derive(Debug)]
pub(super) struct IdBlocks {
    register: PathBuf,
    owner: PathBuf,
}

impl IdBlocks {
    pub(super) fn of_host(owner: &Path) -> Self {
        Self::new(Path::new(REGISTER), owner)
    }

    pub(super) fn new(register: &Path, owner: &Path) -> Self {
        Self { register: register.into(), owner: owner.into() }
    }

    /// The ranges that were taken for this folder by an earlier process.
    pub(super) fn held_already(&self) -> Vec<u32> {
        let own = self.blocks().filter(|(_, owner)| *owner == self.owner);
        own.flat_map(|(block, _)| ranges(block)).collect()
    }

    /// Takes one more block.
    pub(super) fn claim(&self) -> Result<Range<u32>, NoIds> {
        let register = || self.register.display().to_string();
        let claimed = self.try_claim();
        let block =
            claimed.map_err(|error| NoIds::NotRegistered { register: register(), error })?;
        block.map(ranges).ok_or_else(|| NoIds::AllTaken { register: register() })
    }

    fn try_claim(&self) -> io::Result<Option<u32>> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.register)?;
        let lock = File::create(self.register.join("lock"))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        for (block, owner) in self.blocks() {
            if !owner.exists() {
                fs::remove_file(self.file(block))?;
            }
        }
        let Some(block) = (0..BLOCKS).find(|block| !self.file(*block).exists()) else {
            return Ok(None);
        };
        fs::write(self.file(block), self.owner.as_os_str().as_bytes())?;
        Ok(Some(block))
    }

    fn blocks(&self) -> impl Iterator<Item = (u32, PathBuf)> {
        (0..BLOCKS).filter_map(|block| {
            let owner = fs::read(self.file(block)).ok()?;
            Some((block, PathBuf::from(std::ffi::OsString::from_vec(owner))))
        })
    }

    fn file(&self, block: u32) -> PathBuf {
        self.register.join(block.to_string())
    }
}

fn ranges(block: u32) -> Range<u32> {
    block * SIZE..(block + 1) * SIZE
}
