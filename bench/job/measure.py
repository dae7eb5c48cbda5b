"""Time from `POST /schedule` of a one-step job to `completed` with its ZIP ready, beside peers."""

import contextlib
import datetime
import io
import json
import pathlib
import statistics
import subprocess
import tempfile
import time
import zipfile

import servers
from cage import bwrap
from docker_engine import DockerEngine, Unavailable, run
from machine import busy_otherwise

COMMAND = "echo hi"
JOB = json.dumps({"steps": [{"tool": "shell", "command": COMMAND}]}).encode()


def measure(binary: pathlib.Path, folder: pathlib.Path, smoke: bool) -> dict:
    runs, warm_up = (3, 1) if smoke else (200, 10)
    rootfs = image_rootfs(binary)
    busy = [busy_otherwise(smoke)]
    naive = servers.uvicorn(
        "job", folder / "naive.log", 1, {"REFERENCE_ROOTFS": rootfs, "REFERENCE_WORK": str(folder)}
    )
    with contextlib.ExitStack() as endings:
        # Before anything else, because the root file system is imported for it.
        container, why_not = None, "left out of a smoke run"
        if not smoke:
            try:
                container = Container(endings.enter_context(DockerEngine(rootfs, folder / "docker")))
            except Unavailable as unavailable:
                why_not = str(unavailable)
        server = endings.enter_context(servers.bellglass(binary, folder / "data"))
        endings.enter_context(naive)
        subjects = {
            "bellglass": ("Bellglass: scheduled, run, packed, recorded", BellglassJob(server)),
            "naive": ("FastAPI that runs `bwrap` and zips the folder", NaiveJob(naive)),
            "bwrap": ("`bwrap` alone: no server, no record, no ZIP", BareSandbox(rootfs, folder)),
        }
        if container:
            subjects["container"] = ("`docker run` alone: no record, no ZIP", container)
        # One of each in turn, so that whatever disturbs the machine disturbs all of them.
        for number in range(warm_up + runs):
            for _, subject in subjects.values():
                subject.run(keep=number >= warm_up)
            if number % 50 == 49:
                print(f"job: {number + 1} of {warm_up + runs} rounds", flush=True)
        timeline = subjects["bellglass"][1].timeline()
    busy.append(busy_otherwise(smoke))
    return {
        "runs": runs,
        "cores_busy_otherwise": max(busy),
        "command": COMMAND,
        "peers": {name: subject.summary(label) for name, (label, subject) in subjects.items()},
        "not_available_here": {} if container else {"docker": why_not},
        "timeline": timeline,
    }


def image_rootfs(binary: pathlib.Path) -> str:
    done = subprocess.run([binary, "image", "inspect", "base", "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"bench: there is no image; build it with `{binary.name} image build`\n{done.stderr}")
    return json.loads(done.stdout)["rootfs"]


class Subject:
    """Something that runs the command, again and again. Times are in seconds."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    def run(self, keep: bool) -> None:
        for name, seconds in self.timed().items():
            if keep:
                self.times.setdefault(name, []).append(seconds)

    def timed(self) -> dict[str, float]:
        raise NotImplementedError

    def summary(self, label: str) -> dict:
        return {"label": label, **{name: spread(times) for name, times in self.times.items()}}


class BellglassJob(Subject):
    def __init__(self, server: servers.Server):
        super().__init__()
        self.connection = server.connect()
        self.logs: list[list[dict]] = []

    def timed(self) -> dict[str, float]:
        start = time.perf_counter()
        job = servers.schedule(self.connection, JOB)
        finished = servers.follow(self.connection, job, "finished")
        done = time.perf_counter()
        status, archive = servers.ask(self.connection, "GET", f"/jobs/{job}/output.zip")
        downloaded = time.perf_counter()
        if finished["end"]["status"] != "completed" or status != 200:
            raise SystemExit(f"bench: the job ended as {finished['end']}, its ZIP as {status}")
        check_zip(archive)
        _, log = servers.ask(self.connection, "GET", f"/jobs/{job}/events?format=jsonl")
        self.logs.append([json.loads(line) for line in log.splitlines()])
        return {"done_ms": done - start, "downloaded_ms": downloaded - start}

    def timeline(self) -> list[dict]:
        """Median time from each event to the next, and the step's duration as the guest saw it."""
        gaps: dict[tuple[str, str], list[float]] = {}
        for log in self.logs[len(self.logs) - len(self.times["done_ms"]) :]:
            # Live output is an event too when it comes early enough; not every job has it.
            log = [event for event in log if event["type"] != "step.output"]
            for before, after in zip(log, log[1:]):
                gaps.setdefault((before["type"], after["type"]), []).append(moment(after) - moment(before))
                if after["type"] == "step.finished":
                    duration = after["outcome"]["duration_ms"] / 1000
                    gaps.setdefault(("step", "as measured inside"), []).append(duration)
        return [{"from": a, "to": b, **spread(times)} for (a, b), times in gaps.items()]


class NaiveJob(Subject):
    def __init__(self, server: servers.Server):
        super().__init__()
        self.connection = server.connect()

    def timed(self) -> dict[str, float]:
        body = json.dumps({"command": COMMAND}).encode()
        start = time.perf_counter()
        status, answer = servers.ask(self.connection, "POST", "/run", body)
        done = time.perf_counter()
        answer = json.loads(answer)
        if status != 200 or answer["exit_code"] != 0:
            raise SystemExit(f"bench: the reference answered {status}: {answer}")
        _, archive = servers.ask(self.connection, "GET", answer["download_url"])
        downloaded = time.perf_counter()
        check_zip(archive)
        return {"done_ms": done - start, "downloaded_ms": downloaded - start}


class Program(Subject):
    """A command whose output is the word we expect."""

    def timed(self) -> dict[str, float]:
        command = self.command()
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        end = time.perf_counter()
        if done.stdout != "hi\n":
            raise SystemExit(f"bench: {command[0]} failed: {done.stdout}{done.stderr}")
        return {"done_ms": end - start}

    def command(self) -> list[str]:
        raise NotImplementedError


class BareSandbox(Program):
    def __init__(self, rootfs: str, folder: pathlib.Path):
        super().__init__()
        self.rootfs, self.folder = rootfs, folder

    def command(self) -> list[str]:
        return bwrap(self.rootfs, tempfile.mkdtemp(dir=self.folder), COMMAND)


class Container(Program):
    def __init__(self, engine: DockerEngine):
        super().__init__()
        self.engine = engine
        run(self.command())

    def command(self) -> list[str]:
        return self.engine.run(["--user", "1000:1000"], ["bash", "-c", COMMAND])


def check_zip(archive: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        if opened.testzip() is not None or b"hi" not in opened.read("agent.log"):
            raise SystemExit("bench: the ZIP is not what it should be")


def moment(event: dict) -> float:
    return datetime.datetime.fromisoformat(event["at"]).timestamp()


def spread(seconds: list[float]) -> dict:
    ordered = sorted(seconds)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return {"p50": round(statistics.median(ordered) * 1000, 2), "p95": round(p95 * 1000, 2)}
