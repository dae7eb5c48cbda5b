//! What is installed in an image, read from the files that package managers leave in it.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Where a package came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PackageSource {
    Debian,
    Python,
    Npm,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InstalledPackage {
    pub source: PackageSource,
    pub name: String,
    pub version: String,
}

/// All packages of an image, in order.
pub(super) fn installed_packages(rootfs: &Path) -> Vec<InstalledPackage> {
    let status = fs::read_to_string(rootfs.join("var/lib/dpkg/status")).unwrap_or_default();
    let mut packages = debian_packages(&status);
    let libraries = rootfs.join("usr/local/lib");
    for library in names_in(&libraries).iter().filter(|name| name.starts_with("python3")) {
        let folder = libraries.join(library).join("dist-packages");
        packages.extend(names_in(&folder).iter().filter_map(|name| python_package(name)));
    }
    packages.extend(npm_packages(&libraries.join("node_modules")));
    packages.sort();
    packages
}

/// Reads dpkg's list, where each paragraph is one package.
fn debian_packages(status: &str) -> Vec<InstalledPackage> {
    let package = |paragraph: &str| {
        let field = |name| paragraph.lines().find_map(|line| line.strip_prefix(name));
        Some(InstalledPackage {
            source: PackageSource::Debian,
            name: field("Package: ")?.to_owned(),
            version: field("Version: ")?.to_owned(),
        })
    };
    status.split("\n\n").filter_map(package).collect()
}

/// The name of the folder that describes an installed Python package has all that is needed.
fn python_package(folder: &str) -> Option<InstalledPackage> {
    let (name, version) = folder.strip_suffix(".dist-info")?.split_once('-')?;
    Some(InstalledPackage {
        source: PackageSource::Python,
        name: name.replace('_', "-").to_lowercase(),
        version: version.to_owned(),
    })
}

/// Packages that are installed globally, those of a scope such as `@deno/…` included.
fn npm_packages(node_modules: &Path) -> Vec<InstalledPackage> {
    let (scopes, mut names): (Vec<_>, Vec<_>) =
        names_in(node_modules).into_iter().partition(|name| name.starts_with('@'));
    for scope in scopes {
        let inner = names_in(&node_modules.join(&scope));
        names.extend(inner.into_iter().map(|name| format!("{scope}/{name}")));
    }
    let package = |name: &String| {
        let text = fs::read_to_string(node_modules.join(name).join("package.json")).ok()?;
        let description: serde_json::Value = serde_json::from_str(&text).ok()?;
        let version = description.get("version")?.as_str()?.to_owned();
        Some(InstalledPackage { source: PackageSource::Npm, name: name.clone(), version })
    };
    names.iter().filter_map(package).collect()
}

/// A folder that is not there holds nothing.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_of_all_three_kinds_are_found() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(
            "var/lib/dpkg/status",
            "Package: git\nStatus: install ok installed\nVersion: 1:2.39\n\n\
             Package: bash\nVersion: 5.2\nDescription: a shell\n Version: no\n",
        );
        write("usr/local/lib/python3.11/dist-packages/charset_normalizer-3.5.dist-info/x", "");
        write("usr/local/lib/python3.11/dist-packages/pytest/x.py", "");
        write("usr/local/lib/node_modules/npm/package.json", r#"{"version":"11.1.0"}"#);
        write("usr/local/lib/node_modules/@deno/linux/package.json", r#"{"version":"2.8.1"}"#);
        let found: Vec<String> = installed_packages(root.path())
            .into_iter()
            .map(|p| format!("{:?} {} {}", p.source, p.name, p.version))
            .collect();
        assert_eq!(
            found,
            [
                "Debian bash 5.2",
                "Debian git 1:2.39",
                "Python charset-normalizer 3.5",
                "Npm @deno/linux 2.8.1",
                "Npm npm 11.1.0",
            ]
        );
    }
}
