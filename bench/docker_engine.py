"""A Docker engine of the benchmarks' own, and how programs are run that may not be there.

It has a network and a mount namespace of its own, so that the host's stay as they are and an engine that runs on the
host is left alone.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import time

STARTS_WITHIN = 60
IMAGE = "bench"


class Unavailable(Exception):
    """Why something cannot be measured here, in its own words."""


class DockerEngine:
    """In a `with` statement it is gone at the end, whatever happens. Its image has the root file system that it is
    given."""

    def __init__(self, rootfs: str, folder: pathlib.Path):
        self.rootfs, self.folder = os.path.realpath(rootfs), folder
        self.short = pathlib.Path(f"/run/bellglass-bench-{os.getpid()}-{folder.parent.name}-docker")
        self.client = ["docker", "--host", f"unix://{self.short}/docker.sock"]

    def __enter__(self) -> "DockerEngine":
        need("dockerd")
        need("docker")
        if os.geteuid() != 0:
            raise Unavailable("its engine needs root")
        self.folder.mkdir()
        # Sockets are put there, and a socket's path is limited to 108 bytes.
        self.short.mkdir()
        log = self.folder / "log"
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                [
                    "unshare", "--net", "--mount", "dockerd", "--data-root", str(self.folder / "data"),
                    "--exec-root", str(self.short / "exec"), "--pidfile", str(self.short / "pid"),
                    "--host", self.client[2], "--bridge", "none", "--iptables=false", "--ip6tables=false",
                ],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
        try:
            self.wait_until_ready(log)
            self.import_image()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        stop(self.process)
        shutil.rmtree(self.short, ignore_errors=True)

    def wait_until_ready(self, log: pathlib.Path) -> None:
        deadline = time.monotonic() + STARTS_WITHIN
        while subprocess.run([*self.client, "version"], capture_output=True, check=False).returncode != 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"dockerd does not start: {last_line(log.read_text())}")
            time.sleep(0.2)

    def import_image(self) -> None:
        print("bench: importing the root file system into docker", flush=True)
        packing = subprocess.Popen(["tar", "-C", self.rootfs, "-c", "."], stdout=subprocess.PIPE)
        imported = subprocess.run(
            [*self.client, "import", "-", IMAGE], stdin=packing.stdout, capture_output=True, text=True, check=False
        )
        packing.wait()
        if imported.returncode != 0:
            raise Unavailable(last_line(imported.stderr))

    def run(self, options: list[str], program: list[str]) -> list[str]:
        """The command that runs a program in a new container without a network."""
        return [*self.client, "run", "--rm", "--network", "none", *options, IMAGE, *program]


def need(program: str) -> None:
    if shutil.which(program) is None:
        raise Unavailable(f"{program} is not installed")


def run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise Unavailable("it did not answer within 120 s") from late
    except OSError as error:
        raise Unavailable(str(error)) from error
    if done.returncode != 0:
        raise Unavailable(last_line(done.stderr or done.stdout) or f"it ended with {done.returncode}")
    return done.stdout


def stop(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else ""
