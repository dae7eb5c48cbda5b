"""What a checkpoint costs for a small change in a workspace of 10,000 files, beside other ways to keep it."""

import datetime
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import time

import servers

FOLDERS = 100
BYTES = 1024
MAKE = (
    "for d in $(seq -w {folders}); do mkdir d$d; for f in $(seq -w {files}); do "
    "head -c {bytes} /dev/zero | tr '\\0' x > d$d/$f; echo $d $f >> d$d/$f; done; done"
)
# Waits for its turn, so that the peers' turns come in between; the file that says so is gone afterwards.
CHANGE = "until [ -e go ]; do sleep 0.005; done; rm go; echo {n} > d{folder:03}/changed"


def measure(binary: pathlib.Path, folder: pathlib.Path, smoke: bool) -> dict:
    rounds, files = (3, 2) if smoke else (50, 100)
    make = MAKE.format(folders=f"{FOLDERS:03}", files=files, bytes=BYTES)
    subjects = {
        name: subject(folder / name, make)
        for name, subject in {"git": Git, "rsync": Rsync, "tar": Tar}.items()
        if shutil.which(name)
    }
    steps = [{"tool": "shell", "command": make}]
    steps += [{"tool": "shell", "command": CHANGE.format(n=n, folder=n % FOLDERS + 1)} for n in range(rounds)]
    with servers.bellglass(binary, folder / "data") as server:
        connection, uploads = server.connect(), server.connect()
        job = servers.schedule(connection, json.dumps({"steps": steps}).encode())
        first = follow_checkpoint(server, job, 1)
        ours = []
        for n in range(rounds):
            for subject in subjects.values():
                subject.turn(n)
            status, _ = servers.ask(uploads, "PUT", f"/jobs/{job}/files/go", b" ")
            if status != 204:
                raise SystemExit(f"bench: the workspace could not be written to: {status}")
            ours.append(follow_checkpoint(server, job, n + 2)["took_us"] / 1e6)
        finished = servers.follow(server.connect(), job, "finished")
        if finished["end"]["status"] != "completed" or finished["end"]["failed_steps"]:
            raise SystemExit(f"bench: the job ended as {finished['end']}")
        restored = time_of_fork(server, job, rounds + 1)
    label = "Bellglass: walked, compared, hashed, stored and flushed"
    peers = {"bellglass": {"label": label, "small_ms": spread(ours), "first_ms": spread([first["took_us"] / 1e6])}}
    for name, subject in subjects.items():
        times, begun = spread(subject.times), spread([subject.first])
        peers[name] = {"label": subject.label, "small_ms": times, "first_ms": begun}
    missing = [name for name in ("git", "rsync", "tar") if name not in subjects]
    return {
        "rounds": rounds,
        "files": FOLDERS * files,
        "peers": peers,
        "not_available_here": {name: "it is not installed" for name in missing},
        "restore_ms": round(restored * 1000, 1),
    }


def follow_checkpoint(server: servers.Server, job: str, step: int) -> dict:
    """The event of the checkpoint after a step."""
    connection = server.connect()
    connection.request("GET", f"/jobs/{job}/events")
    response = connection.getresponse()
    while line := response.readline():
        if line.startswith(b"data:"):
            event = json.loads(line[5:])
            if event["type"] == "checkpoint.stored" and event["step"] == step:
                connection.close()
                return event
            if event["type"] in ("checkpoint.skipped", "finished"):
                break
    raise SystemExit(f"bench: there was no checkpoint after step {step}")


def time_of_fork(server: servers.Server, job: str, step: int) -> float:
    """From a ready sandbox to all files in it, by the times in the event log of a fork."""
    body = json.dumps({"step": step, "steps": [{"tool": "shell", "command": "true"}]}).encode()
    status, answer = servers.ask(server.connect(), "POST", f"/jobs/{job}/fork", body)
    if status != 202:
        raise SystemExit(f"bench: the fork was answered {status}: {answer[:500]!r}")
    fork = json.loads(answer)["job_id"]
    servers.follow(server.connect(), fork, "finished")
    _, log = servers.ask(server.connect(), "GET", f"/jobs/{fork}/events?format=jsonl")
    events = {event["type"]: event for event in map(json.loads, log.splitlines())}
    return moment(events["workspace.restored"]) - moment(events["sandbox.ready"])


class Subject:
    """Another way to keep a workspace. It has one of its own, made by the same commands."""

    label = ""

    def __init__(self, folder: pathlib.Path, make: str):
        self.workspace, self.kept = folder / "workspace", folder / "kept"
        self.workspace.mkdir(parents=True)
        self.kept.mkdir()
        subprocess.run(["bash", "-c", make], cwd=self.workspace, check=True)
        self.times: list[float] = []
        self.prepare()
        self.first = self.timed()

    def prepare(self) -> None:
        pass

    def turn(self, n: int) -> None:
        (self.workspace / f"d{n % FOLDERS + 1:03}" / "changed").write_text(f"{n}\n")
        self.times.append(self.timed())

    def timed(self) -> float:
        start = time.perf_counter()
        for command in self.commands():
            subprocess.run(command, cwd=self.workspace, env=self.environment(), check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start

    def commands(self) -> list[list[str]]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return dict(os.environ)


class Git(Subject):
    label = "`git add -A && git commit` in a repository beside it, flushed"

    def prepare(self) -> None:
        subprocess.run(["git", "init", "--quiet"], cwd=self.workspace, env=self.environment(), check=True)

    def commands(self) -> list[list[str]]:
        # As durable as ours: what is said to be kept survives a power cut.
        flushed = ["git", "-c", "core.fsync=all", "-c", "core.fsyncMethod=fsync", "-c", "gc.auto=0"]
        return [[*flushed, "add", "-A"], [*flushed, "commit", "--quiet", "--allow-empty", "-m", "checkpoint"]]

    def environment(self) -> dict[str, str]:
        who = {"GIT_AUTHOR_NAME": "bench", "GIT_AUTHOR_EMAIL": "bench@localhost"}
        who |= {"GIT_COMMITTER_NAME": "bench", "GIT_COMMITTER_EMAIL": "bench@localhost"}
        places = {"GIT_DIR": str(self.kept / "repository"), "GIT_WORK_TREE": str(self.workspace)}
        return {**os.environ, **who, **places, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}


class Rsync(Subject):
    label = "`rsync -a --delete` to a copy, which keeps only the last state"

    def commands(self) -> list[list[str]]:
        return [["rsync", "-a", "--delete", f"{self.workspace}/", f"{self.kept}/copy/"]]


class Tar(Subject):
    label = "`tar` of everything, not flushed"

    def commands(self) -> list[list[str]]:
        return [["tar", "-cf", str(self.kept / "last.tar"), "."]]


def moment(event: dict) -> float:
    return datetime.datetime.fromisoformat(event["at"]).timestamp()


def spread(seconds: list[float]) -> dict:
    ordered = sorted(seconds)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return {"p50": round(statistics.median(ordered) * 1000, 2), "p95": round(p95 * 1000, 2)}
