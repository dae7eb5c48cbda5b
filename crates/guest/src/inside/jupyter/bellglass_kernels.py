"""Kernels for JupyterLab that are the job's own: the guest starts them, and they outlive every notebook."""

import asyncio
import json
import os

from jupyter_server.services.kernels.kernelmanager import ServerKernelManager
from traitlets import Bool


class SharedKernelManager(ServerKernelManager):
    """Attaches to the one kernel of a language. Whoever shuts it down only lets go of it."""

    autorestart = Bool(False)

    async def start_kernel(self, kernel_id=None, **_):
        self._attempted_start = True
        # By which a notebook's socket finds it again.
        self.kernel_id = self.kernel_id or kernel_id
        await self._connect("attach")

    async def restart_kernel(self, now=False, newports=False, **_):
        await self._connect("restart")

    async def shutdown_kernel(self, now=False, restart=False):
        self._close_control_socket()

    async def interrupt_kernel(self):
        message = self.session.msg("interrupt_request", content={})
        self._connect_control_socket()
        self.session.send(self._control_socket, message)

    async def is_alive(self):
        return True

    async def _connect(self, wish):
        connection = await ask(self.kernel_name, wish)
        self._close_control_socket()
        self.load_connection_info(connection)
        if not self.ready.done():
            self.ready.set_result(None)


async def ask(kernel, wish):
    """What the guest answers: how to connect to a kernel."""
    reader, writer = await asyncio.open_unix_connection(os.environ["BELLGLASS_KERNEL_DESK"])
    try:
        writer.write(json.dumps({"kernel": kernel, "wish": wish}).encode() + b"\n")
        await writer.drain()
        answer = json.loads(await reader.readline())
    finally:
        writer.close()
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer
