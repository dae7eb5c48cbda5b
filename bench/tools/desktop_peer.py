"""Xvfb, x11vnc and openbox as a peer: from nothing until a viewer is greeted and the window manager is ready.

Everything is started as early as it can be. Each line of the input is a wish for one such desktop. It is to run
in a network namespace of its own, because x11vnc takes viewers by a port only.
"""

import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import time

import Xlib.display
import Xlib.error

PATIENCE = 60
PORT = 5900
BETWEEN_TRIES = 0.001


def main(number: str, size: str, configuration: str) -> None:
    bring_up_loopback()
    print("{}", flush=True)
    for _ in sys.stdin:
        try:
            figures = start(number, size, configuration)
        except (OSError, RuntimeError) as error:
            figures = {"error": str(error)}
        print(json.dumps(figures), flush=True)


def start(number: str, size: str, configuration: str) -> dict:
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    name = f":{number}"
    with contextlib.ExitStack() as endings:

        def run(*command: str) -> None:
            process = subprocess.Popen(command, env=os.environ | {"DISPLAY": name}, **quiet)
            endings.callback(end, process)

        began = time.perf_counter()
        run("Xvfb", name, "-screen", "0", f"{size}x24", "-nolisten", "tcp", "-ac", "-noreset")
        until(lambda: can_connect(f"/tmp/.X11-unix/X{number}"), "the X server")
        run("openbox", "--sm-disable", "--config-file", configuration)
        run("x11vnc", "-display", name, "-localhost", "-rfbport", str(PORT), "-forever", "-shared", "-nopw", "-quiet")
        display = Xlib.display.Display(name)
        endings.callback(display.close)
        greeting = ready = None

        def is_there() -> bool:
            nonlocal greeting, ready
            if ready is None and is_managed(display):
                ready = time.perf_counter()
            if greeting is None and greets():
                greeting = time.perf_counter()
            return None not in (greeting, ready)

        until(is_there, "x11vnc or the window manager")
    return {"greeting": (greeting - began) * 1000, "ready": (ready - began) * 1000}


def end(process: subprocess.Popen) -> None:
    """x11vnc tidies up inside its signal handler, where it may wait for a lock that it holds itself."""
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def bring_up_loopback() -> None:
    """A new network namespace has one that is down."""
    set_flags, is_up = 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sh14x", b"lo", is_up))


def until(holds, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not start")
        time.sleep(BETWEEN_TRIES)


def can_connect(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def greets() -> bool:
    with socket.socket() as client:
        if client.connect_ex(("127.0.0.1", PORT)) != 0:
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
    main(*sys.argv[1:])
