"""How fast a sandbox starts and works, and what it costs, beside container runtimes and a floor."""

import json
import os
import pathlib
import statistics
import subprocess

from machine import prefix
from peers import Peers

FULL = {"runs": 100, "burst": 100, "rate": 400, "calls": 1000, "idle": 1000, "connections": 500}
SMOKE = {"runs": 2, "burst": 4, "rate": 4, "calls": 3, "idle": 3, "connections": 5}
LABELS = {"cold": "Bellglass, cold", "warm": "Bellglass, from the warm pool"}


def measure(binary: pathlib.Path, folder: pathlib.Path, smoke: bool) -> dict:
    driver = os.environ["BENCH_SANDBOX_DRIVER"]
    rootfs = image_rootfs(binary)
    counts = SMOKE if smoke else FULL
    with Peers(rootfs, folder, smoke) as peers:
        plan = {"folder": str(folder / "ours"), "rootfs": rootfs, "peers": peers.starts, "execs": peers.execs, **counts}
        done = subprocess.run(
            [*prefix(), driver], input=json.dumps(plan), stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode != 0:
            raise SystemExit("bench: the sandboxes could not be measured")
    found = json.loads(done.stdout)
    labels = {**LABELS, **peers.labels}
    ordered = ["floor", "warm", "cold", *(name for name in peers.labels if name != "floor")]
    return {
        "runs": counts["runs"],
        "peers": {
            name: {"label": labels[name], "start_ms": spread(found["starts"][name])}
            for name in ordered
            if name in found["starts"]
        },
        "not_available_here": peers.missing,
        "burst": {
            name: {
                "label": labels[name],
                "count": burst["count"],
                "succeeded": len(burst["times"]),
                "errors": sorted(set(burst["errors"]))[:3],
                **(spread(burst["times"]) if burst["times"] else {}),
            }
            for name, burst in found["burst"].items()
        },
        "starts_per_second": round(found["starts_per_second"], 1),
        "calls": {name: spread(times) for name, times in found["calls"].items()},
        "egress": {
            "direct_ms": spread(found["egress"]["direct"]),
            "proxied_ms": spread(found["egress"]["proxied"]),
            "held": found["egress"]["held"],
            "memory_mib": round(found["egress"]["memory"] / 2**20, 2),
        },
        "idle": {
            "count": found["idle"]["count"],
            "running": found["idle"]["running"],
            "errors": sorted(set(found["idle"]["errors"]))[:3],
            # Where no control group counts memory, the fall of what the host has left must do.
            "mib": round((found["idle"]["charged"] or found["idle"]["host_memory"]) / 2**20, 2),
            "host_mib": round(found["idle"]["host_memory"] / 2**20, 2),
            "guest_mib": round((found["idle"]["guest_memory"] or 0) / 2**20, 2),
        },
    }


def image_rootfs(binary: pathlib.Path) -> str:
    done = subprocess.run([binary, "image", "inspect", "base", "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"bench: there is no image; build it with `{binary.name} image build`\n{done.stderr}")
    return json.loads(done.stdout)["rootfs"]


def spread(milliseconds: list[float]) -> dict:
    ordered = sorted(milliseconds)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return {"p50": round(statistics.median(ordered), 3), "p95": round(p95, 3)}
