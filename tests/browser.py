"""A headless Chromium, driven over a pipe by its own DevTools protocol; no driver and no package between."""

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_S = 30.0
# Root may not use its sandbox; nothing but this machine is to be asked for.
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--remote-debugging-pipe", "--disable-background-networking", "--disable-component-update",
    "--disable-extensions", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)  # fmt: skip


class Browser:
    """One page in one browser, and all of its events."""

    def __init__(self, write: int, read: int) -> None:
        self._write = write
        self._read = read
        self._received = b""
        self._last = 0
        self._session: dict[str, str] = {}
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command of the protocol; return its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters, **self._session}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline_s = time.monotonic() + PATIENCE_S
        while (reply := self._message(deadline_s)).get("id") != self._last:
            self.events.append(reply)
        assert "error" not in reply, f"{method}: {reply['error']}"
        result: dict[str, Any] = reply["result"]
        return result

    def _message(self, deadline_s: float) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._read], [], [], max(deadline_s - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has ended"
            self._received += piece
        text, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def open(self, url: str) -> None:
        """Open a page in a new tab, and drop the events of others."""
        self._session = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.events.clear()
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; of a promise, what it resolves to."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        poll = f"const look = () => {{ try {{ if ({condition}) return done(true); }} catch {{}} setTimeout(look, 5); }}"
        deadline = f"setTimeout(() => done(false), {PATIENCE_S * 900})"
        came = self.evaluate(f"new Promise(done => {{ {poll}; {deadline}; look(); }})")
        assert came, f"{condition} never came; the page: {self.evaluate('document.body.innerText')}"

    def choose_file(self, selector: str, path: Path) -> None:
        """Give a file to a file field, as a drop does."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def requested(self) -> list[str]:
        """Return what was asked for, pages and all else."""
        self.evaluate("1")
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """Return errors of scripts, and what the page's own security policy refused."""
        self.evaluate("1")
        relevant = [e for e in self.events if e.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown")]
        return [json.dumps(each["params"]) for each in relevant]


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """Run a browser whose profile lies in ``folder``."""
    assert CHROMIUM is not None
    commands_read, commands_write = os.pipe()
    answers_read, answers_write = os.pipe()
    moved = f'exec "$@" 3<&{commands_read} 4>&{answers_write}'
    process = subprocess.Popen(
        ["bash", "-c", moved, "browser", CHROMIUM, *OPTIONS, f"--user-data-dir={folder / 'profile'}"],
        pass_fds=(commands_read, answers_write),
        env={**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for end in (commands_read, answers_write):
        os.close(end)
    try:
        yield Browser(commands_write, answers_read)
    finally:
        # All that it started is in its session.
        os.killpg(process.pid, 9)
        process.wait()
        for end in (commands_write, answers_read):
            os.close(end)
