//! A recipe that is another one and more: what it adds, and how the two become one.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::recipe::{NpmPart, Recipe};

/// What a recipe with `extends` says. Lists go behind those of the other recipe.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Extension {
    name: String,
    /// The recipe that it builds on, one of those in the program.
    pub(super) extends: String,
    #[serde(default)]
    debian: DebianAddition,
    #[serde(default)]
    python: PythonAddition,
    #[serde(default)]
    npm: NpmPart,
    #[serde(default)]
    links: BTreeMap<String, String>,
    #[serde(default)]
    files: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DebianAddition {
    packages: Vec<String>,
    exclude: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PythonAddition {
    packages: Vec<String>,
}

impl Extension {
    /// The whole recipe.
    pub(super) fn onto(self, mut recipe: Recipe) -> Recipe {
        recipe.name = self.name;
        recipe.debian.packages.extend(self.debian.packages);
        recipe.debian.exclude.extend(self.debian.exclude);
        if let Some(python) = &mut recipe.python {
            python.packages.extend(self.python.packages);
        }
        recipe.npm.packages.extend(self.npm.packages);
        recipe.npm.remove.extend(self.npm.remove);
        recipe.links.extend(self.links);
        recipe.files.extend(self.files);
        recipe
    }
}
