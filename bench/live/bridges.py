"""The ways to a desktop that are compared: ours and websockify's, both to the same X server."""

import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time

import machine
import servers
from viewer import PIXEL, SCREEN, Viewer

PEERS = {"bellglass": "Bellglass", "websockify": "websockify"}
SETTLES_WITHIN = 30


def one_round(bridge: tuple[int, str, int], connects: int, echoes: int, seconds: float) -> dict:
    port, path, pid = bridge
    connecting = []
    for _ in range(connects):
        start = time.perf_counter()
        viewer = Viewer(port, path)
        connecting.append(time.perf_counter() - start)
        viewer.close()
    viewer = Viewer(port, path)
    # The first pictures of a connection are slow for the X server's own reasons.
    viewer.picture(SCREEN)
    echo = []
    for _ in range(echoes):
        start = time.perf_counter()
        viewer.picture(PIXEL)
        echo.append(time.perf_counter() - start)
    moved, before, start = 0, machine.cpu_seconds(pid), time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        moved += viewer.picture(SCREEN)
    used = machine.cpu_seconds(pid) - before
    viewer.close()
    return {
        "connect_ms": statistics.median(connecting) * 1000,
        "echo_ms": statistics.median(echo) * 1000,
        "mib_per_second": moved / elapsed / 2**20,
        "cpu_ms_per_gib": used * 1000 / (moved / 2**30),
    }


def shown_the_same(bridge: tuple[int, str, int], crowd: int, point: tuple[int, int], colour: bytes, draw) -> dict:
    """How many of so many viewers at once are told of a change, and have the same picture before and after it."""
    port, path, _ = bridge
    viewers = [Viewer(port, path) for _ in range(crowd)]
    before = settled(viewers)
    for viewer in viewers:
        viewer.ask_for_changes()
    draw()
    for viewer in viewers:
        viewer.wait_for_colour(point, colour)
    after = settled(viewers)
    for viewer in viewers:
        viewer.close()
    return {"viewers": crowd, "same_before": largest(before), "same_after": largest(after), "changed": before != after}


def settled(viewers: list[Viewer]) -> list[int]:
    """What each sees of the whole screen once nothing is drawn any more."""
    deadline = time.monotonic() + SETTLES_WITHIN
    while True:
        for viewer in viewers:
            viewer.send(SCREEN)
        seen = [viewer.screen() for viewer in viewers]
        if len(set(seen)) == 1 or time.monotonic() > deadline:
            return seen


def largest(seen: list[int]) -> int:
    return max(seen.count(each) for each in set(seen))


def memory_of(bridge: tuple[int, str, int], crowd: int) -> dict:
    """What so many viewers at once add, each of whom was shown the whole screen."""
    port, path, pid = bridge
    before, processes = proportional_mib(pid), len(family(pid))
    viewers = [Viewer(port, path) for _ in range(crowd)]
    for viewer in viewers:
        viewer.picture(SCREEN)
    after, more = proportional_mib(pid), len(family(pid)) - processes
    for viewer in viewers:
        viewer.close()
    return {"memory_mib_alone": round(before, 1), "memory_mib_per_viewer": round((after - before) / crowd, 3), "processes_per_viewer": round(more / crowd, 2)}


def family(pid: int) -> list[int]:
    """A process and its children. Sandboxes are nobody's children here."""
    found = [pid]
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[1] == str(pid) and pid_is_bridge(int(path.parent.name), pid):
            found.append(int(path.parent.name))
    return found


def pid_is_bridge(child: int, parent: int) -> bool:
    """A fork of the same program, unlike a sandbox that a server has started."""
    try:
        return os.readlink(f"/proc/{child}/exe") == os.readlink(f"/proc/{parent}/exe")
    except OSError:
        return False


def proportional_mib(pid: int) -> float:
    total = 0
    for each in family(pid):
        try:
            text = pathlib.Path(f"/proc/{each}/smaps_rollup").read_text()
        except OSError:
            continue
        total += int(re.search(r"^Pss: +(\d+)", text, re.MULTILINE)[1])
    return total / 1024


def socket_of(data: pathlib.Path, job: str) -> str:
    """The X server's own socket, looked at from outside: websockify has the shorter way."""
    record = json.loads((data / "sandboxes" / job / "sandbox.json").read_text())
    return f"/proc/{record['pid']}/root/tmp/.bellglass/desktop/rfb"


class Websockify:
    """In a `with` statement, for the desktop of a job whose server keeps its data in the folder."""

    def __init__(self, folder: pathlib.Path, job: str):
        self.port, self.target = servers.free_port(), socket_of(folder / "data", job)
        self.log = folder / "websockify.log"

    def __enter__(self) -> "Websockify":
        program = pathlib.Path(sys.executable).with_name("websockify")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [str(program), f"--unix-target={self.target}", f"127.0.0.1:{self.port}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                Viewer(self.port, "/websockify").close()
                return self
            except OSError:
                time.sleep(0.05)
        raise SystemExit(f"bench: websockify did not start:\n{self.log.read_text()[-2000:]}")

    def __exit__(self, *_) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
