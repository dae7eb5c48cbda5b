"""A viewer of a desktop over a WebSocket: as little code between the clock and the socket as possible."""

import os
import socket
import struct
import zlib

# A picture of one pixel, and of the whole screen, asked for anew whatever has changed.
PIXEL = struct.pack(">BBHHHH", 3, 0, 0, 0, 1, 1)
WIDTH, HEIGHT = 1280, 800
SCREEN = struct.pack(">BBHHHH", 3, 0, 0, 0, WIDTH, HEIGHT)
# What has changed since the last picture, as soon as something has.
CHANGES = struct.pack(">BBHHHH", 3, 1, 0, 0, WIDTH, HEIGHT)
RAW_ONLY = struct.pack(">BBHi", 2, 0, 1, 0)


class Viewer:
    """Connected, greeted, and told what the desktop is like."""

    def __init__(self, port: int, path: str):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.ahead = b""
        self.upgrade(port, path)
        assert self.read(12) == b"RFB 003.008\n"
        self.send(b"RFB 003.008\n")
        count = self.read(1)[0]
        assert 1 in self.read(count)
        self.send(b"\1")
        assert self.read(4) == bytes(4)
        self.send(b"\1")
        about = self.read(24)
        self.read(int.from_bytes(about[20:]))
        self.send(RAW_ONLY)

    def upgrade(self, port: int, path: str) -> None:
        head = (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: binary\r\n\r\n"
        )
        self.socket.sendall(head.encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            piece = self.socket.recv(4096)
            if not piece:
                raise SystemExit(f"bench: no WebSocket at {path}: {answer!r}")
            answer += piece
        head, self.raw = answer.split(b"\r\n\r\n", 1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise SystemExit(f"bench: no WebSocket at {path}: {head!r}")

    def send(self, data: bytes) -> None:
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
        self.socket.sendall(bytes([0x82, 0x80 | len(data)]) + mask + masked)

    def take(self, count: int) -> bytes:
        while len(self.raw) < count:
            piece = self.socket.recv(1 << 18)
            if not piece:
                raise SystemExit("bench: the desktop went away")
            self.raw += piece
        taken, self.raw = self.raw[:count], self.raw[count:]
        return taken

    def message(self) -> bytes:
        """The next binary message; heartbeats are passed over."""
        while True:
            first, length = self.take(2)
            if length == 126:
                length = int.from_bytes(self.take(2))
            elif length == 127:
                length = int.from_bytes(self.take(8))
            data = self.take(length)
            if first & 0x0F in (0, 2):
                return data

    def read(self, count: int) -> bytes:
        while len(self.ahead) < count:
            self.ahead += self.message()
        taken, self.ahead = self.ahead[:count], self.ahead[count:]
        return taken

    def skip(self, count: int) -> None:
        """Takes so many bytes without looking at them."""
        if len(self.ahead) >= count:
            self.ahead = self.ahead[count:]
            return
        count -= len(self.ahead)
        self.ahead = b""
        while count > 0:
            data = self.message()
            count -= len(data)
            if count < 0:
                self.ahead = data[count:]

    def picture(self, request: bytes) -> int:
        """Asks for a picture and takes it whole. Returns its bytes."""
        self.send(request)
        total = 0
        for _, _, width, height in self.rectangles():
            self.skip(width * height * 4)
            total += width * height * 4
        return total

    def screen(self) -> int:
        """Takes the whole screen, which was asked for, and returns a sum over it."""
        points = bytearray(WIDTH * HEIGHT * 4)
        for left, top, width, height in self.rectangles():
            data = self.read(width * height * 4)
            for row in range(height):
                start = ((top + row) * WIDTH + left) * 4
                points[start : start + width * 4] = data[row * width * 4 : (row + 1) * width * 4]
        return zlib.crc32(points)

    def ask_for_changes(self) -> None:
        self.send(CHANGES)

    def wait_for_colour(self, point: tuple[int, int], colour: bytes) -> None:
        """Takes what has changed, which was asked for, until this point has this colour."""
        found = False
        while not found:
            for left, top, width, height in self.rectangles():
                data = self.read(width * height * 4)
                x, y = point[0] - left, point[1] - top
                if 0 <= x < width and 0 <= y < height and data[(y * width + x) * 4 :].startswith(colour):
                    found = True
            if not found:
                self.ask_for_changes()

    def rectangles(self):
        """The places of the next picture's parts; whoever goes through them takes each one's points."""
        while (kind := self.read(1)[0]) != 0:
            # A bell, or what is on the clipboard.
            if kind == 3:
                self.skip(int.from_bytes(self.read(7)[3:]))
        for _ in range(int.from_bytes(self.read(3)[1:])):
            *place, encoding = struct.unpack(">HHHHi", self.read(12))
            assert encoding == 0, encoding
            yield place

    def close(self) -> None:
        self.socket.close()
