"""Xvfb, x11vnc and openbox as a peer: from nothing until a viewer is greeted and the window manager is ready.

Everything is started as early as it can be. Each line of the input is a wish for one such desktop.
"""

import contextlib
import json
import pathlib
import socket
import subprocess
import sys
import time

import Xlib.display
import Xlib.error

PATIENCE = 30
BETWEEN_TRIES = 0.001


def main(number: str, size: str, configuration: str, folder: pathlib.Path) -> None:
    print("{}", flush=True)
    for _ in sys.stdin:
        try:
            figures = start(number, size, configuration, folder)
        except (OSError, RuntimeError) as error:
            figures = {"error": str(error)}
        print(json.dumps(figures), flush=True)


def start(number: str, size: str, configuration: str, folder: pathlib.Path) -> dict:
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    name, rfb = f":{number}", folder / "rfb"
    with contextlib.ExitStack() as endings:

        def run(*command: str) -> None:
            process = subprocess.Popen(command, **quiet)
            endings.callback(lambda: (process.terminate(), process.wait()))

        began = time.perf_counter()
        run("Xvfb", name, "-screen", "0", f"{size}x24", "-nolisten", "tcp", "-ac")
        until(lambda: can_connect(f"/tmp/.X11-unix/X{number}"), "the X server")
        run("openbox", "--sm-disable", "--config-file", configuration, "--display", name)
        # It opens a port of its own whatever it is told, so it gets a namespace of its own for that.
        run("unshare", "--net", "x11vnc", "-display", name, "-unixsock", str(rfb), "-rfbport", "0", "-forever",
            "-shared", "-nopw", "-quiet")  # fmt: skip
        display = Xlib.display.Display(name)
        endings.callback(display.close)
        greeting = ready = None

        def is_there() -> bool:
            nonlocal greeting, ready
            if ready is None and is_managed(display):
                ready = time.perf_counter()
            if greeting is None and greets(rfb):
                greeting = time.perf_counter()
            return None not in (greeting, ready)

        until(is_there, "x11vnc or the window manager")
    rfb.unlink(missing_ok=True)
    return {"greeting": (greeting - began) * 1000, "ready": (ready - began) * 1000}


def until(holds, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not start")
        time.sleep(BETWEEN_TRIES)


def can_connect(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def greets(path: pathlib.Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        if client.connect_ex(str(path)) != 0:
            return False
        client.settimeout(PATIENCE)
        return client.recv(4) == b"RFB "


def is_managed(display) -> bool:
    try:
        atom = display.intern_atom("_NET_SUPPORTING_WM_CHECK")
        return display.screen().root.get_full_property(atom, 0) is not None
    except Xlib.error.XError:
        return False


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], pathlib.Path(sys.argv[4]))
