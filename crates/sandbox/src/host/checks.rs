//! The single checks of the host. Each is one question with one answer.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use bellglass_protocol::launch::{IdMapping, LEAST_LANDLOCK};

use super::{Finding, Verdict, finds_program};
use crate::image::ImageStore;
use crate::namespace::control_groups::ControlGroups;
use crate::namespace::ids;

/// Looks at everything that sandboxes of any backend need. `cluster` says where a Kubernetes
/// cluster is configured, if one is.
pub fn check_host(cluster: Option<&str>, images: &ImageStore) -> Vec<Finding> {
    vec![
        kernel(),
        user_namespaces(),
        id_mappings(),
        control_groups(),
        seccomp(),
        landlock(),
        image_tools(),
        kvm(),
        docker(),
        kubernetes(cluster),
        display(images),
    ]
}

fn kernel() -> Finding {
    let release = read("/proc/sys/kernel/osrelease");
    let release = release.trim();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let text = format!("Linux {release}");
    if version >= (6, 6) {
        Finding::good("kernel", text)
    } else if version >= (5, 19) {
        let fix = "sandboxes need Linux 6.6 when started by a plain user; as root 5.19 is enough";
        Finding::other("kernel", Verdict::Limited, text, fix)
    } else {
        let fix = "sandboxes need Linux 5.19 or newer (overlays on idmapped mounts)";
        Finding::other("kernel", Verdict::Missing, text, fix)
    }
}

fn user_namespaces() -> Finding {
    const SUBJECT: &str = "namespaces";
    let tried = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "--pid", "--net", "--ipc", "--uts"])
        .args(["--cgroup", "--fork", "true"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output();
    match tried {
        Ok(output) if output.status.success() => {
            Finding::good(SUBJECT, "user, mount, pid, net, ipc, uts and cgroup can be made")
        }
        Ok(output) => {
            let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Finding::other(SUBJECT, Verdict::Missing, reason, namespace_fix())
        }
        Err(error) => Finding::other(
            SUBJECT,
            Verdict::Limited,
            format!("not tried, `unshare` cannot be started: {error}"),
            "install the Debian package util-linux",
        ),
    }
}

/// Distributions lock user namespaces in three ways; name the one that is in force.
fn namespace_fix() -> String {
    let is = |path, value| read(path).trim() == value;
    if is("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "AppArmor restricts user namespaces: run as root, or `sysctl -w \
         kernel.apparmor_restrict_unprivileged_userns=0`"
            .into()
    } else if is("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "run as root, or `sysctl -w kernel.unprivileged_userns_clone=1`".into()
    } else if is("/proc/sys/user/max_user_namespaces", "0") {
        "`sysctl -w user.max_user_namespaces=15000`".into()
    } else if Path::new("/.dockerenv").exists() {
        "inside Docker: start the container with `--security-opt seccomp=unconfined \
         --security-opt apparmor=unconfined`, or run outside of it"
            .into()
    } else {
        "run as root, or allow user namespaces in the kernel's settings".into()
    }
}

fn id_mappings() -> Finding {
    const SUBJECT: &str = "user mappings";
    if rustix::process::geteuid().is_root() {
        return Finding::good(SUBJECT, "root: each sandbox gets 65536 ids of its own");
    }
    match ids::subordinate_ids() {
        Some(IdMapping::Subordinate { uid_base, count, .. }) => {
            Finding::good(SUBJECT, format!("{count} subordinate ids from {uid_base}"))
        }
        _ => Finding::other(
            SUBJECT,
            Verdict::Limited,
            "no subordinate ids: guest and tools share one user",
            "install the Debian package uidmap, then `sudo usermod --add-subuids 100000-165535 \
             --add-subgids 100000-165535 $USER`",
        ),
    }
}

fn control_groups() -> Finding {
    const SUBJECT: &str = "control groups";
    let groups = ControlGroups::detect("doctor-");
    let missing: Vec<_> = groups.missing().map(|each| each.describe()).collect();
    if missing.is_empty() {
        let text = format!("{}: memory, processes and CPU time are limited", groups.version_name());
        return Finding::good(SUBJECT, text);
    }
    Finding::other(
        SUBJECT,
        Verdict::Limited,
        format!("no limit by control group on {}", missing.join(", ")),
        ControlGroups::remedy(),
    )
}

fn seccomp() -> Finding {
    const SUBJECT: &str = "system-call filter";
    let actions = read("/proc/sys/kernel/seccomp/actions_avail");
    if actions.contains("errno") {
        Finding::good(SUBJECT, "seccomp filters can be loaded")
    } else {
        let fix = "use a kernel with CONFIG_SECCOMP_FILTER";
        Finding::other(SUBJECT, Verdict::Missing, "seccomp is not available", fix)
    }
}

fn landlock() -> Finding {
    const SUBJECT: &str = "landlock";
    let version = super::landlock_version();
    if version >= LEAST_LANDLOCK {
        Finding::good(SUBJECT, format!("version {version}: a second fence around tools"))
    } else if version > 0 {
        let detail = format!("version {version} forbids all moves between folders: not used");
        Finding::other(SUBJECT, Verdict::Absent, detail, "use a kernel of version 5.19 or newer")
    } else {
        let fix = "add `landlock` to the kernel's `lsm=` parameter";
        Finding::other(SUBJECT, Verdict::Absent, "not in this kernel", fix)
    }
}

fn image_tools() -> Finding {
    const SUBJECT: &str = "image building";
    let wanted = [
        ("mmdebstrap", finds_program("mmdebstrap")),
        ("npm", finds_program("npm")),
        ("python3-pip", finds_pip()),
    ];
    let missing: Vec<_> =
        wanted.iter().filter(|(_, is_there)| !is_there).map(|(package, _)| *package).collect();
    if missing.is_empty() {
        Finding::good(SUBJECT, "mmdebstrap, npm and pip are installed")
    } else {
        let fix = format!("install the Debian packages {}", missing.join(" "));
        Finding::other(SUBJECT, Verdict::Limited, "images cannot be built here", fix)
    }
}

/// On Debian there is often a Python without pip.
fn finds_pip() -> bool {
    let quiet = || Stdio::null();
    let mut python = Command::new("python3");
    python.args(["-c", "import pip"]).stdin(quiet()).stdout(quiet()).stderr(quiet());
    python.status().is_ok_and(|status| status.success())
}

/// Whether the device opens says nothing about whether a virtual machine would run, and none is made to
/// find out: no backend has a use for one.
fn kvm() -> Finding {
    const SUBJECT: &str = "KVM";
    let device = fs::File::options().read(true).write(true).open("/dev/kvm");
    match device {
        Ok(_) => Finding::other(
            SUBJECT,
            Verdict::Absent,
            "/dev/kvm opens, which proves no virtual machine; not tried, and not used by any backend",
            "nothing to do: the strongest level here is gVisor",
        ),
        Err(error) => Finding::other(
            SUBJECT,
            Verdict::Absent,
            format!("/dev/kvm: {error}; no backend here uses it"),
            "optional: allow virtualisation in the firmware, and add your user to the group kvm",
        ),
    }
}

fn docker() -> Finding {
    const SUBJECT: &str = "Docker";
    const SOCKET: &str = "/var/run/docker.sock";
    match ask_docker(SOCKET) {
        Ok(true) => Finding::good(SUBJECT, "an engine answers; no backend here uses it yet"),
        Ok(false) => Finding::other(
            SUBJECT,
            Verdict::Absent,
            format!("{SOCKET} is there, but what answers is no engine"),
            "optional: `systemctl restart docker`; not needed for the backends that there are",
        ),
        Err(error) => Finding::other(
            SUBJECT,
            Verdict::Absent,
            format!("no engine answers: {SOCKET}: {error}"),
            "optional: not needed for the backends that there are",
        ),
    }
}

/// Whether an engine answers at a socket. A socket that takes connections and stays silent is none.
fn ask_docker(socket: &str) -> io::Result<bool> {
    const PATIENCE: Option<Duration> = Some(Duration::from_secs(2));
    let mut engine = UnixStream::connect(socket)?;
    engine.set_read_timeout(PATIENCE)?;
    engine.set_write_timeout(PATIENCE)?;
    engine.write_all(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")?;
    let mut answer = [0; 12];
    engine.read_exact(&mut answer)?;
    Ok(answer.starts_with(b"HTTP/1.") && answer.ends_with(b" 200"))
}

fn kubernetes(cluster: Option<&str>) -> Finding {
    const SUBJECT: &str = "Kubernetes";
    let (detail, fix) = match cluster {
        Some(place) => (
            format!("configured by {place}; not tried, and not used by any backend"),
            "nothing to do: several machines share their jobs by a PostgreSQL",
        ),
        None => ("no cluster is configured".to_owned(), "optional: not needed on one machine"),
    };
    Finding::other(SUBJECT, Verdict::Absent, detail, fix)
}

/// The screen of a job is in its sandbox, and all it needs is in an image; the host needs none.
fn display(images: &ImageStore) -> Finding {
    const SUBJECT: &str = "display";
    match images.find("desktop") {
        Some(image) => {
            let detail = "jobs can have a screen of their own: the image `desktop` is built";
            Finding::good(SUBJECT, format!("{detail}, {}", image.hash.short()))
        }
        None => Finding::other(
            SUBJECT,
            Verdict::Absent,
            "jobs cannot have a screen: the image `desktop` was not built yet",
            "for jobs with a screen: `bellglass image build desktop`",
        ),
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_an_engine_that_answers_counts_as_one() {
        let folder = tempfile::tempdir().unwrap();
        for (name, answer, expected) in [
            ("engine", "HTTP/1.0 200 OK\r\nServer: Docker\r\n\r\nOK", Some(true)),
            ("busy", "HTTP/1.0 503 Service Unavailable\r\n\r\n", Some(false)),
            ("other", "what do you want?\n", Some(false)),
            ("silent", "", None),
        ] {
            let path = folder.path().join(name);
            let listener = UnixListener::bind(&path).unwrap();
            let engine = std::thread::spawn(move || {
                let (mut caller, _) = listener.accept().unwrap();
                let _ = caller.read(&mut [0; 64]);
                caller.write_all(answer.as_bytes()).unwrap();
            });
            assert_eq!(ask_docker(path.to_str().unwrap()).ok(), expected, "{name}");
            engine.join().unwrap();
        }
        assert!(ask_docker(folder.path().join("none").to_str().unwrap()).is_err());
    }

    #[test]
    fn a_display_needs_its_image() {
        let folder = tempfile::tempdir().unwrap();
        let found = display(&ImageStore::new(folder.path().join("images")));
        assert_eq!(found.verdict, Verdict::Absent);
        assert!(found.fix.unwrap().contains("bellglass image build desktop"));
    }
}
