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
import Xlib.protocol.event
import Xlib.X

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
        manager, viewer = Manager(display), Viewer()
        endings.callback(viewer.close)
        greeting = ready = None

        def is_there() -> bool:
            nonlocal greeting, ready
            if ready is None and manager.answers():
                ready = time.perf_counter()
            if greeting is None and viewer.is_greeted():
                greeting = time.perf_counter()
            return None not in (greeting, ready)

        until(is_there, "x11vnc or the window manager")
    return {"ready": (ready - began) * 1000, "whole": (max(greeting, ready) - began) * 1000}


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


class Viewer:
    """One that comes as early as it can. Nobody waits for its greeting, or the window manager would be late."""

    client = None

    def is_greeted(self) -> bool:
        if self.client is None:
            client = socket.socket()
            if client.connect_ex(("127.0.0.1", PORT)) != 0:
                client.close()
                return False
            client.setblocking(False)
            self.client = client
        try:
            return self.client.recv(4) == b"RFB "
        except BlockingIOError:
            return False

    def close(self) -> None:
        if self.client is not None:
            self.client.close()


class Manager:
    """The window manager: ready when it answers how wide a frame would be, as it is for ours."""

    def __init__(self, display) -> None:
        question, self.answer = (
            display.intern_atom(name) for name in ("_NET_REQUEST_FRAME_EXTENTS", "_NET_FRAME_EXTENTS")
        )
        self.root = display.screen().root
        self.window = self.root.create_window(0, 0, 1, 1, 0, Xlib.X.CopyFromParent)
        self.question = Xlib.protocol.event.ClientMessage(window=self.window, client_type=question, data=(32, [0] * 5))

    def answers(self) -> bool:
        mask = Xlib.X.SubstructureRedirectMask | Xlib.X.SubstructureNotifyMask
        self.root.send_event(self.question, event_mask=mask)
        return self.window.get_full_property(self.answer, Xlib.X.AnyPropertyType) is not None


if __name__ == "__main__":
    main(*sys.argv[1:])
