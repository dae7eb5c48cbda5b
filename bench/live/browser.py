"""A headless Chromium that is told what to do over its own debugging protocol.

Nothing is timed here: times are taken by scripts inside the pages, so that the way to the browser costs none.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

from websockets.sync.client import connect

NAMES = ["chromium", "chromium-browser", "google-chrome"]
STARTS_WITHIN = 60
ANSWERS_WITHIN = 120
# What is not here is not asked, and a window that nobody looks at is drawn as if somebody did.
CALM = [
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1", "--no-proxy-server",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-default-apps", "--disable-extensions", "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding", "--mute-audio",
]  # fmt: skip


class Browser:
    """In a `with` statement it is gone at the end, whatever happens."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.log, self.asked = folder, folder.with_suffix(".log"), 0

    def __enter__(self) -> "Browser":
        # Chromium cannot build its own sandbox as root; what it loads here is only our page.
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [program(), "--headless", "--remote-debugging-port=0", f"--user-data-dir={self.folder}",
                 "--window-size=1280,800", *CALM, *root, "about:blank"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            self.socket = connect(self.address(), max_size=None, compression=None)
            self.version = self.call("Browser.getVersion")["product"].removeprefix("Chrome/")
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_) -> None:
        with contextlib.suppress(Exception):
            self.call("Browser.close")
            self.process.wait(10)
        self.end()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def address(self) -> str:
        told = self.folder / "DevToolsActivePort"
        deadline = time.monotonic() + STARTS_WITHIN
        while time.monotonic() < deadline and self.process.poll() is None:
            lines = told.read_text().splitlines() if told.exists() else []
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            time.sleep(0.02)
        raise SystemExit(f"bench: Chromium did not start:\n{self.log.read_text()[-2000:]}")

    def call(self, method: str, session: str | None = None, **parameters) -> dict:
        self.asked += 1
        message = {"id": self.asked, "method": method, "params": parameters}
        self.socket.send(json.dumps(message | ({"sessionId": session} if session else {})))
        deadline = time.monotonic() + ANSWERS_WITHIN
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                answer = json.loads(self.socket.recv(timeout=left))
                # What is told without having been asked for is of no interest.
                if answer.get("id") == self.asked:
                    if "error" in answer:
                        raise SystemExit(f"bench: Chromium refused {method}: {answer['error']['message']}")
                    return answer["result"]
        raise SystemExit(f"bench: Chromium did not answer {method} within {ANSWERS_WITHIN} s")

    @contextlib.contextmanager
    def visitor(self):
        """A window of somebody who was never here: no cache, no cookies."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        try:
            yield Window(self, session)
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)


class Window:
    def __init__(self, browser: Browser, session: str):
        self.browser, self.session = browser, session
        self.script: str | None = None
        self.call("Page.enable")

    def call(self, method: str, **parameters) -> dict:
        return self.browser.call(method, self.session, **parameters)

    def open(self, url: str, script: str) -> None:
        """Goes to a page in which the script runs before anything of the page itself."""
        if self.script:
            self.call("Page.removeScriptToEvaluateOnNewDocument", identifier=self.script)
        self.script = self.call("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
        # A second visit of an address that differs only behind its `#` would load nothing.
        self.call("Page.navigate", url="about:blank")
        gone = self.call("Page.navigate", url=url)
        if "errorText" in gone:
            raise SystemExit(f"bench: Chromium could not open {url}: {gone['errorText']}")

    def evaluate(self, expression: str):
        """What the expression comes to; a promise is waited for."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            thrown = found["exceptionDetails"].get("exception", {}).get("description", "something was thrown")
            raise SystemExit(f"bench: {thrown}")
        return found["result"].get("value")


def program() -> str:
    named = os.environ.get("BELLGLASS_CHROMIUM")
    found = named or next((path for path in map(shutil.which, NAMES) if path), None)
    if not found:
        raise SystemExit("bench: `live` needs Chromium; install it, or name one by BELLGLASS_CHROMIUM")
    return found
