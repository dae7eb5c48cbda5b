"""The virtual machine's host as the trials use it: control groups, users, and servers that are started in them."""

import contextlib
import ctypes
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request

GROUPS = pathlib.Path("/sys/fs/cgroup")
BELLGLASS = "/trial/bellglass"
ROOT, USER = 0, 1000
# Everything takes twenty times as long here as on a real processor.
PATIENCE = 300


class Place:
    """Where a program is started: in which control group, and as which user."""

    def __init__(self, group: str, user: int = ROOT, is_container: bool = False):
        self.group, self.user, self.is_container = GROUPS / group, user, is_container

    def prepare(self) -> pathlib.Path:
        """The group that a program is about to be started in."""
        return self.group

    def start(self, *arguments: str, **options) -> subprocess.Popen:
        group = self.prepare()

        def become():
            (group / "cgroup.procs").write_text("0")
            if self.is_container:
                see_no_groups_but_those_below()
            if self.user != ROOT:
                os.setgroups([])
                os.setresgid(self.user, self.user, self.user)
                os.setresuid(self.user, self.user, self.user)

        home = pathlib.Path(f"/run/home-{self.user}")
        home.mkdir(exist_ok=True)
        os.chown(home, self.user, self.user)
        # A plain user needs an image whose files are its own.
        images = "/disk/images" if self.user == ROOT else "/disk/images-of-user"
        environment = {"HOME": str(home), "PATH": os.environ["PATH"], "BELLGLASS_IMAGES": images,
                       "TMPDIR": "/tmp", "NO_COLOR": "1"}
        environment.update(options.pop("environment", {}))
        return subprocess.Popen([BELLGLASS, *arguments], preexec_fn=become, cwd=home, env=environment,
                                stdin=subprocess.DEVNULL, text=True, **options)

    def ask(self, *arguments: str) -> dict:
        """What a command answers in JSON, however it ends."""
        command = self.start(*arguments, "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        answer, errors = command.communicate(timeout=PATIENCE)
        try:
            return json.loads(answer)
        except ValueError:
            raise AssertionError(f"{arguments} said {answer!r} and {errors!r}") from None


class Service(Place):
    """A unit with `Delegate=yes` and `DelegateSubgroup=bellglass-server`: what is started again finds the groups of
    the sandboxes that it had, beside which systemd itself could put no process any more."""

    def prepare(self) -> pathlib.Path:
        leaf = self.group / "bellglass-server"
        leaf.mkdir(exist_ok=True)
        return leaf


class Scope(Place):
    """What `systemd-run --user --scope -p Delegate=yes` makes: another group each time, which is the user's."""

    made = 0

    def prepare(self) -> pathlib.Path:
        Scope.made += 1
        scope = self.group / f"run-{Scope.made}.scope"
        scope.mkdir()
        for path in [scope, *(scope / name for name in ["cgroup.procs", "cgroup.threads", "cgroup.subtree_control"])]:
            os.chown(path, self.user, self.user)
        os.setxattr(scope, "user.delegate", b"1")
        return scope


class Server:
    """`bellglass serve` at some place. In a `with` statement it is ended, and its jobs before it."""

    def __init__(self, place: Place, name: str):
        self.place, self.data, self.jobs = place, pathlib.Path("/run/data", name), []
        self.data.mkdir(parents=True)
        os.chown(self.data, place.user, place.user)
        self.log = open(f"/run/{name}.log", "ab")
        self.start()

    def start(self):
        self.process = self.place.start("serve", "--json", "--listen", "127.0.0.1:0", "--data", str(self.data),
                                        stdout=subprocess.PIPE, stderr=self.log)
        announced = self.process.stdout.readline()
        if not announced:
            raise AssertionError(f"the server did not start: {pathlib.Path(self.log.name).read_text()[-2000:]}")
        self.url = json.loads(announced)["listening"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for job in self.jobs:
            if self.process.poll() is None:
                self.cancel(job)
                self.wait(job)
        self.process.terminate()
        self.process.wait(PATIENCE)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def call(self, path: str, body=None, method: str | None = None) -> bytes:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method,
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()}") from None

    def submit(self, *steps: dict, **limits) -> str:
        self.jobs.append(json.loads(self.call("/schedule", {"steps": steps, "limits": limits}))["job_id"])
        return self.jobs[-1]

    def job(self, job: str) -> dict:
        return json.loads(self.call(f"/jobs/{job}"))

    def cancel(self, job: str):
        self.call(f"/jobs/{job}/cancel", b"")

    def events(self, job: str) -> list[dict]:
        """All events of a job to its end, which is waited for."""
        lines = self.call(f"/jobs/{job}/events?format=jsonl&follow=1").decode().splitlines()
        return [json.loads(line) for line in lines if line]

    def wait(self, job: str) -> dict:
        self.events(job)
        if job in self.jobs:
            self.jobs.remove(job)
        return self.job(job)

    def run(self, *steps: dict, **limits) -> dict:
        return self.wait(self.submit(*steps, **limits))

    def wait_for_step(self, job: str, number: int):
        """Until that step has said something."""
        def has_spoken():
            now = self.job(job)
            assert now["status"] in ("scheduled", "running"), f"{job} is {now['status']}: {now['error']}"
            steps = now["steps"]
            return len(steps) >= number and steps[number - 1].get("output_bytes", 0) > 0
        wait_until(has_spoken, f"step {number} of {job} says something")

    def let_go(self, job: str):
        """Ends a step that waits for it; again and again, since a new server finds the sandbox after a moment."""
        def put():
            try:
                self.call(f"/jobs/{job}/files/go", b"", "PUT")
                return True
            except AssertionError:
                return False
        wait_until(put, f"{job} takes a file")

    def guest(self, job: str) -> int:
        return json.loads((self.data / "sandboxes" / job / "sandbox.json").read_text())["pid"]

    def group(self, job: str) -> pathlib.Path:
        """The one group of a job's sandbox."""
        groups = json.loads((self.data / "sandboxes" / job / "sandbox.json").read_text())["groups"]
        assert len(groups) == 1, groups
        return pathlib.Path(groups[0])


def see_no_groups_but_those_below():
    """What makers of containers do: the group that this process is in becomes the root of all that it sees."""
    new_mounts, new_groups, recursive, private, detach = 0x20000, 0x2000000, 0x4000, 0x40000, 2
    libc = ctypes.CDLL(None, use_errno=True)
    where = str(GROUPS).encode()
    for answer in [libc.unshare(new_mounts | new_groups),
                   libc.mount(None, b"/", None, ctypes.c_ulong(recursive | private), None),
                   libc.umount2(where, detach),
                   libc.mount(b"cgroup2", where, b"cgroup2", ctypes.c_ulong(0), None)]:
        if answer != 0:
            raise OSError(ctypes.get_errno(), "the groups of a container could not be made")


def shell(command: str, **fields) -> dict:
    return {"tool": "shell", "command": command, **fields}


def python(code: str, **fields) -> dict:
    return {"tool": "python", "fresh": True, "code": code, **fields}


def waits() -> dict:
    """A step that lasts until it is let go."""
    return shell("echo waiting; until [ -e go ]; do sleep 0.1; done; rm go")


def wait_until(is_so, words: str):
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            raise AssertionError(f"it never came that {words}")
        time.sleep(0.1)


def number(group: pathlib.Path, file: str, field: str | None = None) -> int:
    """What a file of a group holds, or the line of it that a field's name begins."""
    text = (group / file).read_text()
    return int(text if field is None else re.search(rf"^{field} (\d+)$", text, re.MULTILINE)[1])


def members(group: pathlib.Path) -> list[int]:
    return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]


def groups_of_sandboxes() -> list[str]:
    """Every group below one of ours for sandboxes, anywhere on the host."""
    return sorted(str(path) for path in GROUPS.rglob("bellglass/*") if path.is_dir())


@contextlib.contextmanager
def somebody_in(group: pathlib.Path):
    """A process that is there for nothing but to be in the way."""
    with subprocess.Popen(["sleep", "10000"]) as somebody:
        (group / "cgroup.procs").write_text(str(somebody.pid))
        try:
            yield somebody.pid
        finally:
            somebody.kill()


def kill(pid: int):
    os.kill(pid, signal.SIGKILL)
