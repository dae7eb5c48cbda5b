//! Starts gVisor's kernel and waits until the guest on it takes the wire.

use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use bellglass_protocol::launch::LaunchOrder;
use rustix::process::Pid;

use super::{DOOR_OUTSIDE, GUEST, READY, bundle};
use crate::launch::Failed;
use crate::launch::syscalls::Stage as _;

const STARTING: &str = "start gVisor";
/// Where `gvisor_room` put things.
const RUNSC: &str = "/runsc";
const BUNDLE: &str = "/gvisor/bundle";
const PID_FILE: &str = "/gvisor/state/pid";

/// How gVisor is run. Each line has its reason.
const FLAGS: [&str; 9] = [
    "--root=/gvisor/state",
    "--platform=systrap",
    // Loopback only; the way out is the wire.
    "--network=none",
    // The whole cage is in its control groups already.
    "--ignore-cgroups",
    // Files go to the cage's own overlay, whose size is bounded; in gVisor's memory they would not be.
    "--overlay2=none",
    // gVisor's kernel opens no file of the cage itself: a small process of its own does it for it.
    "--directfs=false",
    // Nobody else changes the files, so what is known of them stays true.
    "--file-access-mounts=exclusive",
    // The guest's own socket is seen outside, and no socket of the outside inside.
    "--host-uds=create",
    // Raw sockets would be of no use on loopback.
    "--net-raw=false",
];

/// Returns the process that is gVisor's kernel.
pub(crate) fn start_gvisor(order: &LaunchOrder) -> Result<Pid, Failed> {
    let config = serde_json::to_vec(&bundle::config(order)).map_err(io::Error::from);
    fs::write(format!("{BUNDLE}/config.json"), config.stage(STARTING)?).stage(STARTING)?;
    // A copy: this executable is a file in memory, which no path on gVisor's kernel could lead to.
    let guest = format!("{DOOR_OUTSIDE}/{GUEST}");
    fs::copy("/proc/self/exe", &guest).stage("copy the guest for gVisor")?;
    fs::set_permissions(&guest, Permissions::from_mode(0o500)).stage(STARTING)?;
    let (ready, ready_writer) = pipe()?;
    let (complaints, complaints_writer) = pipe()?;
    let mut runsc = Command::new(RUNSC)
        .args(FLAGS)
        .args(["run", "--detach", "--bundle", BUNDLE, "--pid-file", PID_FILE])
        .arg(&order.name)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(ready_writer)
        .stderr(complaints_writer)
        .spawn()
        .stage(STARTING)?;
    let text = serde_json::to_vec(&order.guest).expect("a configuration is plain data");
    if let Some(mut stdin) = runsc.stdin.take() {
        // If it died early, its complaint is the better error.
        let _ = stdin.write_all(&text);
    }
    let status = runsc.wait().stage(STARTING)?;
    let mut said = vec![0; READY.len()];
    let is_ready =
        status.success() && { File::from(ready).read_exact(&mut said).is_ok() && said == READY };
    if !is_ready {
        let why = complaint(complaints, &status.to_string());
        return Err(io::Error::other(why)).stage(STARTING);
    }
    // Kept open for good: the guest may still say something as it ends.
    std::mem::forget(complaints);
    let pid = fs::read_to_string(PID_FILE).stage("read gVisor's process id")?;
    let pid = pid.trim().parse().ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::other("it is none")).stage("read gVisor's process id")
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Failed> {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).stage("make a pipe")
}

/// The last words of gVisor or of the guest on it. They are not waited for.
fn complaint(pipe: OwnedFd, status: &str) -> String {
    let mut bytes = vec![0; 4096];
    let _ = rustix::io::ioctl_fionbio(&pipe, true);
    let length = rustix::io::read(&pipe, &mut bytes).unwrap_or(0);
    let text = String::from_utf8_lossy(&bytes[..length]);
    match text.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => line.trim().to_owned(),
        None => format!("it said nothing ({status})"),
    }
}
