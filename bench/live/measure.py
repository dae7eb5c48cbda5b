"""The desktop's bridge beside websockify, both to the same X server; events to many viewers; the page's weight."""

import gzip
import json
import os
import pathlib
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time

import machine
import servers
from viewer import PIXEL, SCREEN, Viewer

# Draws nothing, so that what is measured is the way and not the picture.
DESKTOP = {"name": "desktop", "desktop": {"width": 1280, "height": 800}, "steps": [{"tool": "shell", "command": "sleep 1h", "timeout": 7200}]}
PEERS = {"bellglass": "Bellglass", "websockify": "websockify"}


def measure(binary: pathlib.Path, folder: pathlib.Path, smoke: bool) -> dict:
    rounds, connects, echoes, seconds, crowd, viewers, events = (
        (1, 3, 20, 0.5, 5, 10, 4) if smoke else (5, 40, 1000, 3, 50, 200, 50)
    )
    with servers.bellglass(binary, folder / "data", "--slots", "2") as server:
        connection = server.connect()
        job = servers.schedule(connection, json.dumps(DESKTOP).encode())
        servers.follow(server.connect(), job, "step.started")
        with Websockify(folder, socket_of(folder / "data", job)) as peer:
            bridges = {
                "bellglass": (server.port, f"/jobs/{job}/desktop/websocket", server.process.pid),
                "websockify": (peer.port, "/websockify", peer.process.pid),
            }
            samples = {name: [] for name in PEERS}
            for number in range(rounds):
                for name, bridge in bridges.items():
                    sample = one_round(bridge, connects, echoes, seconds)
                    samples[name].append(sample)
                    print(f"live: round {number + 1} of {rounds}: {PEERS[name]}: {sample['mib_per_second']:,.0f} MiB/s", flush=True)
            memory = {name: memory_of(bridge, crowd) for name, bridge in bridges.items()}
        deliveries = {str(count): delivery(server, job, count, events) for count in sorted({1, viewers})}
        page = page_weight(server)
        servers.ask(server.connect(), "POST", f"/jobs/{job}/cancel")
        servers.follow(server.connect(), job, "finished")
    shutil.rmtree(folder / "data")
    return {
        "rounds": rounds,
        "crowd": crowd,
        "peers": {name: {"label": PEERS[name], **middle(samples[name]), **memory[name]} for name in PEERS},
        "delivery_ms": deliveries,
        "events": events,
        "page": page,
    }


def middle(samples: list[dict]) -> dict:
    return {key: round(statistics.median(sample[key] for sample in samples), 3) for key in samples[0]}


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


def delivery(server: servers.Server, job: str, viewers: int, events: int) -> dict:
    """From the request that brings an event about until each viewer has it. An even number of events leaves
    the job as it was."""
    newest = json.loads(server.get(f"/jobs/{job}")[1])["last_seq"]
    streams = []
    for _ in range(viewers):
        connection = server.connect()
        connection.request("GET", f"/jobs/{job}/events?after={newest}")
        streams.append(connection.getresponse().fp.raw._sock)
    for stream in streams:
        stream.setblocking(False)
    poller = select.epoll()
    for stream in streams:
        poller.register(stream.fileno(), select.EPOLLIN)
    by_number = {stream.fileno(): stream for stream in streams}
    steering = server.connect()
    times = []
    for turn in range(events):
        wish = "pause" if turn % 2 == 0 else "resume"
        word = b'"paused"' if wish == "pause" else b'"resumed"'
        waiting = {number: b"" for number in by_number}
        asked = threading.Thread(target=servers.ask, args=(steering, "POST", f"/jobs/{job}/{wish}"))
        start = time.perf_counter()
        asked.start()
        while waiting:
            ready = poller.poll(10)
            if not ready:
                raise SystemExit(f"bench: {len(waiting)} of {viewers} viewers did not hear of an event")
            for number, _ in ready:
                data = by_number[number].recv(1 << 16)
                now = time.perf_counter()
                if number in waiting:
                    waiting[number] += data
                    if word in waiting[number]:
                        times.append((now - start) * 1000)
                        del waiting[number]
        asked.join()
    for stream in streams:
        stream.close()
    times.sort()
    return {"p50": round(statistics.median(times), 2), "p99": round(times[int(len(times) * 0.99) - 1 if len(times) > 1 else 0], 2)}


def page_weight(server: servers.Server) -> dict:
    """What a browser loads before anything is chosen, as it comes over the wire."""
    def fetch(path: str) -> bytes:
        connection = server.connect()
        connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"bench: {path} answered {response.status}; run scripts/page.sh build first")
        return response.read()

    index = fetch("/")
    text = gzip.decompress(index) if index[:2] == b"\x1f\x8b" else index
    files = sorted(set(re.findall(r'(?:src|href)="(/assets/[^"]+)"', text.decode())))
    weights = {path: len(fetch(path)) for path in files}
    return {"kb": round((len(index) + sum(weights.values())) / 1000, 1), "requests": 1 + len(files)}


def socket_of(data: pathlib.Path, job: str) -> str:
    """The X server's own socket, looked at from outside: websockify has the shorter way."""
    record = json.loads((data / "sandboxes" / job / "sandbox.json").read_text())
    return f"/proc/{record['pid']}/root/tmp/.bellglass/desktop/rfb"


class Websockify:
    def __init__(self, folder: pathlib.Path, target: str):
        self.port, self.target, self.log = servers.free_port(), target, folder / "websockify.log"

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
