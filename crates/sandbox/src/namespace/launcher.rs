//! Starts the launcher for one sandbox and reads its answer.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use bellglass_protocol::launch::{LaunchFailure, LaunchOrder, Launched};

use super::guest_binary::GuestBinary;
use super::unrecorded::PROGRAM;
use crate::backend::BackendError;

/// Builds a cage by a fresh process of the guest's executable. It gets the order on its standard
/// input and nothing else of ours: no environment, no descriptors.
pub(super) fn launch(guest: &GuestBinary, order: &LaunchOrder) -> Result<Launched, BackendError> {
    let mut child = Command::new(guest.path())
        .arg0(PROGRAM)
        // By this it is found again if nobody lives to record it.
        .arg(&order.name)
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(BackendError::io("start the launcher"))?;
    let text = serde_json::to_vec(order).expect("an order is plain data");
    if let Some(mut stdin) = child.stdin.take() {
        // A launcher that died early gives the better error, below.
        let _ = stdin.write_all(&text);
    }
    let output = child.wait_with_output().map_err(BackendError::io("wait for the launcher"))?;
    if output.status.success() {
        return serde_json::from_slice(&output.stdout)
            .map_err(std::io::Error::other)
            .map_err(BackendError::io("understand the launcher"));
    }
    Err(match serde_json::from_slice::<LaunchFailure>(&output.stdout) {
        Ok(failure) => BackendError::Launch { stage: failure.stage, error: failure.error },
        Err(_) => BackendError::Launch {
            stage: "build the cage".into(),
            error: format!("the launcher ended with {}", output.status),
        },
    })
}
