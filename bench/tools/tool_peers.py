"""The peers of the tools: how each is set up, and the command lines that the driver runs.

A peer that cannot run here is not dropped: it is kept with the words in which it failed.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

from machine import prefix

SIZE = "1280x800"
HERE = pathlib.Path(__file__).resolve().parent
STARTS_WITHIN = 120


class Peers:
    """In a `with` statement: what was set up is gone at the end, whatever happens."""

    def __init__(self, rootfs: str, folder: pathlib.Path, texts: dict, tree: str, pattern: str, smoke: bool):
        self.rootfs, self.folder, self.smoke = os.path.realpath(rootfs), folder, smoke
        self.texts, self.tree, self.pattern = texts, tree, pattern
        self.commands: dict[str, list[dict]] = {}
        self.speakers: dict[str, list[dict]] = {}
        self.missing: dict[str, str] = {}
        self.picture = folder / "picture.png"
        self.show_picture: list[str] = []
        self.endings = contextlib.ExitStack()

    def __enter__(self) -> "Peers":
        try:
            self.on_a_screen()
            self.other_desktop()
            self.shells()
            self.search()
        except BaseException:
            self.endings.close()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.endings.close()

    def lacks(self, *programs: str) -> bool:
        missing = [program for program in programs if shutil.which(program) is None]
        for program in missing:
            self.missing[program] = "not installed"
        return bool(missing)

    def on_a_screen(self) -> None:
        """A second screen on the host: the same X server with the same words, the same window manager."""
        if self.lacks("Xtigervnc", "openbox", "xdotool", "xterm"):
            return
        number = free_display()
        self.environment = {"DISPLAY": f":{number}"}
        self.run("Xtigervnc", f":{number}", "-geometry", SIZE, "-depth", "24", "-rfbunixpath",
                 str(self.folder / "screen"), "-rfbport", "-1", "-SecurityTypes", "None", "-AlwaysShared", "-ac",
                 "-nolisten", "tcp", "-nolisten", "local", "-noreset", "-extension", "GLX")  # fmt: skip
        self.wait_for(["xdotool", "getmouselocation"], "X server")
        self.run("openbox", "--sm-disable", "--config-file", self.configuration())
        # It loses windows that are shown while it starts.
        self.wait_for(["xdotool", "set_desktop", "0", "get_desktop"], "window manager")
        time.sleep(1)
        self.run("xterm", "-T", "typing", "-geometry", "80x5+0+600", "-e", f"stty -echo; cat > {self.folder}/theirs.txt")
        self.wait_for(["xdotool", "search", "--onlyvisible", "--name", "typing"], "terminal")
        plain, anything = self.texts["plain"], self.texts["any"]
        # A click on the terminal gives it the keyboard too.
        self.add("click", "xdotool", ["xdotool", "mousemove", "100", "630", "click", "--delay", "0", "1"])
        self.add("type", "xdotool", ["xdotool", "type", "--delay", "0", f"{plain}\n"])
        self.add("type any", "xdotool", ["xdotool", "type", "--delay", "0", f"{anything}\n"])
        if not self.lacks("scrot"):
            self.add("screenshot", "scrot", ["scrot", "--overwrite", str(self.folder / "scrot.png")])
        if not self.lacks("import", "display"):
            self.add("screenshot", "import", ["import", "-window", "root", str(self.folder / "import.png")])
            # Where both screens show the same, both pictures cost the same.
            self.show_picture = ["env", f"DISPLAY=:{number}", "display", "-window", "root", str(self.picture)]

    def typed(self) -> list[str]:
        path = self.folder / "theirs.txt"
        return path.read_text(errors="replace").splitlines() if path.exists() else []

    def other_desktop(self) -> None:
        if self.lacks("Xvfb", "x11vnc", "openbox"):
            return
        alone = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
        command = [*alone, sys.executable, str(HERE / "desktop_peer.py"), str(free_display()), SIZE, self.configuration()]
        self.speakers["desktop"] = [{"name": "Xvfb + x11vnc", "command": command}]

    def configuration(self) -> str:
        return f"{self.rootfs}/etc/xdg/openbox/rc.xml"

    def shells(self) -> None:
        command = [sys.executable, str(HERE / "swerex_peer.py")]
        self.speakers["shell"] = [{"name": "SWE-ReX", "command": command}]
        if self.smoke:
            self.missing["crun"] = "left out of a smoke run"
        elif not self.lacks("crun", "runc"):
            try:
                self.crun()
            except RuntimeError as why:
                self.missing["crun"] = str(why)

    def crun(self) -> None:
        bundle = self.folder / "crun"
        bundle.mkdir()
        subprocess.run(["runc", "spec", "--bundle", str(bundle)], check=True)
        path = bundle / "config.json"
        spec = json.loads(path.read_text())
        spec["root"] = {"path": self.rootfs, "readonly": True}
        spec["process"].update(terminal=False, args=["/bin/sleep", "3600"], user={"uid": 1000, "gid": 1000})
        spec["process"].pop("rlimits", None)
        path.write_text(json.dumps(spec))
        runtime = ["crun", "--root", str(bundle / "state")]
        name = f"bench-{os.getpid()}-tools"
        self.endings.callback(
            lambda: subprocess.run(prefix() + [*runtime, "delete", "--force", name], capture_output=True, check=False)
        )
        # What stays in the background must keep no pipe, or it would be waited for.
        with open(bundle / "words", "w+") as words:
            begun = subprocess.run(
                prefix() + [*runtime, "run", "--detach", "--bundle", str(bundle), name],
                stdin=subprocess.DEVNULL, stdout=words, stderr=words, check=False,
            )  # fmt: skip
            words.seek(0)
            if begun.returncode != 0:
                raise RuntimeError((words.read().strip().splitlines() or ["it does not start"])[-1])
        self.add("shell", "crun exec", [*runtime, "exec", name, "/bin/bash", "-c", "true"])

    def search(self) -> None:
        if self.lacks("rg"):
            return
        copy = self.folder / "tree"
        shutil.copytree(self.rootfs + self.tree, copy, symlinks=True)
        command = ["rg", "--hidden", "--line-number", "--no-heading", "--with-filename", "--sort", "none", self.pattern, "."]
        self.add("search", "ripgrep", command, folder=copy)

    def add(self, what: str, name: str, command: list[str], folder: pathlib.Path | None = None) -> None:
        peer = {"name": name, "command": command, "environment": getattr(self, "environment", {})}
        if folder is not None:
            peer["folder"] = str(folder)
        self.commands.setdefault(what, []).append(peer)

    def wait_for(self, command: list[str], what: str) -> None:
        """Until a command says that something is there."""
        deadline = time.monotonic() + STARTS_WITHIN
        while True:
            asked = subprocess.run(command, env=os.environ | self.environment, capture_output=True, text=True, check=False)
            if asked.returncode == 0:
                return
            if time.monotonic() > deadline:
                words = (self.folder / "peers.log").read_text(errors="replace")[-1000:]
                raise SystemExit(f"bench: the peers' {what} did not start: {asked.stderr}{words}")
            time.sleep(0.05)

    def run(self, *command: str) -> None:
        with open(self.folder / "peers.log", "ab") as log:
            process = subprocess.Popen(
                command, env=os.environ | self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.endings.callback(lambda: (process.terminate(), process.wait()))


def free_display() -> int:
    taken = {path.name for path in pathlib.Path("/tmp/.X11-unix").glob("X*")}
    number = next(number for number in range(90, 1000) if f"X{number}" not in taken and number not in given)
    given.add(number)
    return number


given: set[int] = set()
