"""Requests per second of a durable `POST /schedule`, beside a FastAPI reference."""

import json
import os
import pathlib
import shutil
import signal
import sqlite3
import statistics
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import machine
import servers

HERE = pathlib.Path(__file__).resolve().parent
BODY = HERE / "body.json"
CONNECTIONS = 64
# Holds the only slot, so that what is scheduled afterwards waits and the worker stays idle.
BLOCKER = {"name": "blocker", "priority": 10, "steps": [{"tool": "shell", "command": "sleep 1h", "timeout": 7200}]}
PEERS = {
    "bellglass": "Bellglass",
    "reference": "FastAPI reference, one process",
    "reference_2_workers": "FastAPI reference, two processes",
    "reference_group": "FastAPI reference, one process, taught group commit",
}


def measure(binary: pathlib.Path, folder: pathlib.Path, smoke: bool) -> dict:
    rounds, warm_up, seconds, checked = (1, 0, 1, 64) if smoke else (5, 1, 5, 2000)
    samples: dict[str, list] = {name: [] for name in PEERS}
    for number in range(rounds):
        for name in PEERS:
            with serving(name, binary, folder / f"{name}-{number}") as subject:
                loads = [load(subject.server, duration) for duration in (warm_up, seconds) if duration]
                check_count(name, loads, subject.count())
            samples[name].append(loads[-1])
            print(f"schedule: round {number + 1} of {rounds}: {PEERS[name]}: {rate(loads[-1]):,.0f}/s", flush=True)
    for name in PEERS:
        check_ids(name, binary, folder / f"{name}-ids", checked)
    return {
        "rounds": rounds,
        "seconds_per_round": seconds,
        "connections": CONNECTIONS,
        "ids_looked_up_after_a_kill": checked,
        "peers": {name: summary(PEERS[name], samples[name]) for name in PEERS},
    }


def rate(sample: dict) -> float:
    return sample["requests"] / sample["duration_us"] * 1e6


def summary(label: str, samples: list[dict]) -> dict:
    rates = [rate(sample) for sample in samples]
    return {
        "label": label,
        "requests_per_second": round(statistics.median(rates), 1),
        "p50_ms": round(statistics.median(sample["p50_us"] for sample in samples) / 1000, 2),
        "p99_ms": round(statistics.median(sample["p99_us"] for sample in samples) / 1000, 2),
        "cpu_us": round(statistics.median(sample["cpu_us"] for sample in samples), 1),
        "each_round": [round(each, 1) for each in rates],
    }


def load(server: servers.Server, seconds: int) -> dict:
    command = [
        "wrk", "--threads", "1", "--connections", str(CONNECTIONS), "--duration", f"{seconds}s",
        "--timeout", "30s", "--script", str(HERE / "post.lua"), f"http://127.0.0.1:{server.port}/schedule",
    ]  # fmt: skip
    environment = {**os.environ, "BENCH_BODY": str(BODY)}
    before = machine.cpu_seconds(server.process.pid)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds + 60, check=False)
    if done.returncode != 0:
        raise SystemExit(f"bench: wrk failed: {done.stdout}{done.stderr}")
    sample = json.loads(done.stdout.strip().split("\n")[-1])
    used = machine.cpu_seconds(server.process.pid) - before
    return {**sample, "cpu_us": used / max(1, sample["requests"]) * 1e6}


def check_count(name: str, loads: list[dict], stored: int) -> None:
    """Every answered request is in the store. Those still on their way at the end may be too."""
    bad = sum(each["refused"] + each["broken"] for each in loads)
    answered = sum(each["requests"] for each in loads)
    if bad or not answered <= stored <= answered + CONNECTIONS * len(loads):
        raise SystemExit(f"bench: {name} answered {answered} requests, {bad} badly, and stored {stored}")


def check_ids(name: str, binary: pathlib.Path, folder: pathlib.Path, count: int) -> None:
    """Every id that was answered is found again after the server was killed without warning."""
    with serving(name, binary, folder) as subject:
        with ThreadPoolExecutor(16) as pool:
            parts = list(pool.map(lambda _: schedule_some(subject.server, count // 16), range(16)))
        ids = {job for part in parts for job in part}
        found = subject.ids_after_a_kill(ids)
    if len(ids) != count // 16 * 16 or not ids <= found:
        raise SystemExit(f"bench: {name} lost {len(ids - found)} of {len(ids)} jobs that it had accepted")


def schedule_some(server: servers.Server, count: int) -> list[str]:
    connection = server.connect()
    body = BODY.read_bytes()
    return [servers.schedule(connection, body) for _ in range(count)]


@contextmanager
def serving(name: str, binary: pathlib.Path, folder: pathlib.Path):
    """One server at a time, on an empty folder that is removed afterwards."""
    folder.mkdir()
    subject = Bellglass(binary, folder) if name == "bellglass" else Reference(name, folder)
    try:
        subject.begin()
        yield subject
    finally:
        subject.end()
        shutil.rmtree(folder)


class Bellglass:
    def __init__(self, binary: pathlib.Path, folder: pathlib.Path):
        self.binary, self.data = binary, folder / "data"
        self.server = self.start()

    def begin(self) -> None:
        connection = self.server.connect()
        blocker = servers.schedule(connection, json.dumps(BLOCKER).encode())
        servers.follow(connection, blocker, "step.started")

    def start(self) -> servers.Server:
        return servers.bellglass(self.binary, self.data, "--slots", "1").start()

    def count(self) -> int:
        """Jobs that wait in the store; the blocker is the one that runs."""
        _, text = self.server.get("/metrics")
        lines = text.decode().splitlines()
        jobs = dict(line.rsplit(" ", 1) for line in lines if line.startswith("bellglass_jobs{"))
        if jobs['bellglass_jobs{status="running"}'] != "1":
            raise SystemExit("bench: the queue moved while it was measured")
        return int(jobs['bellglass_jobs{status="scheduled"}'])

    def ids_after_a_kill(self, ids: set[str]) -> set[str]:
        self.server.stop(signal.SIGKILL)
        self.server = self.start()
        connection = self.server.connect()
        answers = ((job, servers.ask(connection, "GET", f"/status/{job}")) for job in ids)
        return {job for job, (status, body) in answers if status == 200 and json.loads(body)["job_id"] == job}

    def end(self) -> None:
        """Stops the server. The blocker's sandbox outlives it, as it should; with its job gone
        from the store, the next start removes it."""
        self.server.stop()
        for path in self.data.glob("bellglass.db*"):
            path.unlink()
        self.start().stop()
        if left := list((self.data / "sandboxes").iterdir()):
            raise SystemExit(f"bench: sandboxes were left over: {left}")


class Reference:
    def __init__(self, name: str, folder: pathlib.Path):
        self.database = folder / "reference.db"
        workers = 2 if name.endswith("2_workers") else 1
        commit = "group" if name.endswith("group") else "each"
        environment = {"REFERENCE_DB": str(self.database), "REFERENCE_COMMIT": commit}
        self.server = servers.uvicorn("schedule", folder / "log", workers, environment).start()

    def begin(self) -> None:
        pass

    def query(self, sql: str) -> list[tuple]:
        database = sqlite3.connect(self.database)
        try:
            return database.execute(sql).fetchall()
        finally:
            database.close()

    def count(self) -> int:
        return self.query("SELECT COUNT(*) FROM events")[0][0]

    def ids_after_a_kill(self, _ids: set[str]) -> set[str]:
        self.server.stop(signal.SIGKILL)
        return {job for (job,) in self.query("SELECT job FROM events")}

    def end(self) -> None:
        self.server.stop()
