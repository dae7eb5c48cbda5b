"""SWE-ReX's local runtime as a peer: a command in a process of its own, and one in a session."""

import asyncio
import json
import sys
import time

from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime


async def main() -> None:
    runtime = LocalRuntime()
    # Its own second is too short for a machine that has just woken up, and starting is not what is measured.
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=60))
    await runtime.run_in_session(BashAction(command="true", timeout=30))
    print("{}", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        began = time.perf_counter()
        await runtime.execute(Command(command=["bash", "-c", line.strip()], timeout=30))
        between = time.perf_counter()
        await runtime.run_in_session(BashAction(command=line.strip(), timeout=30))
        ended = time.perf_counter()
        print(json.dumps({"process": (between - began) * 1000, "session": (ended - between) * 1000}), flush=True)
    await runtime.close()


asyncio.run(main())
