"""How fast the tools of a sandbox are, beside what people use for the same."""

import json
import os
import pathlib
import statistics
import subprocess

from machine import busy_otherwise, prefix
from PIL import Image, ImageChops
from tool_peers import Peers

FULL = {"runs": 100, "starts": 10, "texts": 100}
SMOKE = {"runs": 3, "starts": 1, "texts": 3}
# A hundred characters each: of the second the keyboard has only some.
TEXTS = {
    "plain": ("The quick brown fox jumps over the lazy dog, 0123456789 times; (a + b) * c = \"d\" ~ {e} | <f> & 'g'!" * 2)[:100],
    "any": ("Γειά σου Κόσμε, 你好，世界！ Привет, мир. ¿Qué tal? naïve café — 𝄞 🎉🦀🦋 Ünïcödé ﬁn ½ × ∞ ≠ ♥ 日本語 한국어 שלום" * 2)[:100],
}
# Cursors blink and clocks go on; more would mean that the peers had something else to pack.
MOST_DIFFERING = 0.02
TREE, PATTERN = "/usr/lib/python3.11", r"class \w+Error\("


def measure(binary: pathlib.Path, folder: pathlib.Path, smoke: bool) -> dict:
    rootfs = image_rootfs(binary)
    busy = [busy_otherwise(smoke)]
    counts = SMOKE if smoke else FULL
    with Peers(rootfs, folder, TEXTS, TREE, PATTERN, smoke) as peers:
        plan = {
            "folder": str(folder / "ours"), "rootfs": rootfs, **counts, "any_text": TEXTS["any"],
            "plain_text": TEXTS["plain"], "pattern": PATTERN, "tree": TREE,
            "kernel_client": pathlib.Path(__file__).with_name("kernel_client.py").read_text(),
            "picture": str(peers.picture), "show_picture": peers.show_picture,
            "commands": peers.commands, "speakers": peers.speakers,
        }  # fmt: skip
        done = subprocess.run(
            [*prefix(), os.environ["BENCH_TOOLS_DRIVER"]], input=json.dumps(plan), stdout=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise SystemExit("bench: the tools could not be measured")
        found = json.loads(done.stdout)
        theirs = peers.typed()[-counts["texts"] :]
    busy.append(busy_otherwise(smoke))
    texts = found["texts"]
    differs = differing(peers.picture, folder / "scrot.png")
    if differs is not None and differs > MOST_DIFFERING:
        raise SystemExit(f"bench: {differs:.0%} of the peers' picture is another than ours")
    return {
        **counts,
        "cores_busy_otherwise": max(busy),
        "peers": {what: {who: spread(times) for who, times in each.items()} for what, each in found["times"].items()},
        "not_available_here": peers.missing,
        # Lines that are lost or come twice are no failure of the benchmark: they are what it found.
        "texts": {**texts, "xdotool_right": theirs.count(TEXTS["any"])},
    }


def differing(ours: pathlib.Path, theirs: pathlib.Path) -> float | None:
    """Which part of the picture is not the same on the peers' screen, where their terminal is left out."""
    if not theirs.exists():
        return None
    pictures = [Image.open(path).convert("RGB").crop((0, 0, 1280, 560)) for path in (ours, theirs)]
    other = ImageChops.difference(*pictures).convert("L").point(lambda value: 255 if value else 0)
    return round(other.histogram()[255] / (1280 * 560), 4)


def image_rootfs(binary: pathlib.Path) -> str:
    done = subprocess.run([binary, "image", "inspect", "desktop", "--json"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"bench: there is no image; build it with `{binary.name} image build desktop`\n{done.stderr}")
    return json.loads(done.stdout)["rootfs"]


def spread(milliseconds: list[float]) -> dict:
    ordered = sorted(milliseconds)
    p95 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return {"p50": round(statistics.median(ordered), 3), "p95": round(p95, 3)}
