//! Removes old builds of images, by the operator's policy, and never what a sandbox on this host lives on.

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use bellglass_sandbox::image::{ImageInfo, ImageStore};
use bellglass_sandbox::namespace::images_in_use;

/// How often old builds are looked for.
const EVERY: Duration = Duration::from_secs(600);

/// Removes all replaced builds but the `keep` newest of each image. Says which.
pub(crate) fn prune(store: &ImageStore, keep: usize) -> anyhow::Result<Vec<ImageInfo>> {
    store.prune(keep, || in_use(store))
}

fn in_use(store: &ImageStore) -> anyhow::Result<HashSet<PathBuf>> {
    let mut in_use = HashSet::new();
    for folder in store.known_folders() {
        let place = folder.display();
        let found = images_in_use(&folder).with_context(|| format!("cannot read {place}"))?;
        in_use.extend(found.with_context(|| {
            format!("a sandbox in {place} does not say yet which image it lives on; try again")
        })?);
    }
    Ok(in_use)
}

/// The same again and again.
pub(crate) async fn keep_pruning(store: ImageStore, keep: usize) {
    loop {
        let at = store.clone();
        match tokio::task::spawn_blocking(move || prune(&at, keep)).await {
            Ok(Ok(removed)) => {
                for image in removed {
                    tracing::info!(image.name, hash = image.hash.short(), "removed an old build");
                }
            }
            Ok(Err(error)) => tracing::warn!("cannot remove old builds of images: {error:#}"),
            Err(error) => tracing::error!(%error, "the removal of old builds ended early"),
        }
        tokio::time::sleep(EVERY).await;
    }
}
