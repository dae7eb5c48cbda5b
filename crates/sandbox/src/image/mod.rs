//! Images: the root filesystems that sandboxes start from, made from a recipe and kept in a store.
//!
//! An image is known by the hash of everything that decides its content, so the same recipe is
//! built once. This module must not know how a sandbox uses a root filesystem.

mod build;
mod debian;
mod enclosure;
mod error;
mod extension;
mod finish;
mod identity;
mod inventory;
mod npm;
mod program;
mod progress;
mod python;
mod recipe;
mod retention;
mod store;
mod workbench;

pub(crate) use debian::{ASK_FOR_TARGETS, debian_sources};

pub use build::{BuildOptions, Cache, build};
pub use error::ImageError;
pub use identity::{Architecture, ImageHash};
pub use inventory::{InstalledPackage, PackageSource};
pub use progress::{Progress, Reporter, Silent, Stage};
pub use recipe::{DebianPart, NpmPart, PythonPart, Recipe, RecipeError, SandboxUser};
pub use store::{ImageDetails, ImageInfo, ImageStore};
