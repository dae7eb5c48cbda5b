"""Durable events and claims per second on SQLite and on PostgreSQL, and what a job costs as the table grows."""

import json
import os
import pathlib
import statistics
import subprocess

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "postgres.sh"
FULL = {"milliseconds": 10_000, "claims": 5_000, "samples": 300, "jobs": [1_000, 1_000_000]}
SMOKE = {"milliseconds": 300, "claims": 50, "samples": 5, "jobs": [100, 1_000]}
LABELS = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


def measure(binary: pathlib.Path, folder: pathlib.Path, smoke: bool) -> dict:
    plan = SMOKE if smoke else FULL
    found = {"sqlite": drive("sqlite", str(folder / "store.db"), plan)}
    # A socket's name is short, so the server's folder does not lie deep.
    server = pathlib.Path(subprocess.run(["mktemp", "-d"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
    try:
        started = subprocess.run([SCRIPT, "start", server], stdout=subprocess.PIPE, text=True, check=True)
        try:
            found["postgres"] = drive("postgres", started.stdout.strip(), plan)
        finally:
            subprocess.run([SCRIPT, "stop", server, "immediate"], check=True)
    finally:
        subprocess.run(["rm", "-rf", server], check=True)
    return {"plan": plan, "peers": {name: {"label": LABELS[name], **each} for name, each in found.items()}}


def drive(kind: str, place: str, plan: dict) -> dict:
    done = subprocess.run(
        [os.environ["BENCH_STORE_DRIVER"], kind, place],
        input=json.dumps(plan), stdout=subprocess.PIPE, text=True, check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"bench: the store on {LABELS[kind]} could not be measured")
    found = json.loads(done.stdout)
    job_ms = {size: round(statistics.median(times), 3) for size, times in found["job_ms"].items()}
    small, large = (job_ms[str(size)] for size in plan["jobs"])
    print(f"store: {LABELS[kind]}: {found['events_per_second']:,.0f} events/s, {found['claims_per_second']:,.0f} claims/s", flush=True)
    return {
        "events_per_second": round(found["events_per_second"]),
        "claims_per_second": round(found["claims_per_second"]),
        "job_ms": job_ms,
        "growth": round(large / small, 3),
    }
