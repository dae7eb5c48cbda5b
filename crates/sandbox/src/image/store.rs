//! The directory where images are kept. Each build has a directory of its own,
//! `NAME-HASH/{rootfs, manifest.json}`, and the link `NAME` points to the current one.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

use super::error::ImageError;
use super::identity::{Architecture, ImageHash};
use super::inventory::InstalledPackage;
use super::recipe::Recipe;
use super::workbench::{BuildLock, Workbench};

/// All images of this host's user.
#[derive(Clone, Debug)]
pub struct ImageStore {
    directory: PathBuf,
}

/// One build of an image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImageInfo {
    pub name: String,
    pub hash: ImageHash,
    pub architecture: Architecture,
    pub rootfs: PathBuf,
    /// Whether new sandboxes that name the image get this build.
    pub current: bool,
    pub built_at: Timestamp,
    pub size_bytes: u64,
    /// How many packages are installed, of all kinds.
    pub packages: usize,
    pub recipe: Recipe,
}

/// One build of an image with everything that is in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImageDetails {
    #[serde(flatten)]
    pub info: ImageInfo,
    pub installed: Vec<InstalledPackage>,
}

/// What is written beside a root filesystem.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub name: String,
    pub hash: ImageHash,
    pub architecture: Architecture,
    pub built_at: Timestamp,
    pub size_bytes: u64,
    pub recipe: Recipe,
    pub installed: Vec<InstalledPackage>,
}

impl ImageStore {
    /// The directory need not exist before the first build.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Every build, the newest first.
    pub fn list(&self) -> Vec<ImageInfo> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let builds = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let names = builds.filter_map(|entry| entry.file_name().into_string().ok());
        let mut images: Vec<ImageInfo> =
            names.filter_map(|name| self.inspect(&name)).map(|details| details.info).collect();
        images.sort_by_key(|image| std::cmp::Reverse(image.built_at));
        images
    }

    /// The current build of that name, or exactly the build of a name with its hash
    /// (`base-0123456789ab`).
    pub fn find(&self, name: &str) -> Option<ImageInfo> {
        self.inspect(name).map(|details| details.info)
    }

    /// The root file system of that image. Cheap: it is asked for every job.
    pub fn rootfs(&self, name: &str) -> Option<PathBuf> {
        let entry = self.entry(name)?;
        // Not through the link, which may point elsewhere tomorrow.
        let build = fs::read_link(&entry).map_or(entry, |build| self.directory.join(build));
        // Published builds are complete, so that it is there is all there is to know.
        let rootfs = build.join("rootfs");
        rootfs.is_dir().then_some(rootfs)
    }

    /// Where the image of that name is, if there is one. Names come from clients; they name an
    /// entry of the directory and nothing else. Builds that are not complete start with a dot.
    fn entry(&self, name: &str) -> Option<PathBuf> {
        let is_plain = !name.is_empty() && !name.starts_with('.') && !name.contains('/');
        is_plain.then(|| self.directory.join(name))
    }

    /// The same with the list of packages.
    pub fn inspect(&self, name: &str) -> Option<ImageDetails> {
        match self.read_manifest(&self.entry(name)?) {
            Ok(manifest) => Some(self.details(manifest?)),
            Err(error) => {
                tracing::warn!(%error, "an image was left out");
                None
            }
        }
    }

    /// Removes what builds left behind that could not clean up after themselves. Does nothing
    /// while a build is under way. Says how many there were.
    pub fn sweep(&self) -> Result<usize, ImageError> {
        match BuildLock::try_acquire(&self.directory)? {
            Some(lock) => Workbench::remove_leftovers(&self.directory, &lock),
            None => Ok(0),
        }
    }

    pub(super) fn find_build(&self, name: &str, hash: &ImageHash) -> Option<ImageInfo> {
        self.find(&build_name(name, hash)).filter(|image| image.hash == *hash)
    }

    /// Takes a complete image (`rootfs` and its manifest) from a workbench into the store. Before
    /// the return nobody sees it, afterwards all of it.
    pub(super) fn publish(
        &self,
        image: &Path,
        manifest: &Manifest,
        workbench: &Workbench,
    ) -> Result<(), ImageError> {
        let path = image.join("manifest.json");
        let text = serde_json::to_string_pretty(manifest)
            .map_err(|source| ImageError::BadManifest { path: path.clone(), source })?;
        fs::write(&path, text).map_err(ImageError::io("write", &path))?;
        // The name must not reach the disk before what it names.
        fs::File::open(image)
            .and_then(|folder| Ok(rustix::fs::syncfs(folder)?))
            .map_err(ImageError::io("write to disk", image))?;
        let place = self.directory.join(build_name(&manifest.name, &manifest.hash));
        let flags = if place.exists() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
        renameat_with(CWD, image, CWD, &place, flags)
            .map_err(|error| ImageError::io("publish", &place)(error.into()))?;
        self.make_current(&manifest.name, &manifest.hash, workbench)
    }

    /// Points the image's name to a build.
    pub(super) fn make_current(
        &self,
        name: &str,
        hash: &ImageHash,
        workbench: &Workbench,
    ) -> Result<(), ImageError> {
        let link = workbench.path().join("current");
        let place = self.directory.join(name);
        symlink(build_name(name, hash), &link)
            .and_then(|()| fs::rename(&link, &place))
            .map_err(ImageError::io("link", &place))
    }

    fn read_manifest(&self, build: &Path) -> Result<Option<Manifest>, ImageError> {
        let path = build.join("manifest.json");
        let Ok(text) = fs::read_to_string(&path) else { return Ok(None) };
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|source| ImageError::BadManifest { path, source })
    }

    fn details(&self, manifest: Manifest) -> ImageDetails {
        let build = build_name(&manifest.name, &manifest.hash);
        let current = fs::read_link(self.directory.join(&manifest.name));
        let info = ImageInfo {
            current: current.is_ok_and(|target| target == Path::new(&build)),
            // Not through the link, which may point elsewhere tomorrow.
            rootfs: self.directory.join(build).join("rootfs"),
            name: manifest.name,
            hash: manifest.hash,
            architecture: manifest.architecture,
            built_at: manifest.built_at,
            size_bytes: manifest.size_bytes,
            packages: manifest.installed.len(),
            recipe: manifest.recipe,
        };
        ImageDetails { info, installed: manifest.installed }
    }
}

pub(super) fn build_name(name: &str, hash: &ImageHash) -> String {
    format!("{name}-{}", hash.short())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Puts a build of a recipe into a store, with next to nothing in it.
    pub(in crate::image) fn publish(store: &ImageStore, recipe: &Recipe) -> ImageHash {
        let architecture = Architecture::of_host().unwrap();
        fs::create_dir_all(store.directory()).unwrap();
        let lock = BuildLock::try_acquire(store.directory()).unwrap().unwrap();
        let workbench = Workbench::set_up(store.directory(), &lock).unwrap();
        let image = workbench.path().join("image");
        fs::create_dir_all(image.join("rootfs/bin")).unwrap();
        let hash = ImageHash::of(recipe, architecture);
        let manifest = Manifest {
            name: recipe.name.clone(),
            hash: hash.clone(),
            architecture,
            built_at: Timestamp::now(),
            size_bytes: 5,
            recipe: recipe.clone(),
            installed: Vec::new(),
        };
        store.publish(&image, &manifest, &workbench).unwrap();
        hash
    }

    #[test]
    fn a_newer_build_of_a_name_takes_its_place_and_the_older_one_stays() {
        let parent = tempfile::tempdir().unwrap();
        let store = ImageStore::new(parent.path().join("images"));
        assert!(store.list().is_empty() && store.find("base").is_none());

        let mut recipe = Recipe::base();
        let first = publish(&store, &recipe);
        recipe.debian.packages.push("cowsay".to_owned());
        let second = publish(&store, &recipe);
        // The same build again replaces itself.
        assert_eq!(publish(&store, &recipe), second);

        let current = store.find("base").unwrap();
        assert_eq!((&current.hash, current.current), (&second, true));
        assert!(current.rootfs.join("bin").is_dir());
        assert_eq!(store.list().len(), 2);
        let older = store.find_build("base", &first).unwrap();
        assert!(!older.current && older.rootfs != current.rootfs);
        let names: Vec<_> = fs::read_dir(store.directory())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with(".building"))
            .collect();
        assert!(names.is_empty(), "{names:?}");
    }

    #[test]
    fn names_cannot_lead_out_of_the_directory_and_bad_manifests_are_left_out() {
        let parent = tempfile::tempdir().unwrap();
        let store = ImageStore::new(parent.path().join("images"));
        publish(&store, &Recipe::base());
        for name in ["", ".", "..", "../images/base", "/etc", ".building-x"] {
            assert!(store.find(name).is_none(), "{name}");
        }
        fs::create_dir(store.directory().join("odd-0123456789ab")).unwrap();
        fs::write(store.directory().join("odd-0123456789ab/manifest.json"), "{}").unwrap();
        assert_eq!(store.list().len(), 1);
    }
}
