//! The namespaces in which an image is put together: root over the image's files without being
//! root of the host, and mounts and processes that vanish with the command that made them.

use std::ffi::OsStr;
use std::path::Path;

use tokio::process::Command;

use super::error::ImageError;
use super::program::host_command;

/// Whether commands inside may reach the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    OfTheHost,
    None,
}

/// Plain users often lack the directories of system programs.
const WITH_SYSTEM_PROGRAMS: &str = "PATH=$PATH:/usr/sbin:/sbin;";

/// How this process becomes root over an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enclosure {
    /// The process already is root.
    Root,
    /// A user namespace: the user itself is root there, subordinate ids are everybody else.
    UserNamespace,
}

impl Enclosure {
    /// The right one for this process, or what is missing for it.
    pub(super) fn for_this_process() -> Result<Self, ImageError> {
        if rustix::process::geteuid().is_root() {
            return Ok(Self::Root);
        }
        for program in ["newuidmap", "newgidmap"] {
            require_program(program, "uidmap")?;
        }
        let user = user_name();
        for file in ["/etc/subuid", "/etc/subgid"] {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            if !has_subordinate_ids(&text, &user, rustix::process::geteuid().as_raw()) {
                return Err(ImageError::NoSubordinateIds { user, file });
            }
        }
        Ok(Self::UserNamespace)
    }

    /// A command that runs as root over the image's files. All it mounts is seen by nobody else,
    /// and every process it starts ends when it does.
    pub(super) fn command(self, network: Network, program: impl AsRef<OsStr>) -> Command {
        let mut command = host_command("unshare");
        command.args(self.unshare_options());
        if network == Network::None {
            command.arg("--net");
        }
        let script = format!("umask 022; {WITH_SYSTEM_PROGRAMS} exec \"$0\" \"$@\"");
        command.args(["--", "sh", "-c", &script]).arg(program);
        command
    }

    /// Removes a tree at once. Files of subordinate ids cannot be removed by their owner's owner.
    pub(super) fn remove_tree(path: &Path) -> std::io::Result<()> {
        match std::fs::remove_dir_all(path) {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
            done => return done,
        }
        std::process::Command::new("unshare")
            .args(Self::UserNamespace.unshare_options())
            .args(["--", "rm", "-rf", "--"])
            .arg(path)
            .output()?;
        if path.exists() { Err(std::io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
    }

    fn unshare_options(self) -> &'static [&'static str] {
        const NAMESPACES: &[&str] = &["--mount", "--pid", "--fork", "--kill-child"];
        const WITH_USERS: &[&str] = &[
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--user",
            "--map-root-user",
            "--map-auto",
            "--setuid=0",
            "--setgid=0",
        ];
        match self {
            Self::Root => NAMESPACES,
            Self::UserNamespace => WITH_USERS,
        }
    }
}

/// Looks for a program on the search path and says which Debian package would bring it.
pub(super) fn require_program(
    program: &'static str,
    package: &'static str,
) -> Result<(), ImageError> {
    let found = std::process::Command::new("sh")
        .args(["-c", &format!("{WITH_SYSTEM_PROGRAMS} command -v -- \"$0\""), program])
        .output()
        .is_ok_and(|output| output.status.success());
    if found { Ok(()) } else { Err(ImageError::MissingProgram { program, package }) }
}

fn user_name() -> String {
    let id = rustix::process::geteuid().as_raw().to_string();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == id).then(|| name.to_owned())
    });
    name.unwrap_or(id)
}

/// Whether a file such as /etc/subuid gives a user enough ids for an image, which has up to 65534.
fn has_subordinate_ids(text: &str, user: &str, id: u32) -> bool {
    let id = id.to_string();
    text.lines().any(|line| {
        let mut fields = line.split(':');
        let owner = fields.next().unwrap_or_default();
        let count = fields.nth(1).and_then(|count| count.trim().parse::<u64>().ok());
        (owner == user || owner == id) && count.is_some_and(|count| count >= 65_535)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_ids_are_found_by_name_or_number_and_must_suffice() {
        let text = "ann:100000:65536\n1001:165536:65536\nfew:1:1000\n";
        assert!(has_subordinate_ids(text, "ann", 1000));
        assert!(has_subordinate_ids(text, "bob", 1001));
        assert!(!has_subordinate_ids(text, "few", 1002));
        assert!(!has_subordinate_ids(text, "nobody", 65534));
    }

    #[test]
    fn a_program_that_is_not_there_is_named_with_its_package() {
        require_program("sh", "dash").unwrap();
        let error = require_program("no-such-program", "some-package").unwrap_err().to_string();
        assert!(error.contains("`no-such-program`") && error.contains("some-package"), "{error}");
    }
}
