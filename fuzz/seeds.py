"""Writes a small seed corpus for each fuzz target: what well-behaved peers say, and a little beside it."""

import json
import pathlib
import struct
import sys

FOLDER = pathlib.Path(__file__).parent / "corpus"
MESSAGE, STDOUT, STDERR, DATA = range(4)


def frame(kind, body):
    return struct.pack("!BI", kind, len(body)) + body


def message(value):
    return frame(MESSAGE, json.dumps(value).encode())


def entry(path, kind="file", mode=0o644):
    fields = {"path": path, "kind": kind, "mode": mode, "bytes": 4, "modified": 1_700_000_000}
    return message({"reply": "entry", "entry": fields})


RESULT = {
    "status": "succeeded",
    "exit_code": 0,
    "signal": None,
    "text": "done",
    "error": None,
    "duration_us": 5,
    "output_bytes": 6,
}
REPLIES = {
    "welcome": message({"reply": "welcome", "protocol": 1, "version": "0", "probe": {"tool_uid": 1000}}),
    "done": frame(STDOUT, b"output") + frame(STDERR, b"\xff") + message({"reply": "done", "result": RESULT}),
    "error": message({"reply": "error", "error": {"code": "not_found", "message": "no such file"}}),
    "file": message({"reply": "file", "bytes": 4}) + frame(DATA, b"text") + message({"reply": "end"}),
    "ok": message({"reply": "ok"}),
    "opening": message({"open": "egress"}),
    "too_large": struct.pack("!BI", MESSAGE, 0xFFFFFFFF),
    "unknown": struct.pack("!BI", 9, 0),
}
END_OF_FILE = message({"reply": "entry_end", "error": None})
WORKSPACES = {
    "plain": entry("folder", "folder", 0o755) + entry("folder/file") + frame(DATA, b"text") + END_OF_FILE,
    "links": entry("link", {"symlink": {"target": "/etc"}}) + entry("link/passwd") + entry("LINK/x"),
    "names": entry("../up") + entry("/root") + entry("a\\b:c") + entry("nul.txt") + entry("agent.log"),
    "other": entry("pipe", "other") + message({"reply": "entry_end", "error": "changed"}),
}


def change(path, kind="folder", **fields):
    return message({"reply": "change", "change": {"path": path, "what": {"kind": kind, **fields}}})


FILE = {"mode": 0o644, "bytes": 4, "modified": 1}
CHECKPOINTS = {
    "changes": message({"reply": "changes", "since": 1})
    + change("gone", "gone")
    + change("d", mode=0o755)
    + change("d/f", "file", **FILE)
    + frame(DATA, b"text")
    + END_OF_FILE
    + change("l", "symlink", target="/etc\\xff")
    + message({"reply": "end"}),
    "replaced": change("a", mode=1) + change("a/b", "file", **FILE) + change("a", "file", **FILE),
    "outside": change("../x", mode=1) + change("a\\x2f..", mode=1) + change("\\x2e.", mode=1),
    "index": json.dumps(
        {
            "base": None,
            "gone": ["x"],
            "nodes": [
                ["d", {"kind": "folder", "mode": 1}],
                ["d/f", {"kind": "file", "mode": 1, "modified": 1, "content": None}],
            ],
        }
    ).encode(),
}


def yamux(kind, flags, stream, length, body=b""):
    return struct.pack("!BBHII", 0, kind, flags, stream, length) + body


def carried(stream, body, flags=0):
    return yamux(0, flags, stream, len(body), body)


WIRES = {
    "answer": carried(1, REPLIES["ok"], 2),
    "finished": carried(1, REPLIES["done"], 2) + yamux(0, 4, 1, 0),
    "reset": yamux(0, 8, 1, 0),
    "opening": carried(2, REPLIES["opening"], 1) + carried(2, b"GET / HTTP/1.1\r\n\r\n"),
    "many": b"".join(yamux(1, 1, 2 * n + 2, 0) for n in range(300)),
    "pings": yamux(2, 1, 0, 7) + yamux(2, 2, 0, 9),
    "window": yamux(1, 0, 1, 0xFFFFFFFF),
    "away": yamux(3, 0, 0, 0),
}
REQUESTS = {
    "connect": b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n",
    "plain": b"GET http://example.com/a?b HTTP/1.1\r\nHost: other\r\nConnection: keep-alive, x\r\n\r\n",
    "user": b"GET http://example.com@other:81/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "six": b"CONNECT [::ffff:127.0.0.1]:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    "chunked": b"POST http://example.com/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    "two": b"POST http://example.com/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\naGET http://b/ HTTP/1.1\r\n\r\n",
}
SOCKS = {
    "name": b"\x05\x01\x00\x03\x0bexample.com\x01\xbb",
    "four": b"\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50",
    "six": b"\x05\x01\x00\x04" + bytes(15) + b"\x01\x00\x50",
    "bind": b"\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00",
    "below": b"\x05\x01\x00\x03\x0dx.example.org\x00\x50",
}
CORPORA = {
    # The first byte says in which pieces the rest arrives.
    "wire": {name: b"\x07" + text for name, text in (REPLIES | WORKSPACES).items()},
    "mux": WIRES,
    "checkpoint": CHECKPOINTS,
    "archive": {name: text + message({"reply": "end"}) for name, text in WORKSPACES.items()},
    "http": REQUESTS,
    "socks": SOCKS,
}

for target in sys.argv[1:] or CORPORA:
    folder = FOLDER / target
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in CORPORA[target].items():
        (folder / name).write_bytes(text)
