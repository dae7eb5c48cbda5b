//! The single checks of the host. Each is one question with one answer.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use bellglass_protocol::launch::{IdMapping, LEAST_LANDLOCK};

use super::{Finding, Verdict, finds_program};
use crate::namespace::control_groups::ControlGroups;
use crate::namespace::ids;

/// Looks at everything that sandboxes of any backend need. `cluster` says where a Kubernetes
/// cluster is configured, if one is.
pub fn check_host(cluster: Option<&str>) -> Vec<Finding> {
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
        display(),
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
        "run as root, or start with `systemd-run --user --scope -p Delegate=yes bellglass serve`",
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
    let wanted = [("mmdebstrap", "mmdebstrap"), ("npm", "npm"), ("python3", "python3-pip")];
    let missing: Vec<_> =
        wanted.iter().filter(|(program, _)| !finds_program(program)).map(|(_, p)| *p).collect();
    if missing.is_empty() {
        Finding::good(SUBJECT, "mmdebstrap, npm and pip are installed")
    } else {
        let fix = format!("install the Debian packages {}", missing.join(" "));
        Finding::other(SUBJECT, Verdict::Limited, "images cannot be built here", fix)
    }
}

fn kvm() -> Finding {
    const SUBJECT: &str = "KVM";
    let device = fs::File::options().read(true).write(true).open("/dev/kvm");
    match device {
        Ok(_) => Finding::good(SUBJECT, "/dev/kvm opens; no backend here uses it yet"),
        Err(error) => Finding::other(
            SUBJECT,
            Verdict::Absent,
            format!("/dev/kvm: {error}"),
            "optional: allow virtualisation in the firmware, and add your user to the group kvm",
        ),
    }
}

fn docker() -> Finding {
    const SUBJECT: &str = "Docker";
    let socket = Path::new("/var/run/docker.sock");
    if std::os::unix::net::UnixStream::connect(socket).is_ok() {
        return Finding::good(SUBJECT, "an engine answers; no backend here uses it yet");
    }
    let fix = "optional: not needed for the namespace backend";
    Finding::other(SUBJECT, Verdict::Absent, "no engine answers", fix)
}

fn kubernetes(cluster: Option<&str>) -> Finding {
    const SUBJECT: &str = "Kubernetes";
    match cluster {
        Some(place) => Finding::good(SUBJECT, format!("configured by {place}; not used yet")),
        None => Finding::other(
            SUBJECT,
            Verdict::Absent,
            "no cluster is configured",
            "optional: not needed on one machine",
        ),
    }
}

/// The desktop lives in the image; on the host nothing is needed to show it.
fn display() -> Finding {
    optional_program("display", "Xvnc", "optional: desktops run inside sandboxes, from the image")
}

fn optional_program(subject: &'static str, program: &str, fix: &str) -> Finding {
    if finds_program(program) {
        Finding::good(subject, format!("`{program}` is installed; no backend here uses it yet"))
    } else {
        Finding::other(subject, Verdict::Absent, format!("`{program}` is not installed"), fix)
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
