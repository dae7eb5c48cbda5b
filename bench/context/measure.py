"""What a turn of a task costs in a short and in a long conversation, and what a very long one takes."""

import json
import os
import pathlib
import statistics
import subprocess

# Named as other benchmarks name theirs: ours, and who it is measured beside.
PEERS = {
    "bellglass": "Bellglass",
    "anew": "the same conversation put together and counted anew at each turn",
}


def measure(binary: pathlib.Path, folder: pathlib.Path, smoke: bool) -> dict:
    steps, rounds = ([10, 100, 1000], 1) if smoke else ([10, 1000, 10000], 5)
    tokens, readable = (200_000, 50_000) if smoke else (5_000_000, 1_000_000)
    runs = []
    for number in range(rounds):
        runs.append(drive("turns", *steps)["points"])
        print(f"context: round {number + 1} of {rounds}: {runs[-1][-1]['ours_us']:.0f} µs after {steps[-1]} steps", flush=True)
    return {
        "rounds": rounds,
        "steps": steps,
        "peers": {
            "bellglass": {"label": PEERS["bellglass"], "turn_us": medians(runs, "ours_us")},
            "anew": {"label": PEERS["anew"], "turn_us": medians(runs, "anew_us")},
        },
        "history": drive("history", tokens, readable),
    }


def medians(runs: list[list[dict]], field: str) -> list[float]:
    return [round(statistics.median(point[field] for point in points), 1) for points in zip(*runs)]


def drive(*arguments) -> dict:
    command = [os.environ["BENCH_CONTEXT_DRIVER"], *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout)
