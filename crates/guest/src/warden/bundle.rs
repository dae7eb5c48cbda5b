//! What gVisor is told about the sandbox, in the words of OCI's runtime specification.

use bellglass_protocol::launch::LaunchOrder;
use serde_json::{Value, json};

use super::{DOOR, DOOR_OUTSIDE, GUEST, INSIDE};

/// What the guest needs, valid on gVisor's kernel only: `launch::privileges` has the reasons.
const CAPABILITIES: [&str; 4] = ["CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP"];

/// Places are those that the cage has: see `launch::gvisor_room` and `launch::mounts`.
pub(super) fn config(order: &LaunchOrder) -> Value {
    let namespaces = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({ "type": kind }));
    let shared_memory = format!("size={}", order.shared_memory.0);
    json!({
        "ociVersion": "1.0.2",
        "hostname": order.name,
        "root": { "path": "/root", "readonly": false },
        "process": {
            "args": [format!("{DOOR}/{GUEST}"), INSIDE],
            "cwd": "/",
            "env": [],
            "user": { "uid": 0, "gid": 0 },
            "noNewPrivileges": true,
            "capabilities": {
                "bounding": CAPABILITIES,
                "effective": CAPABILITIES,
                "permitted": CAPABILITIES,
                "inheritable": [],
                "ambient": [],
            },
        },
        "mounts": [
            { "destination": "/proc", "type": "proc", "source": "proc" },
            { "destination": "/dev", "type": "tmpfs", "source": "tmpfs" },
            {
                "destination": "/dev/shm",
                "type": "tmpfs",
                "source": "tmpfs",
                "options": ["nosuid", "nodev", "noexec", "mode=1777", shared_memory],
            },
            folder("/tmp", "/tmp"),
            folder("/workspace", &order.guest.workspace),
            folder(DOOR_OUTSIDE, DOOR),
        ],
        "linux": {
            "namespaces": namespaces,
        },
    })
}

fn folder(source: &str, destination: &str) -> Value {
    let options = ["bind", "rw", "nosuid", "nodev"];
    json!({ "destination": destination, "type": "bind", "source": source, "options": options })
}
