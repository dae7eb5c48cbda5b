#!/usr/bin/env python3
"""Writes the tables of docs/SPECIFICATION.md from the results. With --check only says whether they fit.

A table stands between two marks, <!-- NAME: begin --> and <!-- NAME: end -->; the text around them is
written by hand.
"""

import json
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "SPECIFICATION.md"
# With more cores than this busy otherwise, a ratio is luck: noise hits a server that waits for each
# flush harder than one that does not, and flatters the latter.
MOST_NOISE = 0.5


def main(arguments: list[str]) -> None:
    before = PAGE.read_text()
    results = {path.stem: json.loads(path.read_text()) for path in sorted((HERE / "results").glob("*.json"))}
    page = fill_in(before, "goals", goals_table(results))
    for name, each in results.items():
        page = fill_in(page, name, table(name, each))
    if "--check" in arguments:
        if page != before:
            raise SystemExit("bench: the tables of docs/SPECIFICATION.md do not fit bench/results; run bench/report.py")
    elif page != before:
        PAGE.write_text(page)


def fill_in(page: str, name: str, text: str) -> str:
    marks = re.compile(f"(<!-- {name}: begin -->\n).*?(<!-- {name}: end -->)", re.DOTALL)
    if not marks.search(page):
        raise SystemExit(f"bench: docs/SPECIFICATION.md has no place for `{name}`")
    return marks.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", page)


def goals_table(results: dict) -> str:
    peers = results["schedule"]["peers"]
    ratio = peers["bellglass"]["requests_per_second"] / peers["reference"]["requests_per_second"]
    job = results["job"]["peers"]["bellglass"]["done_ms"]["p50"]
    rows = [
        [
            "durable `POST /schedule`, requests per second",
            "at least 10 times the FastAPI reference",
            f"{ratio:.1f} times",
            verdict(results["schedule"], ratio >= 10),
        ],
        [
            "a one-step job, from `POST /schedule` to `completed` with its ZIP ready, median",
            "under 100 ms",
            milliseconds(job),
            verdict(results["job"], job < 100),
        ],
    ]
    return markdown(["what", "goal", "measured", "reached"], rows) + "\n"


def verdict(results: dict, reached: bool) -> str:
    if results["machine"]["cores_busy_otherwise"] > MOST_NOISE:
        return "the machine was too busy to say"
    return "yes" if reached else "not yet"


def table(name: str, results: dict) -> str:
    tables = {"schedule": schedule_table, "job": job_table}
    return "\n\n".join([*tables[name](results), machine_line(results["machine"])]) + "\n"


def schedule_table(results: dict) -> list[str]:
    peers = results["peers"]
    ours = peers["bellglass"]["requests_per_second"]
    rows = [
        [
            peer["label"],
            f"{peer['requests_per_second']:,.0f}",
            f"{peer['p50_ms']:.1f} ms",
            f"{peer['p99_ms']:.1f} ms",
            f"{peer['cpu_us']:.0f} µs",
            "" if name == "bellglass" else f"{ours / peer['requests_per_second']:.1f}×",
        ]
        for name, peer in peers.items()
    ]
    note = (
        f"Medians of {results['rounds']} rounds in turn, {results['seconds_per_round']} s each, "
        f"{results['connections']} connections. After each round the store was counted and held every "
        f"request that was answered; of {results['ids_looked_up_after_a_kill']:,} more, every id was found "
        "again after the server was killed with SIGKILL."
    )
    head = ["server", "requests/s", "p50", "p99", "CPU time a request", "Bellglass is faster by"]
    return [markdown(head, rows), note]


def job_table(results: dict) -> list[str]:
    rows = []
    for peer in results["peers"].values():
        downloaded = peer.get("downloaded_ms", {"p50": None})
        rows.append([
            peer["label"],
            milliseconds(peer["done_ms"]["p50"]),
            milliseconds(peer["done_ms"]["p95"]),
            milliseconds(downloaded["p50"]),
        ])
    rows += [[f"`{name} run`", "not available", "", ""] for name in results["not_available_here"]]
    head = ["what runs `" + results["command"] + "`", "done, p50", "done, p95", "ZIP downloaded, p50"]
    note = f"{results['runs']} runs of each, one of each in turn, one at a time."
    for name, why in results["not_available_here"].items():
        note += f" No figure for {name} on this machine ({why})."
    steps = [
        [f"`{gap['from']}` → `{gap['to']}`" if gap["from"] != "step" else "of which the step, measured inside",
         milliseconds(gap["p50"]), milliseconds(gap["p95"])]
        for gap in results["timeline"]
    ]  # fmt: skip
    where = "Where a Bellglass job spends it, from the times in its event log:"
    return [markdown(head, rows), note, where, markdown(["from → to", "p50", "p95"], steps)]


def machine_line(facts: dict) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["programs"].items())
    return (
        f"Measured {facts['date']}: {facts['cores']} cores of {facts['cpu']}, {facts['memory_gib']} GiB, "
        f"Linux {facts['kernel']}, {facts['file_system']}, {facts['disk_flush_ms']:.2f} ms for one flush to "
        f"the disk; {facts['cores_busy_otherwise']:.1f} cores were busy with other things meanwhile. {versions}."
    )


def milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} ms"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main(sys.argv[1:])
