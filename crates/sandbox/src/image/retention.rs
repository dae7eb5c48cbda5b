//! Removes builds that others have replaced. What is in use is for others to say: the store only knows
//! which folders hold sandboxes that may live on its images.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::enclosure::Enclosure;
use super::error::ImageError;
use super::store::{ImageInfo, ImageStore, build_name};
use super::workbench::{BuildLock, Workbench};

/// Where the folders of sandboxes are written down, in the store.
const USERS: &str = ".used-by";

/// A build that was replaced a moment ago may be what a sandbox is just being started from.
const JUST_REPLACED: Duration = Duration::from_secs(60);

impl ImageStore {
    /// Makes a folder known whose sandboxes live on images of this store.
    pub fn make_known(&self, sandboxes: &Path) -> io::Result<()> {
        let sandboxes = std::path::absolute(sandboxes)?;
        let mut hasher = DefaultHasher::new();
        sandboxes.hash(&mut hasher);
        let folder = self.directory().join(USERS);
        let entry = folder.join(format!("{:016x}", hasher.finish()));
        if !entry.exists() {
            fs::create_dir_all(&folder)?;
            std::os::unix::fs::symlink(&sandboxes, &entry)?;
        }
        Ok(())
    }

    /// The folders that were made known and are still there.
    pub fn known_folders(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.directory().join(USERS)).into_iter().flatten().flatten();
        let known = entries.filter_map(|entry| {
            let folder = fs::read_link(entry.path()).ok()?;
            match fs::symlink_metadata(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let _ = fs::remove_file(entry.path());
                    None
                }
                _ => Some(folder),
            }
        });
        known.collect()
    }

    /// Removes all builds that were replaced but the `keep` newest of each name and those in use, and
    /// says which. What is in use is asked before each: removing one takes a while, in which a sandbox may have
    /// been started from the next. Does nothing while a build is under way.
    pub fn prune<E: From<ImageError>>(
        &self,
        keep: usize,
        in_use: impl Fn() -> Result<HashSet<PathBuf>, E>,
    ) -> Result<Vec<ImageInfo>, E> {
        let mut removed = Vec::new();
        if !self.directory().exists() {
            return Ok(removed);
        }
        let Some(lock) = BuildLock::try_acquire(self.directory())? else { return Ok(removed) };
        let is_in_use = |image: &ImageInfo| {
            let rootfs = real_path(&image.rootfs);
            in_use().map(|used| used.iter().any(|used| real_path(used) == rootfs))
        };
        let mut kept: HashMap<String, usize> = HashMap::new();
        for image in self.list() {
            // Without a current one nobody knows which of them is wanted.
            if image.current || !self.was_replaced(&image.name) {
                continue;
            }
            let kept = kept.entry(image.name.clone()).or_default();
            if *kept < keep || is_in_use(&image)? {
                *kept += 1;
                continue;
            }
            self.remove_build(&image, &lock)?;
            removed.push(image);
        }
        Ok(removed)
    }

    /// Whether the name has a current build, for long enough that nobody starts from the one before.
    fn was_replaced(&self, name: &str) -> bool {
        let link = fs::symlink_metadata(self.directory().join(name));
        let since = link.ok().and_then(|link| link.modified().ok()?.elapsed().ok());
        self.rootfs(name).is_some() && since.is_some_and(|since| since > JUST_REPLACED)
    }

    /// Gone for everybody at once: it becomes a leftover, which whoever comes next removes if we cannot.
    fn remove_build(&self, image: &ImageInfo, lock: &BuildLock) -> Result<(), ImageError> {
        let place = self.directory().join(build_name(&image.name, &image.hash));
        let workbench = Workbench::set_up(self.directory(), lock)?;
        let away = workbench.path().join("image");
        fs::rename(&place, &away).map_err(ImageError::io("move away", &place))?;
        Enclosure::remove_tree(&away).map_err(ImageError::io("remove", &away))
    }
}

/// Two users of one store may reach it by different links.
fn real_path(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::recipe::Recipe;
    use super::super::store::tests::publish;
    use super::*;
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

    /// Four builds of one name, the newest current for an hour; the names of their folders, oldest first.
    fn store_with_builds() -> (tempfile::TempDir, ImageStore, Vec<String>) {
        let parent = tempfile::tempdir().unwrap();
        let store = ImageStore::new(parent.path().join("images"));
        let mut recipe = Recipe::base();
        let mut builds = Vec::new();
        for package in ["a", "b", "c", "d"] {
            recipe.debian.packages.push(package.into());
            builds.push(build_name("base", &publish(&store, &recipe)));
        }
        let hour_ago = jiff::Timestamp::now().as_second() - 3600;
        let then = Timespec { tv_sec: hour_ago, tv_nsec: 0 };
        let times = Timestamps { last_access: then, last_modification: then };
        let link = store.directory().join("base");
        utimensat(CWD, &link, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        (parent, store, builds)
    }

    fn prune(store: &ImageStore, keep: usize, used: &HashSet<PathBuf>) -> Vec<ImageInfo> {
        store.prune(keep, || Ok::<_, ImageError>(used.clone())).unwrap()
    }

    fn left(store: &ImageStore) -> HashSet<String> {
        store.list().iter().map(|image| build_name(&image.name, &image.hash)).collect()
    }

    fn names(builds: &[&String]) -> HashSet<String> {
        builds.iter().map(|build| (*build).clone()).collect()
    }

    #[test]
    fn what_is_current_or_in_use_or_to_be_kept_stays() {
        let (_parent, store, builds) = store_with_builds();
        let used = HashSet::from([store.rootfs(&builds[0]).unwrap()]);
        let removed = prune(&store, 1, &used);
        assert_eq!(removed.len(), 1);
        assert_eq!(left(&store), names(&[&builds[0], &builds[2], &builds[3]]));
        assert_eq!(prune(&store, 0, &used).len(), 1);
        assert_eq!(left(&store), names(&[&builds[0], &builds[3]]));
        assert_eq!(prune(&store, 0, &HashSet::new()).len(), 1);
        assert_eq!(left(&store), names(&[&builds[3]]));
        assert!(store.rootfs("base").is_some());
        let entries = fs::read_dir(store.directory()).unwrap();
        let rest: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(rest.len(), 3, "the build, its name and the lock: {rest:?}");
    }

    /// As when a job that names a build by its hash is started while another build is removed.
    #[test]
    fn what_comes_into_use_meanwhile_stays() {
        let (_parent, store, builds) = store_with_builds();
        let last = store.rootfs(&builds[0]).unwrap();
        let used = || {
            let is_first = store.list().len() == builds.len();
            Ok::<_, ImageError>(if is_first { HashSet::new() } else { [last.clone()].into() })
        };
        assert_eq!(store.prune(0, used).unwrap().len(), 2);
        assert_eq!(left(&store), names(&[&builds[0], &builds[3]]));
    }

    #[test]
    fn what_is_used_by_another_way_to_the_store_is_used() {
        let (parent, store, builds) = store_with_builds();
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(store.directory(), &link).unwrap();
        let used = HashSet::from([ImageStore::new(link).rootfs(&builds[0]).unwrap()]);
        prune(&store, 0, &used);
        assert_eq!(left(&store), names(&[&builds[0], &builds[3]]));
    }

    #[test]
    fn nothing_is_removed_during_a_build_or_just_after_one_or_without_a_current_one() {
        let (_parent, store, builds) = store_with_builds();
        let lock = BuildLock::try_acquire(store.directory()).unwrap();
        assert!(prune(&store, 0, &HashSet::new()).is_empty());
        drop(lock);
        let link = store.directory().join("base");
        fs::remove_file(&link).unwrap();
        assert!(prune(&store, 0, &HashSet::new()).is_empty());
        std::os::unix::fs::symlink(&builds[3], &link).unwrap();
        assert!(prune(&store, 0, &HashSet::new()).is_empty());
        assert_eq!(left(&store).len(), 4);
    }

    #[test]
    fn folders_of_sandboxes_are_known_until_they_are_gone() {
        let (parent, store, _) = store_with_builds();
        let folder = parent.path().join("data/sandboxes");
        fs::create_dir_all(&folder).unwrap();
        store.make_known(&folder).unwrap();
        store.make_known(&folder).unwrap();
        assert_eq!(store.known_folders(), std::slice::from_ref(&folder));
        fs::remove_dir(&folder).unwrap();
        assert!(store.known_folders().is_empty());
        assert_eq!(fs::read_dir(store.directory().join(USERS)).unwrap().count(), 0);
    }
}
