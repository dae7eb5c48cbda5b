"""The peers of our sandbox: how each is set up, and the command that runs `echo hi` in it.

A peer that cannot run here is not dropped: it is kept with the words in which it failed.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess

from docker_engine import IMAGE, DockerEngine, Unavailable, need, run
from machine import prefix

PROGRAM = ["/bin/bash", "-c", "echo hi"]

# The same limits as a job's default ones.
MEMORY = 4 << 30
PROCESSES = 1104
CPUS = 2


class Peers:
    """In a `with` statement: what was set up is gone at the end, whatever happens."""

    def __init__(self, rootfs: str, folder: pathlib.Path, smoke: bool):
        # runc takes no path with a symlink in it.
        self.rootfs, self.folder, self.smoke = os.path.realpath(rootfs), folder, smoke
        self.starts: list[dict] = []
        self.execs: list[dict] = []
        self.labels: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self.endings = contextlib.ExitStack()

    def __enter__(self) -> "Peers":
        try:
            self.add("floor", "the floor: a C program with the same walls and nothing else", self.floor, in_bursts=True)
            self.add("bwrap", "bubblewrap (no limits, no overlay)", self.bubblewrap, in_bursts=True)
            self.add("bwrap limited", "bubblewrap, started in control groups with a job's limits (no overlay)",
                     self.limited_bubblewrap, in_bursts=True)  # fmt: skip
            for name, add in self.runtimes().items():
                if self.smoke:
                    self.missing[name] = "left out of a smoke run"
                else:
                    self.add(name, name, add, in_bursts=name in ("crun", "runc"))
        except BaseException:
            self.endings.close()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.endings.close()

    def runtimes(self) -> dict:
        return {
            "crun": lambda: self.oci("crun", ["crun"]),
            "runc": lambda: self.oci("runc", ["runc"]),
            "podman": self.podman,
            "runsc": lambda: self.oci("runsc", ["runsc", "--network=none", "--platform=systrap"]),
            "docker": self.docker,
        }

    def add(self, name: str, label: str, make, in_bursts: bool) -> None:
        try:
            command = make()
            said = run(prefix() + [word.replace("{n}", "trial") for word in command])
            if said != "hi\n":
                raise Unavailable(f"it said {said!r}")
        except Unavailable as why:
            self.missing[name] = str(why)
            return
        self.labels[name] = label
        self.starts.append({"name": name, "command": command, "in_bursts": in_bursts})

    def add_exec(self, name: str, command: list[str]) -> None:
        with contextlib.suppress(Unavailable):
            run(prefix() + command)
            self.execs.append({"name": f"{name} exec", "command": command})

    def floor_program(self) -> str:
        if os.geteuid() != 0:
            raise Unavailable("it needs root")
        source = pathlib.Path(__file__).with_name("floor.c")
        built = self.folder / "floor"
        if not built.exists():
            run(["cc", "-O2", "-static", "-o", str(built), str(source)])
        return str(built)

    def floor(self) -> list[str]:
        # A folder that its root may reach; what is mounted there is seen by nobody else.
        return [self.floor_program(), self.rootfs, "/tmp", *control_groups(), "--", *PROGRAM]

    def limited_bubblewrap(self) -> list[str]:
        """It sets no limits itself, so whoever wants some makes the groups and starts it in them."""
        return [self.floor_program(), "-", "-", *control_groups(), "--", *self.bubblewrap()]

    def bubblewrap(self) -> list[str]:
        need("bwrap")
        return [
            "bwrap", "--unshare-all", "--die-with-parent", "--new-session",
            "--ro-bind", self.rootfs, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
            "--uid", "1000", "--gid", "1000", *PROGRAM,
        ]  # fmt: skip

    def oci(self, name: str, runtime: list[str]) -> list[str]:
        """A runtime that takes an OCI bundle; read-only root, no network, the same limits."""
        need(name)
        bundle = self.folder / name
        bundle.mkdir()
        runtime = [*runtime, "--root", str(bundle / "state")]
        self.write_bundle(bundle, name, PROGRAM)
        sleeper = self.folder / f"{name}-sleeper"
        sleeper.mkdir()
        self.write_bundle(sleeper, f"{name}-sleeper", ["/bin/sleep", "3600"])
        identity = f"bench-{os.getpid()}-{name}"
        start = [*runtime, "run", "--detach", "--bundle", str(sleeper), identity]
        delete = [*runtime, "delete", "--force", identity]
        self.endings.callback(lambda: subprocess.run(prefix() + delete, capture_output=True, check=False))
        # A background process that keeps a pipe would be waited for.
        begun = subprocess.run(
            prefix() + start, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, timeout=60, check=False,
        )  # fmt: skip
        if begun.returncode == 0:
            self.add_exec(name, [*runtime, "exec", identity, "/bin/true"])
        return [*runtime, "run", "--bundle", str(bundle), f"bench-{os.getpid()}-{name}-{{n}}"]

    def write_bundle(self, folder: pathlib.Path, name: str, program: list[str]) -> None:
        run(["runc", "spec", "--bundle", str(folder)])
        path = folder / "config.json"
        spec = json.loads(path.read_text())
        spec["root"] = {"path": self.rootfs, "readonly": True}
        spec["process"].update(terminal=False, args=program, user={"uid": 1000, "gid": 1000})
        # Hard limits may be lower here than what a specification asks for by default.
        spec["process"].pop("rlimits", None)
        spec["linux"]["resources"] = {
            "memory": {"limit": MEMORY},
            "pids": {"limit": PROCESSES},
            "cpu": {"quota": CPUS * 100_000, "period": 100_000},
        }
        path.write_text(json.dumps(spec))

    def podman(self) -> list[str]:
        need("podman")
        base = [
            "podman", "--root", str(self.folder / "podman"), "--runroot", str(self.short_folder("podman")),
            "--runtime", "runc", "--cgroup-manager", "cgroupfs", "--storage-driver", "overlay",
        ]  # fmt: skip
        self.endings.callback(
            lambda: subprocess.run([*base, "system", "reset", "--force"], capture_output=True, check=False)
        )
        return [
            *base, "run", "--rm", "--network", "none", "--user", "1000:1000", "--log-driver", "none",
            "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096",
            "--memory", str(MEMORY), "--pids-limit", str(PROCESSES), "--cpus", str(CPUS),
            "--rootfs", f"{self.rootfs}:O", *PROGRAM,
        ]  # fmt: skip

    def short_folder(self, name: str) -> pathlib.Path:
        """Engines put sockets there, and podman takes no path of more than 50 bytes."""
        if os.geteuid() != 0:
            raise Unavailable("its engine needs root")
        folder = pathlib.Path(f"/run/bellglass-bench-{os.getpid()}-{name}")
        folder.mkdir()
        self.endings.callback(lambda: shutil.rmtree(folder, ignore_errors=True))
        return folder

    def docker(self) -> list[str]:
        engine = self.endings.enter_context(DockerEngine(self.rootfs, self.folder / "docker"))
        client = engine.client
        limits = ["--memory", str(MEMORY), "--pids-limit", str(PROCESSES), "--cpus", str(CPUS)]
        run([*client, "run", "--detach", "--name", "sleeper", "--network", "none", IMAGE, "sleep", "3600"])
        self.add_exec("docker", [*client, "exec", "sleeper", "/bin/true"])
        self.endings.callback(
            lambda: subprocess.run([*client, "rm", "--force", "sleeper"], capture_output=True, check=False)
        )
        return engine.run(["--user", "1000:1000", *limits], PROGRAM)


def control_groups() -> list[str]:
    """Where a sandbox's groups are made: one folder for each controller of version 1, or one of version 2."""
    own = {}
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            own[name] = path
    top = pathlib.Path("/sys/fs/cgroup")
    folders = [top / name / own.get(name, "/").lstrip("/") for name in ("memory", "pids", "cpu")]
    return [str(folder) for folder in folders if folder.is_dir()] or [str(top)]
