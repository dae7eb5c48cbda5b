# Runs in a network and a mount namespace of its own. Serves names whose addresses change, serves
# pages on a public and on a private address, runs the command it is given, and prints what it saw.
import fcntl, json, os, socket, struct, subprocess, sys, threading

PUBLIC, UNANSWERED = "93.184.215.14", "93.184.215.15"
PORT = 8080
connections = {"public": 0, "private": 0}
questions = {}


def bring_up(interface, address=None):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = interface.encode().ljust(16, b"\0")
        if address:
            fields = struct.pack("<HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(control, 0x8916, name + fields + bytes(8))
        else:
            fcntl.ioctl(control, 0x8914, name + struct.pack("<H22x", 0x41))


def addresses(name, kind):
    """The addresses of a name, which may depend on how often it was asked for."""
    if kind == 28:
        return ["::ffff:127.0.0.1"] if name == "mapped.test" else []
    questions[name] = questions.get(name, 0) + 1
    return {
        "rebind.test": [PUBLIC if questions[name] == 1 else "127.0.0.1"],
        "private.test": ["127.0.0.1"],
        "metadata.test": ["169.254.169.254"],
        "both.test": ["127.0.0.1", PUBLIC],
        "half.test": ["127.0.0.1", UNANSWERED],
    }.get(name, [])


def answer(query):
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode())
        at += 1 + query[at]
    question = query[12 : at + 5]
    kind = struct.unpack("!H", query[at + 1 : at + 3])[0]
    found = addresses(".".join(labels).lower(), kind)
    family = socket.AF_INET6 if kind == 28 else socket.AF_INET
    body = question
    for address in found:
        packed = socket.inet_pton(family, address)
        body += struct.pack("!HHHIH", 0xC00C, kind, 1, 0, len(packed)) + packed
    return query[:2] + struct.pack("!HHHHH", 0x8580, 1, len(found), 0, 0) + body


def serve_names(listener):
    while True:
        query, client = listener.recvfrom(4096)
        listener.sendto(answer(query), client)


def serve_pages(listener, side):
    while True:
        client, _ = listener.accept()
        connections[side] += 1
        with client:
            client.recv(65536)
            page = f"HTTP/1.1 200 OK\r\nContent-Length: {len(side)}\r\n\r\n{side}"
            client.sendall(page.encode())


bring_up("lo")
bring_up("lo:1", PUBLIC)
with open("resolv.conf", "w") as file:
    file.write("nameserver 127.0.0.1\noptions timeout:5 attempts:1\n")
resolver = os.path.realpath("/etc/resolv.conf")
subprocess.run(["mount", "--bind", "resolv.conf", resolver], check=True)

names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names.bind(("127.0.0.1", 53))
threading.Thread(target=serve_names, args=[names], daemon=True).start()
for address, side in [(PUBLIC, "public"), ("127.0.0.1", "private")]:
    pages = socket.create_server((address, PORT))
    threading.Thread(target=serve_pages, args=[pages, side], daemon=True).start()

done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True)
events = [json.loads(line) for line in done.stdout.splitlines()]
steps = [event["outcome"]["stdout"] for event in events if event.get("type") == "step.finished"]
print(
    json.dumps(
        {
            "steps": steps,
            "public_connections": connections["public"],
            "private_connections": connections["private"],
            "questions": questions,
        }
    )
)
sys.stdout.flush()
os._exit(0 if steps else 1)
