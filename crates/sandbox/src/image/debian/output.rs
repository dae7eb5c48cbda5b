//! Reads progress out of what mmdebstrap and apt print. A pure fold over lines.

use crate::image::progress::{Progress, Stage};

/// Follows one run of mmdebstrap, which installs packages in two rounds: what Debian calls
/// essential, then all others. In each round every package is fetched, unpacked and configured.
#[derive(Debug)]
pub(super) struct InstallationProgress {
    stage: Stage,
    packages: u64,
    fetched: u64,
    unpacked: u64,
    configured: u64,
}

impl Default for InstallationProgress {
    fn default() -> Self {
        Self { stage: Stage::Resolve, packages: 0, fetched: 0, unpacked: 0, configured: 0 }
    }
}

impl InstallationProgress {
    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    /// Takes in the next line; gives what to show if it changed anything.
    pub(super) fn read(&mut self, line: &str) -> Option<Progress> {
        if let Some(notice) = line.strip_prefix("I: ") {
            if notice.starts_with("downloading packages") {
                self.enter(Stage::EssentialPackages);
            } else if notice.starts_with("installing remaining packages") {
                self.enter(Stage::Packages);
            }
            return Some(self.show(notice.trim_end_matches('.').to_owned()));
        }
        if line.contains(" newly installed, ") {
            let count = line.split(" newly installed, ").next()?.rsplit(' ').next()?;
            self.packages = count.parse().ok()?;
            return Some(self.show("fetching".to_owned()));
        }
        if self.packages == 0 {
            return None;
        }
        let mut words = line.split(' ');
        let (first, second) = (words.next()?, words.next()?);
        if first.starts_with("Get:") {
            self.fetched += 1;
            // Get:1 ADDRESS SUITE/COMPONENT ARCHITECTURE PACKAGE …
            return Some(self.show(format!("fetching {}", words.nth(2)?)));
        }
        let package = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
        match (first, second) {
            ("Unpacking", name) => {
                self.unpacked += 1;
                Some(self.show(format!("unpacking {}", package(name))))
            }
            ("Setting", "up") => {
                self.configured += 1;
                Some(self.show(format!("setting up {}", package(words.next()?))))
            }
            _ => None,
        }
    }

    fn enter(&mut self, stage: Stage) {
        *self = Self { stage, ..Self::default() };
    }

    fn show(&self, detail: String) -> Progress {
        // Packages may be unpacked twice (essential ones are, in a way), never counted twice.
        let done = [self.fetched, self.unpacked, self.configured]
            .iter()
            .map(|count| (*count).min(self.packages))
            .sum();
        Progress { stage: self.stage, done, total: 3 * self.packages, detail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_progress() {
        let mut progress = InstallationProgress::default();
        let shown: Vec<String> = "\
I: running apt-get update...
Get:1 http://mirror/debian bookworm InRelease [151 kB]
I: downloading packages with apt...
0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.
Get:1 http://mirror/debian bookworm/main amd64 libc6 amd64 2.36-9 [2759 kB]
Get:2 http://mirror/debian bookworm/main amd64 mawk amd64 1.3 [119 kB]
Selecting previously unselected package libc6:amd64.
Unpacking libc6:amd64 (2.36-9) ...
Setting up libc6:amd64 (2.36-9) ...
I: installing remaining packages inside the chroot...
Reading package lists...
0 upgraded, 117 newly installed, 0 to remove and 0 not upgraded.
Setting up git (1:2.39) ..."
            .lines()
            .filter_map(|line| progress.read(line))
            .map(|p| format!("{} {}/{} {}", p.stage, p.done, p.total, p.detail))
            .collect();
        assert_eq!(
            shown,
            [
                "resolve packages 0/0 running apt-get update",
                "essential packages 0/0 downloading packages with apt",
                "essential packages 0/6 fetching",
                "essential packages 1/6 fetching libc6",
                "essential packages 2/6 fetching mawk",
                "essential packages 3/6 unpacking libc6",
                "essential packages 4/6 setting up libc6",
                "packages 0/0 installing remaining packages inside the chroot",
                "packages 0/351 fetching",
                "packages 1/351 setting up git",
            ]
        );
        assert_eq!(progress.stage(), Stage::Packages);
    }
}
