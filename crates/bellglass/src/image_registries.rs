//! Where the package tools inside an image look by themselves, read from their own files.
//!
//! It matters where this host does not have such a tool and so cannot be asked. Nothing of the image is
//! run for it. What is not found is not guessed.

use std::fs;
use std::path::{Path, PathBuf};

/// The addresses that the tools of one image come with.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ImageRegistries {
    /// pip's index, and where that has its files.
    pub(crate) python: Option<String>,
    pub(crate) npm: Option<String>,
}

impl ImageRegistries {
    pub(crate) fn read(rootfs: &Path) -> Self {
        let text = |path: PathBuf| fs::read_to_string(path).ok();
        Self {
            python: python_folders(rootfs)
                .map(|folder| folder.join("pip/_internal/models/index.py"))
                .find_map(|file| pip_defaults(&text(file)?)),
            npm: node_folders(rootfs)
                .map(|folder| folder.join("@npmcli/config/lib/definitions/definitions.js"))
                .find_map(|file| npm_default(&text(file)?)),
        }
    }
}

/// Where Python's packages may be, for all users.
fn python_folders(rootfs: &Path) -> impl Iterator<Item = PathBuf> {
    let homes = ["usr/local/lib", "usr/lib"].map(|folder| rootfs.join(folder));
    let versions = homes.into_iter().flat_map(|home| fs::read_dir(home).into_iter().flatten());
    let versions = versions.flatten().map(|entry| entry.path()).filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python3"))
    });
    versions.flat_map(|version| ["dist-packages", "site-packages"].map(|it| version.join(it)))
}

/// Where npm keeps what it is made of: beside itself, or where Debian puts it.
fn node_folders(rootfs: &Path) -> impl Iterator<Item = PathBuf> {
    let folders = [
        "usr/local/lib/node_modules/npm/node_modules",
        "usr/lib/node_modules/npm/node_modules",
        "usr/share/nodejs",
    ];
    folders.map(|folder| rootfs.join(folder)).into_iter()
}

/// `PyPI = PackageIndex("https://…", file_storage_domain="…")`
fn pip_defaults(code: &str) -> Option<String> {
    let (_, call) = code.split_once("\nPyPI = PackageIndex(")?;
    let (arguments, _) = call.split_once(')')?;
    let mut texts = arguments.split('"').skip(1).step_by(2);
    let index = texts.next().filter(|index| index.starts_with("http"))?;
    let files = texts.next().map(|host| format!(" https://{host}/")).unwrap_or_default();
    Some(format!("{index}{files}"))
}

/// `registry: new Definition('registry', { default: 'https://…',`
fn npm_default(code: &str) -> Option<String> {
    let (_, definition) = code.split_once("('registry', {")?;
    let (_, value) = definition.split_once("default: '")?;
    let (address, _) = value.split_once('\'')?;
    address.starts_with("http").then(|| address.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_own_files_say_where_they_look() {
        let image = tempfile::tempdir().unwrap();
        let rootfs = image.path();
        assert_eq!(ImageRegistries::read(rootfs), ImageRegistries::default());
        let put = |path: &str, text: &str| {
            let path = rootfs.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put(
            "usr/lib/python3/dist-packages/pip/_internal/models/index.py",
            "class PackageIndex:\n    ...\n\n\
             PyPI = PackageIndex(\"https://python.example/\", file_storage_domain=\"files.example\")\n\
             TestPyPI = PackageIndex(\n    \"https://test.example/\", file_storage_domain=\"x.example\"\n)\n",
        );
        put(
            "usr/share/nodejs/@npmcli/config/lib/definitions/definitions.js",
            "  'replace-registry-host': new Definition('replace-registry-host', {\n    default: 'never',\n\
             registry: new Definition('registry', {\n    default: 'https://node.example/',\n    type: url,\n",
        );
        let found = ImageRegistries::read(rootfs);
        assert_eq!(found.python.as_deref(), Some("https://python.example/ https://files.example/"));
        assert_eq!(found.npm.as_deref(), Some("https://node.example/"));
        assert_eq!(npm_default("registry is none"), None);
        assert_eq!(pip_defaults("\nPyPI = PackageIndex(other)"), None);
    }
}
