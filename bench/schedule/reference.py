"""What one would write first: a FastAPI service that accepts a job and makes it durable.

The same body, checked by a pydantic model, one row in SQLite in WAL mode with synchronous=FULL,
committed before the answer. It does less than Bellglass for each job: one row instead of an event
in a hash chain and an entry in the queue's index.

Environment: REFERENCE_DB names the database; REFERENCE_COMMIT is `each` (a commit for each request,
the default) or `group` (requests that wait together share a commit, as Bellglass does it).
"""

import asyncio
import json
import os
import sqlite3
import time
import uuid
from contextlib import asynccontextmanager
from typing import Annotated, Literal

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Shell(Strict):
    tool: Literal["shell"]
    command: str
    cwd: str | None = None
    env: dict[str, str] = {}
    timeout: float | None = None


class Code(Strict):
    tool: Literal["python", "typescript"]
    code: str
    timeout: float | None = None


class JobRequest(Strict):
    steps: Annotated[list[Annotated[Shell | Code, Field(discriminator="tool")]], Field(min_length=1)]
    name: str | None = None
    priority: int = 0


def open_database() -> sqlite3.Connection:
    database = sqlite3.connect(os.environ["REFERENCE_DB"], timeout=60, check_same_thread=False)
    database.isolation_level = None
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute(
        "CREATE TABLE IF NOT EXISTS events (job TEXT, seq INTEGER, at REAL, body TEXT,"
        " PRIMARY KEY (job, seq)) WITHOUT ROWID"
    )
    return database


database = open_database()
waiting: asyncio.Queue = asyncio.Queue()
INSERT = "INSERT INTO events VALUES (?, ?, ?, ?)"


def commit_all(rows: list[tuple]) -> None:
    database.execute("BEGIN IMMEDIATE")
    database.executemany(INSERT, rows)
    database.execute("COMMIT")


async def commit_groups() -> None:
    while True:
        group = [await waiting.get()]
        while not waiting.empty():
            group.append(waiting.get_nowait())
        await asyncio.to_thread(commit_all, [row for row, _ in group])
        for _, committed in group:
            committed.set_result(None)


async def make_durable(row: tuple) -> None:
    if os.environ.get("REFERENCE_COMMIT") == "group":
        committed = asyncio.get_running_loop().create_future()
        waiting.put_nowait((row, committed))
        await committed
    else:
        # On the event loop: handing each commit to a thread was measured and is slower.
        database.execute(INSERT, row)


@asynccontextmanager
async def lifespan(_app: FastAPI):
    committing = asyncio.create_task(commit_groups())
    yield
    committing.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/schedule", status_code=202)
async def schedule(request: JobRequest) -> dict:
    job = str(uuid.uuid4())
    await make_durable((job, 1, time.time(), json.dumps(request.model_dump())))
    return {
        "job_id": job,
        "task_id": job,
        "status": "scheduled",
        "status_url": f"/status/{job}",
        "events_url": f"/jobs/{job}/events",
    }


@app.get("/readyz")
async def ready() -> dict:
    return {"status": "ok"}
