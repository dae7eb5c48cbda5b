"""Facts about the machine and the programs of a run, kept beside its figures."""

import datetime
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import time
from importlib import metadata


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of those children that live."""
    total = 0.0
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if path.parent.name == str(pid) or fields[1] == str(pid):
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def facts(folder: pathlib.Path, binary: pathlib.Path) -> dict:
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu_model(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "file_system": file_system(folder),
        "disk_flush_ms": round(disk_flush_ms(folder), 3),
        "programs": programs(binary),
    }


def cpu_model() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def file_system(folder: pathlib.Path) -> str:
    return first_line(["findmnt", "--noheadings", "--output", "FSTYPE", "--target", str(folder)])


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


class Noise:
    """How many cores were busy with other things than the benchmark, from now until `cores()`."""

    def __init__(self) -> None:
        self.start = self.now()

    def cores(self) -> float:
        elapsed, busy, own = (after - before for before, after in zip(self.start, self.now()))
        return max(0.0, (busy - own) / elapsed)

    @staticmethod
    def now() -> tuple[float, float, float]:
        """The clock, the time all cores were busy, and the time this process and its children took."""
        ticks = [int(each) for each in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), busy, sum(os.times()[:4])


def busy_otherwise(smoke: bool) -> float:
    """How busy the machine is while nothing of a benchmark runs: what a sandbox or a container takes is nobody's
    child and would count as somebody else's."""
    noise = Noise()
    time.sleep(0.2 if smoke else 2)
    return round(noise.cores(), 2)


def prefix() -> list[str]:
    """Where both versions of control groups are mounted, crun refuses to work. So everything is measured in a
    mount namespace without the second."""
    unified = "/sys/fs/cgroup/unified"
    if os.geteuid() != 0 or not os.path.ismount(unified):
        return []
    return ["unshare", "--mount", "sh", "-c", f'umount {unified}; exec "$@"', "sh"]


def programs(binary: pathlib.Path) -> dict:
    found = {
        "bellglass": first_line([str(binary), "version"]).removeprefix("bellglass "),
        "python": platform.python_version(),
        "wrk": first_line(["wrk", "--version"]).split(" [")[0].removeprefix("wrk "),
        "bubblewrap": first_line(["bwrap", "--version"]).removeprefix("bubblewrap "),
    }
    for runtime in ("crun", "runc", "podman", "runsc", "docker"):
        if shutil.which(runtime):
            version = re.search(r"\d[^ ,]*", first_line([runtime, "--version"]))
            found[runtime] = version[0] if version else "unknown"
    for program, question in (("scrot", "--version"), ("import", "-version"), ("xdotool", "version"), ("rg", "--version")):
        if shutil.which(program):
            version = re.search(r"\d[\w.-]*\d", first_line([program, question]))
            found[program] = version[0] if version else "unknown"
    for package in ("fastapi", "uvicorn", "uvloop", "httptools", "pydantic", "swe-rex", "websockify"):
        found[package] = metadata.version(package)
    return found


def first_line(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return (done.stdout + done.stderr).strip().split("\n")[0]
