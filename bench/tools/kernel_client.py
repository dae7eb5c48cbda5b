"""Python's own client of Jupyter kernels, as a peer: runs in our sandbox and measures itself.

Each line of the input is a wish, each line of the output an object. What has to be imported is imported
before the first wish, so that only the client's work counts.
"""

import json
import os
import sys
import tempfile
import time

data = tempfile.mkdtemp()
os.environ["JUPYTER_PATH"] = data
folder = os.path.join(data, "kernels", "deno")
os.makedirs(folder)
spec = {"argv": ["deno", "jupyter", "--kernel", "--conn", "{connection_file}"], "display_name": "Deno", "language": "typescript"}
with open(os.path.join(folder, "kernel.json"), "w") as file:
    json.dump(spec, file)

from jupyter_client import BlockingKernelClient, KernelManager  # noqa: E402

manager = client = None


def say(**figures):
    print(json.dumps(figures), flush=True)


def run():
    """Runs a cell and waits for its result, as the client's own way of doing so does."""
    results = []

    def hear(message):
        if message["msg_type"] == "execute_result":
            results.append(message["content"]["data"]["text/plain"])

    client.execute_interactive("1 + 41", output_hook=hear, timeout=60)
    if results != ["42"]:
        raise RuntimeError(f"the kernel gave {results}")


def end():
    if manager is not None:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


say()
for line in sys.stdin:
    wish = line.split()
    try:
        if wish[0] == "first":
            end()
            began = time.perf_counter()
            manager = KernelManager(kernel_name=wish[1])
            manager.start_kernel()
            client = manager.client()
            client.start_channels()
            client.wait_for_ready(timeout=60)
        else:
            began = time.perf_counter()
        run()
        say(ms=(time.perf_counter() - began) * 1000)
    except Exception as error:
        say(error=repr(error))
end()
