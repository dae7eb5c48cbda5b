"""Starts and stops the servers that are measured. All listen on 127.0.0.1 and are stopped by pid."""

import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
READY_WITHIN = 30
STOP_WITHIN = 30


class Server:
    """A server process. In a `with` statement it is gone at the end, whatever happens."""

    def __init__(self, command: list[str], log: pathlib.Path, environment: dict[str, str] | None = None):
        self.port = free_port()
        self.log = log
        self.command = [word.replace("{port}", str(self.port)) for word in command]
        self.environment = {**os.environ, **(environment or {})}

    def start(self) -> "Server":
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __enter__(self) -> "Server":
        return self.start()

    def __exit__(self, *_) -> None:
        self.stop()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_WITHIN
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if self.get("/readyz")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.02)
        raise SystemExit(f"bench: {self.command[0]} did not start:\n{self.log.read_text()[-2000:]}")

    def stop(self, signal_number: int = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        try:
            self.process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.end_workers()

    def end_workers(self) -> None:
        """uvicorn's workers may outlive the process that started them; a sandbox may not be touched."""

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def get(self, path: str) -> tuple[int, bytes]:
        return ask(self.connect(), "GET", path)


class ServerWithWorkers(Server):
    def end_workers(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None):
    """One request; the connection can be used again afterwards."""
    headers = {"Content-Type": "application/json"} if body else {}
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response.status, response.read()


def bellglass(binary: pathlib.Path, data: pathlib.Path, *options: str) -> Server:
    command = [str(binary), "serve", "--listen", "127.0.0.1:{port}", "--data", str(data), *options]
    return Server(command, data.with_suffix(".log"), {"BELLGLASS_LOG": "warn"})


def uvicorn(folder: str, log: pathlib.Path, workers: int, environment: dict[str, str]) -> Server:
    """The FastAPI reference of a benchmark, with uvicorn's fast parts."""
    command = [
        sys.executable, "-m", "uvicorn", "reference:app", "--app-dir", str(HERE / folder),
        "--host", "127.0.0.1", "--port", "{port}", "--workers", str(workers),
        "--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning",
    ]  # fmt: skip
    return ServerWithWorkers(command, log, environment)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def schedule(connection: http.client.HTTPConnection, body: bytes) -> str:
    """Schedules a job and returns its id."""
    status, answer = ask(connection, "POST", "/schedule", body)
    if status != 202:
        raise SystemExit(f"bench: POST /schedule answered {status}: {answer[:500]!r}")
    return json.loads(answer)["job_id"]


def follow(connection: http.client.HTTPConnection, job: str, until: str, after: int = 0) -> dict:
    """Reads a job's live events until one of this kind, and returns it."""
    connection.request("GET", f"/jobs/{job}/events?after={after}")
    response = connection.getresponse()
    while line := response.readline():
        if line.startswith(b"data:"):
            event = json.loads(line[5:])
            if event["type"] == until:
                # The stream ends by itself after `finished`, and only then.
                if until == "finished":
                    response.read()
                else:
                    connection.close()
                return event
    raise SystemExit(f"bench: the events of {job} ended before `{until}`")
