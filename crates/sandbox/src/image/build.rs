//! Builds an image from its recipe: the order of things, and nothing of how each is done.

use jiff::Timestamp;

use super::enclosure::Enclosure;
use super::error::ImageError;
use super::finish::{Staging, finish};
use super::identity::{Architecture, ImageHash};
use super::inventory::installed_packages;
use super::progress::{Reporter, StageBoard};
use super::recipe::Recipe;
use super::store::{ImageInfo, ImageStore, Manifest};
use super::workbench::{BuildLock, Workbench};
use super::{debian, npm, python};

/// Whether an image that is already there will do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    #[default]
    Use,
    Rebuild,
}

#[derive(Clone, Debug, Default)]
pub struct BuildOptions {
    pub cache: Cache,
    /// More environment for the pip and npm of the host, for example to name another registry.
    pub environment: Vec<(String, String)>,
}

/// Builds an image, or finds it already built. Dropping the future ends every process of the
/// build and removes what it made so far.
pub async fn build(
    recipe: &Recipe,
    store: &ImageStore,
    options: &BuildOptions,
    reporter: &dyn Reporter,
) -> Result<ImageInfo, ImageError> {
    let architecture = Architecture::of_host().ok_or(ImageError::UnsupportedArchitecture)?;
    let hash = ImageHash::of(recipe, architecture);
    let cached = || match options.cache {
        Cache::Use => store.find_build(&recipe.name, &hash),
        Cache::Rebuild => None,
    };
    if let Some(image) = cached().filter(|image| image.current) {
        // What a killed build left need not wait for the next one that has something to do. Images may lie
        // in a folder that somebody else keeps; then so does this.
        if let Err(error) = store.sweep() {
            tracing::debug!(%error, "what builds left was not looked for");
        }
        return Ok(image);
    }
    let enclosure = Enclosure::for_this_process()?;
    let lock = BuildLock::acquire(store.directory(), reporter).await?;
    Workbench::remove_leftovers(store.directory(), &lock)?;
    let workbench = Workbench::set_up(store.directory(), &lock)?;
    // Another build may have made it while this one waited for the lock.
    if let Some(image) = cached() {
        store.make_current(&recipe.name, &hash, &workbench)?;
        return Ok(ImageInfo { current: true, ..image });
    }

    let image = workbench.path().join("image");
    let rootfs = image.join("rootfs");
    std::fs::create_dir(&image).map_err(ImageError::io("create", &image))?;
    let staging = Staging::prepare(recipe, architecture, workbench.path())?;
    let npm_prefix = staging.npm_prefix();
    let board = StageBoard::new(reporter);
    let environment = &options.environment;
    // Fetching waits for the network while unpacking needs the processor.
    tokio::try_join!(
        debian::install(recipe, architecture, enclosure, &rootfs, &board),
        python::fetch(recipe.python.as_ref(), architecture, environment, &staging.wheels, &board),
        npm::fetch(&recipe.npm, architecture, environment, &npm_prefix, &board),
    )?;
    let size_bytes = finish(recipe, enclosure, &staging, &rootfs, &board).await?;

    let manifest = Manifest {
        name: recipe.name.clone(),
        hash: hash.clone(),
        architecture,
        built_at: Timestamp::now(),
        size_bytes,
        recipe: recipe.clone(),
        installed: installed_packages(&rootfs),
    };
    store.publish(&image, &manifest, &workbench)?;
    store.find_build(&recipe.name, &hash).ok_or_else(|| {
        ImageError::io("find", store.directory())(std::io::ErrorKind::NotFound.into())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::progress::Silent;
    use crate::image::store::tests::publish;

    #[tokio::test]
    async fn an_image_that_is_there_is_found_and_what_killed_builds_left_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let store = ImageStore::new(parent.path().join("images"));
        let recipe = Recipe::base();
        let hash = publish(&store, &recipe);
        let leftover = store.directory().join(".building-1-abc");
        std::fs::create_dir_all(leftover.join("image/rootfs")).unwrap();
        let found = build(&recipe, &store, &BuildOptions::default(), &Silent).await.unwrap();
        assert_eq!((found.hash, found.current), (hash, true));
        assert!(!leftover.exists());
    }
}
