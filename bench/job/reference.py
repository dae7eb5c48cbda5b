"""What one would write first: a FastAPI service that runs a command in bubblewrap and zips the folder.

It answers when the ZIP is there, which spares its client any waiting for news. It has no queue, no
event log, no limits on memory, processes or disk, no system-call filter, and a crash loses the job.

Environment: REFERENCE_ROOTFS is the root filesystem, REFERENCE_WORK a folder for its files.
"""

import os
import pathlib
import shutil
import subprocess
import uuid
import zipfile

from fastapi import FastAPI
from fastapi.responses import FileResponse
from pydantic import BaseModel

from cage import bwrap

work = pathlib.Path(os.environ["REFERENCE_WORK"])
app = FastAPI()


class JobRequest(BaseModel):
    command: str


@app.post("/run")
def run(request: JobRequest) -> dict:
    job = str(uuid.uuid4())
    workspace = work / job
    workspace.mkdir()
    command = bwrap(os.environ["REFERENCE_ROOTFS"], str(workspace), request.command)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    with zipfile.ZipFile(work / f"{job}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("agent.log", done.stdout + done.stderr)
        for path in workspace.rglob("*"):
            archive.write(path, path.relative_to(workspace))
    shutil.rmtree(workspace)
    return {"job_id": job, "exit_code": done.returncode, "download_url": f"/jobs/{job}/output.zip"}


@app.get("/jobs/{job}/output.zip")
def download(job: uuid.UUID) -> FileResponse:
    return FileResponse(work / f"{job}.zip")


@app.get("/readyz")
async def ready() -> dict:
    return {"status": "ok"}
