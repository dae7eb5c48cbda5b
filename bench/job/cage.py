"""The bare sandbox of the peers: bubblewrap on the same root filesystem, with the same kinds of
namespaces, and nothing else."""


def bwrap(rootfs: str, workspace: str, command: str) -> list[str]:
    return [
        "bwrap", "--unshare-all", "--die-with-parent", "--new-session",
        "--ro-bind", rootfs, "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
        "--bind", workspace, "/workspace", "--chdir", "/workspace",
        "--uid", "1000", "--gid", "1000",
        "bash", "-c", command,
    ]  # fmt: skip
