"""Watching: the desktop's bridge beside websockify, events to many viewers, and the page in a browser."""

import gzip
import json
import pathlib
import re
import select
import shutil
import statistics
import threading
import time

import page_times
import servers
from bridges import PEERS, Websockify, memory_of, one_round, shown_the_same
from browser import Browser
from machine import busy_otherwise

# Draws nothing until it is told to, so that what is measured is the way and not the picture.
DRAW = "until [ -e draw ]; do sleep 1; done; exec xterm -bg '#ff0000' -geometry 200x60+0+0 -e sleep 2h"
DESKTOP = {"name": "desktop", "desktop": {"width": 1280, "height": 800}, "steps": [{"tool": "shell", "command": DRAW, "timeout": 7200}]}
POINT, RED = (200, 200), bytes([0, 0, 255])
FULL = {
    "rounds": 5, "connects": 40, "echoes": 1000, "seconds": 3, "crowd": 50, "viewers": 200, "events": 50,
    "visits": 20, "page_events": 40, "page_flips": 40,
}  # fmt: skip
SMOKE = {
    "rounds": 1, "connects": 3, "echoes": 20, "seconds": 0.3, "crowd": 5, "viewers": 10, "events": 4,
    "visits": 1, "page_events": 3, "page_flips": 4,
}  # fmt: skip


def measure(binary: pathlib.Path, folder: pathlib.Path, smoke: bool) -> dict:
    plan = SMOKE if smoke else FULL
    busy = [busy_otherwise(smoke)]
    with servers.bellglass(binary, folder / "data", "--slots", "2") as server:
        with page_times.running(server, DESKTOP) as job:
            peers, crowd = bridges(server, folder, job, plan)
            deliveries = {str(count): delivery(server, job, count, plan["events"]) for count in sorted({1, plan["viewers"]})}
        with Browser(folder / "chromium") as browser:
            print("live: in a browser", flush=True)
            ready, files = page_times.interactive(browser, server, plan["visits"])
            drawn = page_times.events(browser, server, plan["rounds"], plan["page_events"])
            drawn["desktop"] = page_times.desktop(browser, server, folder, plan["rounds"], plan["page_flips"])
            version = browser.version
        page = page_weight(server, files)
    shutil.rmtree(folder / "data")
    busy.append(busy_otherwise(smoke))
    return {
        "rounds": plan["rounds"],
        "cores_busy_otherwise": max(busy),
        "peers": peers,
        "crowd": crowd,
        "delivery_ms": deliveries,
        "events": plan["events"],
        "page": page,
        "browser": version,
        "visits": plan["visits"],
        "in_browser_ms": {
            what: {who: {"count": len(times), **page_times.spread(times)} for who, times in each.items()}
            for what, each in {**ready, **drawn}.items()
        },
    }


def bridges(server: servers.Server, folder: pathlib.Path, job: str, plan: dict) -> tuple[dict, dict]:
    """What each way to the desktop is like, and whether a crowd that takes ours is shown the same."""
    with Websockify(folder, job) as peer:
        ways = {
            "bellglass": (server.port, f"/jobs/{job}/desktop/websocket", server.process.pid),
            "websockify": (peer.port, "/websockify", peer.process.pid),
        }
        samples = {name: [] for name in PEERS}
        for number in range(plan["rounds"]):
            for name, way in ways.items():
                sample = one_round(way, plan["connects"], plan["echoes"], plan["seconds"])
                samples[name].append(sample)
                print(f"live: round {number + 1} of {plan['rounds']}: {PEERS[name]}: {sample['mib_per_second']:,.0f} MiB/s", flush=True)
        memory = {name: memory_of(way, plan["crowd"]) for name, way in ways.items()}

    def draw() -> None:
        status, answer = servers.ask(server.connect(), "PUT", f"/jobs/{job}/files/draw", b" ")
        if status != 204:
            raise SystemExit(f"bench: the workspace could not be written to: {status} {answer[:500]!r}")

    crowd = shown_the_same(ways["bellglass"], plan["crowd"], POINT, RED, draw)
    return {name: {"label": PEERS[name], **middle(samples[name]), **memory[name]} for name in PEERS}, crowd


def middle(samples: list[dict]) -> dict:
    return {key: round(statistics.median(sample[key] for sample in samples), 3) for key in samples[0]}


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


def page_weight(server: servers.Server, loaded: set[str]) -> dict:
    """What a browser loads before anything is chosen, as it comes over the wire: what the page names, and what a
    browser that showed it has loaded besides."""
    def fetch(path: str) -> bytes:
        connection = server.connect()
        connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"bench: {path} answered {response.status}; run scripts/page.sh build first")
        return response.read()

    index = fetch("/")
    text = gzip.decompress(index) if index[:2] == b"\x1f\x8b" else index
    files = sorted(loaded | set(re.findall(r'(?:src|href)="(/assets/[^"]+)"', text.decode())))
    weights = {path: len(fetch(path)) for path in files}
    return {"kb": round((len(index) + sum(weights.values())) / 1000, 1), "requests": 1 + len(files)}
