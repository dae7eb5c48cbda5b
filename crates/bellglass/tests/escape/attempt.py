# Runs inside the sandbox. Tries each way out in a process of its own and says how it ended: by the
# name of an error number, by the name of a signal, or with what was possible after all.
import ctypes, errno, fcntl, json, os, pathlib, pty, re, resource, signal, socket, stat, struct
import subprocess, time

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

# The numbers of system calls, as this machine's headers have them.
headers = ["gcc", "-E", "-dM", "-include", "sys/syscall.h", "-xc", "/dev/null"]
headers = subprocess.run(headers, check=True, capture_output=True, text=True).stdout
SYS = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)\n", headers)}
# Newer than the image's headers; the same on every architecture.
SYS |= {"statmount": 457, "listmount": 458, "open_tree_attr": 467, "file_setattr": 469}


def call(name, *arguments):
    """A system call by its name or number. Every number is as wide as a register."""
    number = SYS[name] if isinstance(name, str) else name
    wide = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *wide)
    if result == -1 and ctypes.get_errno():
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def read(path, length=64):
    """The beginning of a file. One that is empty, such as a covered one, counts as an error."""
    with open(path, "rb") as file:
        found = file.read(length)
    if not found:
        raise OSError(errno.ENODATA, "nothing in it")
    return found


def write(path, content=b"1", flags=0):
    """Writes to a file that is there. Writing to one that is covered by /dev/null does nothing."""
    file = os.open(path, os.O_WRONLY | flags)
    if os.fstat(file).st_rdev == os.makedev(1, 3):
        raise OSError(errno.ENODEV, "covered")
    written = os.write(file, content)
    os.close(file)
    return written


def connect(address, family=socket.AF_UNIX, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as client:
        client.settimeout(5)
        client.connect(address)
    return "connected"


def run(*command):
    """The standard output of a program. Its failure is EREMOTEIO, its death by a signal is that."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode < 0:
        os.kill(os.getpid(), -done.returncode)
    if done.returncode > 0:
        raise OSError(errno.EREMOTEIO, done.stderr)
    return done.stdout


def compiled(code, *flags):
    """The path of a small C program."""
    source = f"/tmp/{os.getpid()}-{time.monotonic_ns()}"
    pathlib.Path(source + ".c").write_text(code)
    subprocess.run(["gcc", "-w", "-o", source, source + ".c", *flags], check=True)
    return source


def become_root():
    """Root of a user namespace of its own, with a network of its own, where the job may make one."""
    user, group = os.getuid(), os.getgid()
    try:
        call("unshare", 0x10000000 | 0x40000000)
        for name, text in [("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")]:
            # Nothing there may be cut off, also if it has nothing in it.
            with open(f"/proc/self/{name}", "r+") as file:
                file.write(text)
    except OSError as error:
        # It must not be taken for the end of the way out that was to be tried as root.
        raise RuntimeError("could not become root") from error
    capabilities = re.search("CapEff:\t(.*)", pathlib.Path("/proc/self/status").read_text())[1]
    assert os.getuid() == 0 and int(capabilities, 16) >> 21 & 1, "CAP_SYS_ADMIN"


def outcome_of(code):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            *before, last = code.strip().split("\n")
            names = dict(globals())
            exec("\n".join(before), names)
            said = f"POSSIBLE: {eval(last, names)!r}"
        except OSError as error:
            said = errno.errorcode.get(error.errno, repr(error))
        except BaseException as error:
            said = f"RAISED: {error!r}"
        os.write(writer, said.encode()[:4000])
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return said
