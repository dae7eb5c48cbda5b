//! The recipe of an image: what it holds, read from TOML and checked before anything is fetched.
//!
//! Plain data. Knows neither how packages are fetched nor where an image is kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::extension::Extension;

const BASE: &str = include_str!("../../../../image/base.toml");
const DESKTOP: &str = include_str!("../../../../image/desktop.toml");

/// What an image is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// What jobs call the image.
    pub name: String,
    /// The Debian suite.
    pub suite: String,
    pub debian: DebianPart,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<PythonPart>,
    #[serde(default)]
    pub npm: NpmPart,
    /// Symbolic links: where each one lies, and what it points to.
    #[serde(default)]
    pub links: BTreeMap<String, String>,
    /// Small text files and their content.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    pub user: SandboxUser,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DebianPart {
    pub packages: Vec<String>,
    /// Globs of paths that are not unpacked.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Replaces the mirror that the host's apt is configured for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PythonPart {
    /// The suite's Python, such as `3.11`; wheels are chosen for it, whatever the host runs.
    pub version: String,
    #[serde(default)]
    pub packages: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NpmPart {
    /// `{arch}` stands for npm's name of the architecture.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Paths below `node_modules` that are left out.
    #[serde(default)]
    pub remove: Vec<String>,
}

/// Who runs things inside the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxUser {
    pub name: String,
    /// The number of both the user and its group.
    pub id: u32,
    pub home: String,
    pub shell: String,
}

/// Why a recipe cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecipeError {
    #[error("{file}:{line}: {message}")]
    Syntax { file: String, line: usize, message: String },
    #[error("{file}: `{key}` has the value {value:?}, but it must be {rule}")]
    Value { file: String, key: &'static str, value: String, rule: &'static str },
}

impl Recipe {
    /// The names of the recipes that are built into the program.
    pub const NAMES: [&str; 2] = ["base", "desktop"];

    /// The recipe of the image that jobs start from by default.
    pub fn base() -> Self {
        Self::embedded(BASE, "image/base.toml")
    }

    /// A recipe that is built into the program, by its name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "base" => Some(Self::base()),
            "desktop" => Some(Self::embedded(DESKTOP, "image/desktop.toml")),
            _ => None,
        }
    }

    fn embedded(text: &str, file: &str) -> Self {
        match Self::parse(text, file) {
            Ok(recipe) => recipe,
            Err(error) => unreachable!("a test keeps the embedded recipes valid: {error}"),
        }
    }

    /// Reads a recipe; `file` is only used to say where an error is.
    pub fn parse(text: &str, file: &str) -> Result<Self, RecipeError> {
        let syntax = |error: toml::de::Error| {
            let offset = error.span().map_or(0, |span| span.start).min(text.len());
            RecipeError::Syntax {
                file: file.to_owned(),
                line: 1 + text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count(),
                message: error.message().to_owned(),
            }
        };
        let is_extension =
            toml::from_str::<toml::Table>(text).is_ok_and(|table| table.contains_key("extends"));
        let recipe: Self = if is_extension {
            let extension: Extension = toml::from_str(text).map_err(syntax)?;
            let base = extension.extends.clone();
            // An extension of an extension would be hard to read, and of itself without an end.
            match base.as_str() {
                "base" => extension.onto(Self::base()),
                _ => {
                    let (file, rule) = (file.to_owned(), "the name of a whole recipe: `base`");
                    return Err(RecipeError::Value { file, key: "extends", value: base, rule });
                }
            }
        } else {
            toml::from_str(text).map_err(syntax)?
        };
        recipe.check(file)?;
        Ok(recipe)
    }

    /// Every value becomes an argument of a program that runs with power over the image, so each
    /// one must look like what it claims to be.
    fn check(&self, file: &str) -> Result<(), RecipeError> {
        let refuse = |key, value: &str, rule| {
            Err(RecipeError::Value { file: file.to_owned(), key, value: value.to_owned(), rule })
        };
        let each = |key, values: &[String], rule, accept: fn(&str) -> bool| match values
            .iter()
            .find(|value| !accept(value))
        {
            Some(value) => refuse(key, value, rule),
            None => Ok(()),
        };
        if !is_image_name(&self.name) {
            return refuse("name", &self.name, "lower-case letters, digits and `._-`");
        }
        if !is_word(&self.suite, "-") {
            return refuse("suite", &self.suite, "the name of a Debian suite");
        }
        each("debian.packages", &self.debian.packages, "Debian package names", |name| {
            is_word(name, "+-.")
        })?;
        each("debian.exclude", &self.debian.exclude, "absolute paths", is_absolute)?;
        if let Some(mirror) = &self.debian.mirror
            && (!mirror.contains(":/") || mirror.contains(char::is_whitespace))
        {
            return refuse("debian.mirror", mirror, "an address");
        }
        if let Some(python) = &self.python {
            if !is_word(&python.version, ".") {
                return refuse("python.version", &python.version, "a version such as 3.11");
            }
            each("python.packages", &python.packages, "PyPI requirements", is_requirement)?;
        }
        each("npm.packages", &self.npm.packages, "npm packages", is_requirement)?;
        each("npm.remove", &self.npm.remove, "paths below node_modules", is_inner_path)?;
        for (link, target) in &self.links {
            each("links", std::slice::from_ref(link), "absolute paths", is_absolute)?;
            each("links", std::slice::from_ref(target), "paths", is_requirement)?;
        }
        for path in self.files.keys() {
            each("files", std::slice::from_ref(path), "absolute paths", is_absolute)?;
        }
        let user = &self.user;
        if !is_word(&user.name, "-_") {
            return refuse("user.name", &user.name, "the name of a Unix user");
        }
        if !(1000..60_000).contains(&user.id) {
            return refuse("user.id", &user.id.to_string(), "from 1000 to 59999");
        }
        each("user.home", std::slice::from_ref(&user.home), "an absolute path", is_absolute)?;
        each("user.shell", std::slice::from_ref(&user.shell), "an absolute path", is_absolute)
    }
}

/// Whether an image may have this name. A name never looks like that of a build, which ends in
/// a hash, or like one of the store's own files, which start with a dot.
pub(super) fn is_image_name(name: &str) -> bool {
    let ends_in_hash = name
        .rsplit_once('-')
        .is_some_and(|(_, end)| end.len() == 12 && end.bytes().all(|b| b.is_ascii_hexdigit()));
    is_word(name, "._-") && name.len() <= 64 && !ends_in_hash
}

/// Lower-case letters, digits and some more characters, starting with a letter or a digit.
fn is_word(text: &str, more: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(plain) && text.chars().all(|c| plain(c) || more.contains(c))
}

fn is_absolute(path: &str) -> bool {
    path.strip_prefix('/').is_some_and(is_inner_path)
}

fn is_inner_path(path: &str) -> bool {
    is_requirement(path)
        && !path.starts_with('/')
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// Anything printable that cannot be taken for an option.
fn is_requirement(text: &str) -> bool {
    !text.is_empty() && !text.starts_with('-') && text.chars().all(|c| !c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_recipe_is_valid() {
        let recipe = Recipe::parse(BASE, "base.toml").unwrap();
        assert_eq!((recipe.name.as_str(), recipe.suite.as_str()), ("base", "bookworm"));
        assert!(recipe.npm.packages.iter().any(|package| package.ends_with("glibc@2.8.1")));
        assert_eq!(recipe.user.id, 1000);
    }

    #[test]
    fn the_desktop_is_the_base_and_more() {
        let (base, desktop) = (Recipe::base(), Recipe::named("desktop").unwrap());
        assert_eq!(desktop.name, "desktop");
        assert!(desktop.debian.packages.starts_with(&base.debian.packages));
        assert!(desktop.debian.packages.iter().any(|name| name == "chromium"));
        assert_eq!((&desktop.npm, &desktop.user), (&base.npm, &base.user));
        for name in Recipe::NAMES {
            assert_eq!(Recipe::named(name).unwrap().name, name);
        }
        let error = Recipe::parse("name = \"x\"\nextends = \"desktop\"", "my.toml").unwrap_err();
        assert!(error.to_string().starts_with("my.toml: `extends` has the value"), "{error}");
        let error = Recipe::parse("name = \"x\"\nextends = \"base\"\nsweet = 1", "my.toml");
        assert!(error.unwrap_err().to_string().starts_with("my.toml:3: unknown field"));
    }

    #[test]
    fn an_unknown_key_is_refused_with_file_and_line() {
        for (good, bad, line_of) in [
            ("suite = ", "sweet = \"x\"\nsuite = ", "sweet"),
            ("[python]\n", "[python]\nflavour = 1\n", "flavour"),
            ("[user]\n", "[user]\nsudo = true\n", "sudo"),
        ] {
            let text = BASE.replacen(good, bad, 1);
            let line = 1 + text.lines().position(|line| line.starts_with(line_of)).unwrap();
            let error = Recipe::parse(&text, "my.toml").unwrap_err().to_string();
            assert!(error.starts_with(&format!("my.toml:{line}: unknown field")), "{error}");
        }
    }

    #[test]
    fn broken_toml_names_its_line() {
        let error = Recipe::parse("name = \"x\"\nsuite = \n", "my.toml").unwrap_err().to_string();
        assert!(error.starts_with("my.toml:2: "), "{error}");
    }

    #[test]
    fn values_that_could_be_taken_for_something_else_are_refused() {
        for (good, bad, key) in [
            ("\"base\"", "\"../base\"", "name"),
            ("\"base\"", "\"base-0123456789ab\"", "name"),
            ("\"bookworm\"", "\"book worm\"", "suite"),
            ("\"git\"", "\"git,sl\"", "debian.packages"),
            ("\"git\"", "\"--git\"", "debian.packages"),
            ("\"pytest", "\"--pytest", "python.packages"),
            ("\"npm@", "\"-npm@", "npm.packages"),
            ("\"/usr/share/doc/*\"", "\"/../doc\"", "debian.exclude"),
            ("\"/usr/local/bin/deno\"", "\"/usr/../deno\"", "links"),
            ("\"/etc/pip.conf\"", "\"etc/pip.conf\"", "files"),
            ("id = 1000", "id = 0", "user.id"),
            ("home = \"/home/agent\"", "home = \"/\"", "user.home"),
        ] {
            let error =
                Recipe::parse(&BASE.replacen(good, bad, 1), "my.toml").unwrap_err().to_string();
            assert!(error.starts_with(&format!("my.toml: `{key}` has the value")), "{error}");
        }
    }
}
