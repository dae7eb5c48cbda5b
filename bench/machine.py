"""Facts about the machine and the programs of a run, kept beside its figures."""

import datetime
import os
import pathlib
import platform
import statistics
import subprocess
import time
from importlib import metadata


def facts(folder: pathlib.Path, binary: pathlib.Path) -> dict:
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu_model(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "file_system": file_system(folder),
        "disk_flush_ms": round(disk_flush_ms(folder), 3),
        "load_before": round(os.getloadavg()[0], 2),
        "programs": programs(binary),
    }


def cpu_model() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def file_system(folder: pathlib.Path) -> str:
    return first_line(["stat", "--file-system", "--format", "%T", str(folder)])


def disk_flush_ms(folder: pathlib.Path) -> float:
    """Median time to append 4 KiB to a file and have it on the disk: the price of one commit."""
    path = folder / "flush"
    times = []
    with open(path, "wb", buffering=0) as file:
        for _ in range(100):
            start = time.perf_counter()
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - start)
    path.unlink()
    return statistics.median(times) * 1000


def programs(binary: pathlib.Path) -> dict:
    found = {
        "bellglass": first_line([str(binary), "version"]).removeprefix("bellglass "),
        "python": platform.python_version(),
        "wrk": first_line(["wrk", "--version"]).split(" [")[0].removeprefix("wrk "),
        "bubblewrap": first_line(["bwrap", "--version"]).removeprefix("bubblewrap "),
    }
    for package in ("fastapi", "uvicorn", "uvloop", "httptools", "pydantic"):
        found[package] = metadata.version(package)
    return found


def first_line(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return (done.stdout + done.stderr).strip().split("\n")[0]
