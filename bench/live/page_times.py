"""What somebody who looks at the page waits for, measured inside a real browser."""

import bisect
import contextlib
import datetime
import http.server
import json
import pathlib
import statistics
import threading
import time

import servers
from bridges import Websockify
from browser import Browser, Window

SCRIPT = pathlib.Path(__file__).with_name("in_page.js").read_text()
# What there must be at the least: a box and a button that is usable once something is written.
PLAIN = (
    "<!doctype html><title>plain</title><link rel='icon' href='data:,'><section aria-label='New job'><textarea></textarea>"
    "<button class='primary' disabled>Run</button></section>"
    "<script>document.querySelector('textarea').oninput = (event) => "
    "{ document.querySelector('button').disabled = event.target.value === '' }</script>"
)
# A little longer or shorter each time, so that it does not fall into step with the browser's frames.
PAUSE = "sleep 0.1$((RANDOM % 10))"
TICKS = f"for n in $(seq 480); do echo tick $n $EPOCHREALTIME; {PAUSE}; done"
# The terminal's own colours, from 1 on.
COLOURS = [[205, 0, 0], [0, 205, 0], [205, 205, 0], [0, 0, 238], [205, 0, 205], [0, 205, 205]]
POINT = [200, 200]
FLIPS = f"""cat > flip.sh <<'END'
for n in $(seq 9999); do
    echo $n $EPOCHREALTIME >> flips
    printf '\\e[4%dm\\e[2J' $((n % {len(COLOURS)} + 1))
    {PAUSE}
done
END
exec xterm -geometry 200x60+0+0 -e bash flip.sh"""
# The browser says when something was to the tenth of a millisecond, and asking it takes a moment too.
MOST_SKEW_MS = 1


def interactive(browser: Browser, server: servers.Server, runs: int) -> tuple[dict, set[str]]:
    """From the navigation until a letter that was typed has had an effect and was drawn, for somebody who was never
    here and for somebody who comes again; and which files of the page that took."""
    times = {visit: {"bellglass": [], "plain": []} for visit in ("first visit", "next visit")}
    with plain_page() as plain:
        for _ in range(runs):
            for name, address in {"bellglass": f"http://localhost:{server.port}/", "plain": plain}.items():
                with browser.visitor() as window:
                    for each in times.values():
                        window.open(address, f"{SCRIPT} bench.answer = bench.interactive();")
                        each[name].append(window.evaluate("bench.answer"))
                    if name == "bellglass":
                        loaded = window.evaluate("performance.getEntriesByType('resource').map(({ name }) => new URL(name).pathname)")
    return times, {path for path in loaded if path.startswith("/assets/")}


def events(browser: Browser, server: servers.Server, rounds: int, count: int) -> dict:
    """From an event's time in the log, and from the program that wrote what it tells of, until a browser has drawn it."""
    times = {what: {"bellglass": [], "bare": []} for what in ("event", "print")}
    for _ in range(rounds):
        with running(server, {"name": "ticks", "steps": [{"tool": "shell", "command": TICKS}]}) as job:
            log = f"/jobs/{job}/events"
            ways = {
                "bellglass": (f"/watch/{job}", f"bench.answer = bench.ticks('[data-output]', {count});"),
                "bare": ("/healthz", f"bench.bare('{log}'); bench.answer = bench.ticks('pre', {count});"),
            }
            found = {}
            for name, (path, script) in ways.items():
                with browser.visitor() as window:
                    window.open(f"http://localhost:{server.port}{path}", f"{SCRIPT} {script}")
                    found[name] = window.evaluate("bench.answer")
                    check_clock(window)
            _, lines = servers.ask(server.connect(), "GET", f"{log}?format=jsonl")
        causes = tick_causes(map(json.loads, lines.splitlines()))
        for name, seen in found.items():
            for n, at in seen.items():
                recorded, printed = causes[int(n)]
                times["event"][name].append(at - recorded)
                times["print"][name].append(at - printed)
    return times


def desktop(browser: Browser, server: servers.Server, folder: pathlib.Path, rounds: int, count: int) -> dict:
    """From before a program of the sandbox draws until the page's picture of the desktop shows it, beside the same page
    over websockify."""
    times = {"bellglass": [], "websockify": []}
    task = {"name": "flips", "desktop": {"width": 1280, "height": 800}, "steps": [{"tool": "shell", "command": FLIPS, "timeout": 7200}]}
    with running(server, task) as job, Websockify(folder, job) as peer:
        look = f"bench.answer = bench.flips({COLOURS}, {POINT}, {count});"
        ways = {"bellglass": look, "websockify": f"bench.throughBridge('ws://127.0.0.1:{peer.port}/websockify'); {look}"}
        found = {name: [] for name in ways}
        for _ in range(rounds):
            for name, script in ways.items():
                with browser.visitor() as window:
                    # The page itself lets nobody connect to anywhere else.
                    window.call("Page.setBypassCSP", enabled=True)
                    window.open(f"http://localhost:{server.port}/jobs/{job}/desktop/", f"{SCRIPT} {script}")
                    # The first is what was there before.
                    found[name] += window.evaluate("bench.answer")[1:]
                    check_clock(window)
        _, lines = servers.ask(server.connect(), "GET", f"/jobs/{job}/files/flips")
    drawn = {colour: [] for colour in range(len(COLOURS))}
    for number, moment in (line.split() for line in lines.decode().splitlines()):
        drawn[int(number) % len(COLOURS)].append(float(moment) * 1000)
    for name, seen in found.items():
        for each in seen:
            # The last time that it was drawn in this colour; the next such time is far away.
            before = bisect.bisect(drawn[each["colour"]], each["at"])
            times[name].append(each["at"] - drawn[each["colour"]][before - 1])
    return times


def tick_causes(log) -> dict[int, tuple[float, float]]:
    """For each numbered line: when its event was recorded, and when it was printed."""
    causes = {}
    for event in log:
        if event["type"] == "step.output":
            recorded = datetime.datetime.fromisoformat(event["at"]).timestamp() * 1000
            for line in event["text"].splitlines():
                _, number, printed = line.split()
                causes[int(number)] = (recorded, float(printed) * 1000)
    return causes


def check_clock(window: Window) -> None:
    """The browser's clock must be the one that events are stamped with."""
    before = time.time() * 1000
    there = window.evaluate("bench.now()")
    after = time.time() * 1000
    if not before - MOST_SKEW_MS <= there <= after + MOST_SKEW_MS:
        raise SystemExit(f"bench: the browser's clock is {there - (before + after) / 2:.1f} ms off")


@contextlib.contextmanager
def running(server: servers.Server, task: dict):
    """A job that is at work, and cancelled in the end."""
    job = servers.schedule(server.connect(), json.dumps(task).encode())
    try:
        servers.follow(server.connect(), job, "step.started")
        yield job
    finally:
        servers.ask(server.connect(), "POST", f"/jobs/{job}/cancel")
        servers.follow(server.connect(), job, "finished")


@contextlib.contextmanager
def plain_page():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = PLAIN.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield f"http://localhost:{listener.server_port}/"
        listener.shutdown()


def spread(milliseconds: list[float]) -> dict:
    ordered = sorted(milliseconds)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return {"p50": round(statistics.median(ordered), 2), "p95": round(p95, 2)}
