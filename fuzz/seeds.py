"""Writes a small seed corpus for a fuzz target into a folder: what well-behaved peers say, and a little beside it."""

import json
import pathlib
import struct
import sys
import zlib

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
    "query": b"POST http://example.com? HTTP/1.0\r\nHost: x\r\n\r\n",
    "bracket": b"GET exa[mple:12].70:8 HTTP/1.1\r\nHost: x\r\n\r\n",
    "user": b"GET http://example.com@other:81/ HTTP/1.1\r\nHost: x\r\n\r\n",
    "six": b"CONNECT [::ffff:127.0.0.1]:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    "chunked": b"POST http://example.com/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
    "opened": b"GET /v1/x HTTP/1.1\r\nHost: example.com\r\nAuthorization: bellglass-TOKEN-placeholder\r\n\r\n",
    "two": b"POST http://example.com/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\naGET http://b/ HTTP/1.1\r\n\r\n",
}
SOCKS = {
    "name": b"\x05\x01\x00\x03\x0bexample.com\x01\xbb",
    "four": b"\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50",
    "six": b"\x05\x01\x00\x04" + bytes(15) + b"\x01\x00\x50",
    "bind": b"\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00",
    "below": b"\x05\x01\x00\x03\x0dx.example.org\x00\x50",
}


def chunk(kind, body):
    return struct.pack("!I", len(body)) + kind + body + struct.pack("!I", zlib.crc32(kind + body))


PIXEL = chunk(b"IHDR", struct.pack("!IIBBBBB", 1, 1, 8, 6, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(b"\0\1\2\3\xff"))
PNG = b"\x89PNG\r\n\x1a\n" + PIXEL + chunk(b"IEND", b"")
PICTURES = {
    "png": PNG,
    "cut": PNG[:40],
    "gif": b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff!\xf9\x04\x01\x00\x00\x00\x00"
    b",\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;",
    "jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00\xff\xd9",
    "webp": b"RIFF\x1a\x00\x00\x00WEBPVP8L\x0d\x00\x00\x00\x2f\x00\x00\x00\x10\x07\x10\x11\x11\x88\x88\xfe\x07\x00",
}
TOOLS = {"tools": [{"name": "a b", "description": "c", "inputSchema": {"type": "object"}}, {"name": "a_b"}]}
PARTS = [{"type": "text", "text": "hi"}, {"type": "image", "mimeType": "x"}, {"type": "resource", "resource": {}}]


def said(*messages):
    return "".join(json.dumps(each) + "\n" for each in messages).encode()


SERVERS = {
    "tools": b"hello\n" + said({"id": 1, "result": TOOLS}),
    "result": said({"id": 2, "result": {"content": PARTS, "isError": True}}),
    "error": said({"id": 3, "error": {"message": "no"}}, [1], None, "text"),
    "asks": said({"id": "x", "method": "ping"}, {"id": 4, "method": "roots/list"}),
}
FAILURE = {"stage": "mount the overlay", "error": "no"}
LAUNCHED = {"pid": 7, "namespaces": {"net": 4026531840}, "enforced": ["a"], "missing": []}
CAGES = {
    "made": said({"made": {"pid": 7}}, {"launched": LAUNCHED}, "ready"),
    "failed": said({"failed": FAILURE}, {"made": {"pid": 2147483648}}),
    "adopted": said({"enforced": ["a"], "missing": ["b\n"]}, FAILURE),
    "both": said({"enforced": [], "missing": [], **FAILURE}),
}
DESKTOP = b"RFB 003.008\n\x01\x01\x00\x00\x00\x00" + bytes(20) + struct.pack("!I", 4) + b"name"
VIEWER = b"RFB 003.008\n\x01\x01"
DESKTOPS = {
    "server": b"\x02" + DESKTOP,
    "endless": b"\x02" + DESKTOP[:-8] + b"\xff" * 8,
    "viewer": b"\x02" + VIEWER + bytes(20) + b"\x05\x01\x00\x0a\x00\x0a",
    "password": b"\x03RFB 003.003\n" + bytes(17) + b"\x06\x00\x00\x00\x00\x00\x00\x02hi",
    "words": b"\x07" + b"\x02\x00\x00\x01\x00\x00\x00\x07" + b"\x03" + bytes(9) + b"\x06\x00\x00\x00\x7f\xff\xff\xff",
}
CORPORA = {
    # The first byte says in which pieces the rest arrives.
    "wire": {name: b"\x07" + text for name, text in (REPLIES | WORKSPACES).items()},
    "mux": WIRES,
    "launch": CAGES,
    "checkpoint": CHECKPOINTS,
    "archive": {name: text + message({"reply": "end"}) for name, text in WORKSPACES.items()},
    "http": REQUESTS,
    "socks": SOCKS,
    "pictures": PICTURES,
    # Here, too, the first byte says in which pieces the rest arrives.
    "mcp": {name: b"\x05" + text for name, text in SERVERS.items()},
    "rfb": DESKTOPS,
}

target, folder = sys.argv[1], pathlib.Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
for name, text in CORPORA[target].items():
    (folder / name).write_bytes(text)
