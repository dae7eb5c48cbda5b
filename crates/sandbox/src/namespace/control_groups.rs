//! Control groups: the limits on memory, processes and CPU time, on version 1 and 2.
//!
//! What the host offers is found by looking at what is mounted and trying it once.

mod version_2;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bellglass_protocol::job::Limits;

/// In how much time a sandbox gets its share of the processors.
const PERIOD_US: u64 = 100_000;

/// Where this process may make groups.
#[derive(Clone, Debug)]
pub(crate) struct ControlGroups {
    version: Version,
    /// Begins the names of all groups of one run folder, so that several servers on one host do
    /// not take each other's for orphans.
    prefix: String,
    /// For each controller the folder under which a sandbox's group is made. On version 2 there is
    /// one folder for all.
    parents: Vec<(Controller, PathBuf)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Controller {
    Memory,
    Processes,
    Cpu,
}

impl Controller {
    pub(super) const ALL: [Self; 3] = [Self::Memory, Self::Processes, Self::Cpu];

    fn kernel_name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Processes => "pids",
            Self::Cpu => "cpu",
        }
    }

    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Processes => "processes",
            Self::Cpu => "CPU time",
        }
    }
}

/// The name of the group that holds all sandboxes' groups.
const FAMILY: &str = "bellglass";

impl ControlGroups {
    /// Finds out what this host gives to this process. May give fewer controllers than asked for.
    pub(crate) fn detect(prefix: &str) -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let (version, parents) = match parents_on_version_1(&mounts, &own) {
            none if none.is_empty() => (Version::Two, version_2::parents(&mounts, &own)),
            some => (Version::One, some),
        };
        Self { version, prefix: prefix.into(), parents }
    }

    pub(crate) fn has(&self, controller: Controller) -> bool {
        self.parents.iter().any(|(each, _)| *each == controller)
    }

    /// What whoever runs this process can do about controllers that are missing.
    pub(crate) fn remedy() -> &'static str {
        match rustix::process::geteuid().is_root() {
            false => {
                "run as root, or start with `systemd-run --user --scope -p Delegate=yes bellglass serve`"
            }
            true => {
                "mount control groups that this process may change; for a container, `--privileged` does so"
            }
        }
    }

    /// What cannot be limited by control groups here.
    pub(crate) fn missing(&self) -> impl Iterator<Item = Controller> {
        Controller::ALL.into_iter().filter(|controller| !self.has(*controller))
    }

    pub(crate) fn version_name(&self) -> &'static str {
        match self.version {
            Version::One => "v1",
            Version::Two => "v2",
        }
    }

    /// The folders of a sandbox's groups, if it is started by this process.
    pub(crate) fn folders(&self, name: &str) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> =
            self.parents.iter().map(|(_, parent)| self.folder(parent, name)).collect();
        folders.dedup();
        folders
    }

    fn folder(&self, parent: &Path, name: &str) -> PathBuf {
        parent.join(format!("{}{name}", self.prefix))
    }

    /// Makes the groups of a sandbox and sets its limits.
    pub(crate) fn create(&self, name: &str, limits: &Limits) -> io::Result<()> {
        for folder in self.folders(name) {
            fs::create_dir(&folder)?;
        }
        self.limit(name, limits)
    }

    /// Changes the limits of groups that are there.
    pub(crate) fn change(&self, name: &str, limits: &Limits) -> io::Result<()> {
        // Memory must never be allowed more than memory and swap together, so which of the two can
        // be written first depends on the direction. What fails the first time fits the second.
        let _ = self.limit(name, limits);
        self.limit(name, limits)
    }

    fn limit(&self, name: &str, limits: &Limits) -> io::Result<()> {
        let mut failed = None;
        for (controller, parent) in &self.parents {
            let folder = self.folder(parent, name);
            for (file, value) in self.settings(*controller, limits) {
                let result = fs::write(folder.join(file), value);
                if !is_optional(file) {
                    failed = failed.or(result.err());
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Whether a sandbox has a limit on memory that does not hold for swap too: where the kernel does not account
    /// it, or would not have the limit.
    pub(crate) fn leaves_swap_open(&self, name: &str, limits: &Limits) -> bool {
        let memory = self.parents.iter().find(|(each, _)| *each == Controller::Memory);
        let Some((controller, parent)) = memory else { return false };
        let folder = self.folder(parent, name);
        let mut settings = self.settings(*controller, limits).into_iter();
        settings.any(|(file, value)| {
            is_optional(file) && !is_within(&folder.join(file), value.parse().unwrap_or(0))
        })
    }

    /// The files that hold a sandbox's limits, with what was written to each.
    pub(crate) fn written(&self, name: &str, limits: &Limits) -> Vec<(PathBuf, String)> {
        let of_controller = |(controller, parent): &(Controller, PathBuf)| {
            let folder = self.folder(parent, name);
            let settings = self.settings(*controller, limits).into_iter();
            settings
                .filter(|(file, _)| !is_optional(file))
                .map(|(file, value)| (folder.join(file), value))
                .collect::<Vec<_>>()
        };
        self.parents.iter().flat_map(of_controller).collect()
    }

    fn settings(&self, controller: Controller, limits: &Limits) -> Vec<(&'static str, String)> {
        let memory = limits.memory.0.to_string();
        let quota = ((limits.cpus * PERIOD_US as f64) as u64).max(1000);
        match (self.version, controller) {
            (Version::One, Controller::Memory) => vec![
                ("memory.limit_in_bytes", memory.clone()),
                ("memory.memsw.limit_in_bytes", memory),
            ],
            (Version::Two, Controller::Memory) => {
                // One process goes, not the whole sandbox: the job continues.
                let one = ("memory.oom.group", "0".to_owned());
                vec![("memory.max", memory), ("memory.swap.max", "0".into()), one]
            }
            (_, Controller::Processes) => {
                vec![("pids.max", all_processes(limits.processes).to_string())]
            }
            (Version::One, Controller::Cpu) => vec![
                ("cpu.cfs_period_us", PERIOD_US.to_string()),
                ("cpu.cfs_quota_us", quota.to_string()),
            ],
            (Version::Two, Controller::Cpu) => vec![("cpu.max", format!("{quota} {PERIOD_US}"))],
        }
    }

    /// Files that take the process which writes `0` to them into the sandbox's groups.
    pub(crate) fn join_files(&self, name: &str) -> Vec<PathBuf> {
        let file = match self.version {
            // Moving a single thread through `tasks` spares the kernel a wait for all others.
            Version::One => "tasks",
            Version::Two => "cgroup.procs",
        };
        self.folders(name).into_iter().map(|folder| folder.join(file)).collect()
    }

    /// Names of all sandboxes of this run folder that have a group.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .parents
            .iter()
            .filter_map(|(_, parent)| fs::read_dir(parent).ok())
            .flatten()
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let name = entry.file_name().into_string().ok()?;
                let is_group = entry.file_type().ok()?.is_dir();
                is_group.then(|| name.strip_prefix(&self.prefix).map(String::from))?
            })
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

/// Whether a file of the kernel's has a number that is at most this.
fn is_within(file: &Path, most: u64) -> bool {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.trim().parse::<u64>().is_ok_and(|number| number <= most)
}

/// Swap is not accounted on every kernel. What that means is told where there is any.
fn is_optional(file: &str) -> bool {
    file.contains("swap") || file.contains("memsw")
}

/// The limit on processor time of some groups, which is a whole processor until this is dropped.
#[derive(Default)]
pub struct Relief(Vec<(PathBuf, String)>);

/// The file that has this limit, by the version of control groups.
const PROCESSOR_TIME: [&str; 2] = ["cpu.cfs_quota_us", "cpu.max"];

impl Relief {
    pub(super) fn of(groups: &[PathBuf]) -> Self {
        let files = groups.iter().flat_map(|group| PROCESSOR_TIME.map(|name| group.join(name)));
        let raise = |file: PathBuf| {
            let limit = fs::read_to_string(&file).ok()?;
            let quota: u64 = limit.split_whitespace().next()?.parse().ok()?;
            // Who has more, or no limit, wants for nothing.
            if quota >= PERIOD_US {
                return None;
            }
            // The period of version 2, which stands behind it, stays.
            fs::write(&file, PERIOD_US.to_string()).ok()?;
            Some((file, limit))
        };
        Self(files.filter_map(raise).collect())
    }

    /// For groups whose processes were told to end: to end takes some time too, and many that are far over
    /// their share would wait for it for minutes.
    pub(super) fn for_good(groups: &[PathBuf]) {
        Self::of(groups).0.clear();
    }

    /// Puts back what a process that was killed meanwhile did not, by what was written at first.
    pub(super) fn end(written: &[(PathBuf, String)]) {
        let is_relieved = |file: &Path| {
            let name = file.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| PROCESSOR_TIME.contains(&name))
        };
        let relieved = written.iter().filter(|(file, _)| is_relieved(file));
        drop(Self(relieved.cloned().collect()));
    }
}

impl Drop for Relief {
    fn drop(&mut self) {
        for (file, limit) in &self.0 {
            // A group that is gone has no limit either.
            if let Err(error) = fs::write(file, limit)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(file = %file.display(), %error, "a limit could not be put back");
            }
        }
    }
}

/// How many processes of a sandbox were ended for want of memory, by its groups.
pub(crate) fn out_of_memory_kills(groups: &[PathBuf]) -> u64 {
    // Only the memory controller's group has the one of version 1 or the one of version 2.
    let files = ["memory.oom_control", "memory.events"];
    let files = groups.iter().flat_map(|group| files.map(|file| group.join(file)));
    let text = files.filter_map(|file| fs::read_to_string(file).ok()).next().unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    count.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

/// Removes groups whose processes are gone; those that do not exist are fine.
pub(crate) fn remove(groups: &[PathBuf]) -> io::Result<()> {
    groups.iter().try_for_each(|group| remove_group(group))
}

/// Processes of the whole sandbox. Tools are bounded by a limit on their user; if the group's were the
/// same, tools that reach it would leave the guest no thread to end them with. The guest has a
/// supervisor for each tree of tool processes, and threads of its own.
fn all_processes(of_tools: u32) -> u32 {
    const GUEST_THREADS: u32 = 80;
    /// So many ids there can be; the kernel refuses to write more down.
    const MOST: u32 = 4 << 20;
    of_tools.saturating_mul(2).saturating_add(GUEST_THREADS).min(MOST)
}

/// The folders for groups on a host with version 1 controllers.
fn parents_on_version_1(mounts: &str, own: &str) -> Vec<(Controller, PathBuf)> {
    let found = Controller::ALL.into_iter().filter_map(|controller| {
        let mount = mount_point(mounts, "cgroup", Some(controller.kernel_name()))?;
        // Below the group this process is in, so that limits set on us from outside hold too.
        let path = own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let names = fields.next()?;
            names.split(',').any(|name| name == controller.kernel_name()).then(|| fields.next())?
        })?;
        let parent = mount.join(path.trim_start_matches('/')).join(FAMILY);
        is_usable(&parent).then_some((controller, parent))
    });
    found.collect()
}

/// The kernel lets go of the last process of a group a moment after it has ended.
fn remove_group(folder: &Path) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match fs::remove_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY) && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

/// Whether groups can be made below `family`, which is made for the purpose.
fn is_usable(family: &Path) -> bool {
    let made = match fs::create_dir(family) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::AlreadyExists,
    };
    remove_old_trials(family);
    let trial = family.join(format!("trial-{}", std::process::id()));
    made && fs::create_dir(&trial).is_ok() && fs::remove_dir(&trial).is_ok()
}

/// Removes what processes left that were killed in the middle of a trial.
fn remove_old_trials(family: &Path) {
    for entry in fs::read_dir(family).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix("trial-"));
        if process.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Where a file system of a kind is mounted, with an option among its super options.
fn mount_point(mounts: &str, kind: &str, option: Option<&str>) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let fits = after.next()? == kind
            && option.is_none_or(|wanted| {
                after.nth(1).is_some_and(|options| options.split(',').any(|each| each == wanted))
            });
        fits.then(|| before.split(' ').nth(4).map(PathBuf::from))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(version: Version) -> ControlGroups {
        let parents = Controller::ALL.map(|each| (each, PathBuf::from("/groups"))).into();
        ControlGroups { version, prefix: "p-".into(), parents }
    }

    #[test]
    fn a_limit_is_a_processor_for_a_while_or_for_good() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cpu.max");
        let limit = || fs::read_to_string(&file).unwrap();
        fs::write(&file, "10000 100000\n").unwrap();
        let groups = [folder.path().to_owned(), folder.path().join("gone")];
        let relief = Relief::of(&groups);
        assert_eq!(limit(), PERIOD_US.to_string());
        drop(relief);
        assert_eq!(limit(), "10000 100000\n");
        Relief::for_good(&groups);
        assert_eq!(limit(), PERIOD_US.to_string());
        assert!(!folder.path().join("cpu.cfs_quota_us").exists());
        // No more than a processor, and nothing for who has that.
        for enough in ["150000 100000\n", "max 100000\n", "-1\n"] {
            fs::write(&file, enough).unwrap();
            let _relief = Relief::of(&groups);
            assert_eq!(limit(), enough);
        }
    }

    #[test]
    fn a_limit_that_nobody_lived_to_put_back_is_put_back() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        let written = [("cpu.max", "10000 100000"), ("memory.max", "4096")];
        let written = written.map(|(name, limit)| (place(name), limit.to_owned()));
        written.iter().for_each(|(file, limit)| fs::write(file, limit).unwrap());
        std::mem::forget(Relief::of(&[folder.path().to_owned()]));
        fs::write(place("memory.max"), "max").unwrap();
        Relief::end(&written);
        assert_eq!(fs::read_to_string(place("cpu.max")).unwrap(), "10000 100000");
        // What we never change is not ours to put right.
        assert_eq!(fs::read_to_string(place("memory.max")).unwrap(), "max");
    }

    #[test]
    fn swap_without_a_limit_is_known() {
        use bellglass_protocol::quantity::ByteSize;
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { memory: ByteSize(8192), ..Limits::default() };
        for (version, file, closed, open) in [
            (Version::One, "memory.memsw.limit_in_bytes", "8192\n", "9223372036854771712\n"),
            (Version::Two, "memory.swap.max", "0\n", "max\n"),
        ] {
            let parents = vec![(Controller::Memory, folder.path().to_owned())];
            let groups = ControlGroups { version, prefix: "p-".into(), parents };
            assert!(groups.leaves_swap_open("job", &limits), "the kernel does not account it");
            fs::create_dir_all(folder.path().join("p-job")).unwrap();
            for (value, is_open) in [(closed, false), (open, true)] {
                fs::write(folder.path().join("p-job").join(file), value).unwrap();
                assert_eq!(groups.leaves_swap_open("job", &limits), is_open, "{value}");
            }
            let none = ControlGroups { parents: Vec::new(), ..groups };
            assert!(!none.leaves_swap_open("job", &limits), "all of memory is counted otherwise");
        }
    }

    #[test]
    fn limits_are_written_as_each_version_wants_them() {
        use bellglass_protocol::quantity::ByteSize;
        let limits =
            Limits { memory: ByteSize(96 << 20), processes: 33, cpus: 0.5, ..Limits::default() };
        let all = |version| -> Vec<(&str, String)> {
            let groups = groups(version);
            Controller::ALL.iter().flat_map(|each| groups.settings(*each, &limits)).collect()
        };
        let expected = |pairs: [(&'static str, &str); 5]| pairs.map(|(f, v)| (f, v.to_owned()));
        assert_eq!(
            all(Version::One),
            expected([
                ("memory.limit_in_bytes", "100663296"),
                ("memory.memsw.limit_in_bytes", "100663296"),
                ("pids.max", "146"),
                ("cpu.cfs_period_us", "100000"),
                ("cpu.cfs_quota_us", "50000"),
            ])
        );
        assert_eq!(
            all(Version::Two),
            expected([
                ("memory.max", "100663296"),
                ("memory.swap.max", "0"),
                ("memory.oom.group", "0"),
                ("pids.max", "146"),
                ("cpu.max", "50000 100000"),
            ])
        );
        // All of version 2 lies in one group, which is joined once.
        let two = groups(Version::Two);
        assert_eq!(two.folders("job"), [PathBuf::from("/groups/p-job")]);
        assert_eq!(two.join_files("job"), [PathBuf::from("/groups/p-job/cgroup.procs")]);
        let written = two.written("job", &limits);
        assert!(written.iter().all(|(file, _)| !file.to_string_lossy().contains("swap")));
        assert!(written.contains(&("/groups/p-job/cpu.max".into(), "50000 100000".into())));
    }

    #[test]
    fn a_limit_on_processes_is_one_that_the_kernel_takes() {
        assert_eq!(all_processes(33), 146);
        assert_eq!([2_100_000, u32::MAX].map(all_processes), [4_194_304; 2]);
    }

    #[test]
    fn kills_are_counted_on_both_versions() {
        let folder = tempfile::tempdir().unwrap();
        let group = folder.path().to_path_buf();
        assert_eq!(out_of_memory_kills(std::slice::from_ref(&group)), 0);
        let events = "low 0\nhigh 0\nmax 12\noom 4\noom_kill 3\noom_group_kill 0\n";
        fs::write(group.join("memory.events"), events).unwrap();
        assert_eq!(out_of_memory_kills(std::slice::from_ref(&group)), 3);
        fs::remove_file(group.join("memory.events")).unwrap();
        let control = "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n";
        fs::write(group.join("memory.oom_control"), control).unwrap();
        assert_eq!(out_of_memory_kills(&[group]), 7);
    }

    #[test]
    fn mounts_are_found_by_kind_and_option() {
        let mounts = "\
            30 25 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
            31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:5 - cgroup cgroup rw,cpu,cpuacct\n\
            32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let find = |kind, option| mount_point(mounts, kind, option);
        assert_eq!(find("cgroup", Some("memory")), Some("/sys/fs/cgroup/memory".into()));
        assert_eq!(find("cgroup", Some("cpu")), Some("/sys/fs/cgroup/cpu,cpuacct".into()));
        assert_eq!(find("cgroup", Some("pids")), None);
        assert_eq!(find("cgroup2", None), Some("/sys/fs/cgroup/unified".into()));
    }
}
