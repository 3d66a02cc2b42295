"""Runtimes that speak HTTP in ways of their own, and the proxy as a process in front of them."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

from tests import plain
from tests.fakes import FakeRuntime
from tests.interop.environments import ROOT

Rewrite = Callable[[bytes], bytes]


class _Held:
    """A writer that keeps what is written."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        """Do nothing."""


@dataclass
class ForeignRuntime(FakeRuntime):
    """A `FakeRuntime` whose answers go through ``rewrite``; ``closes``: after each, it hangs up."""

    rewrite: Rewrite = bytes
    closes: bool = False

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        held = _Held()
        await super()._serve_one(reader, cast("asyncio.StreamWriter", held))
        writer.write(self.rewrite(held.data))
        await writer.drain()
        return not self.closes


def announcing_close(answer: bytes) -> bytes:
    """Say that the connection ends with this answer."""
    return answer.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)


def as_http_1_0(answer: bytes) -> bytes:
    """Answer as the simplest servers do."""
    return answer.replace(b"HTTP/1.1", b"HTTP/1.0", 1)


def in_chunks(answer: bytes) -> bytes:
    """Answer with ``Transfer-Encoding: chunked``, in many pieces and with a trailer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    pieces = [body[start : start + 7] for start in range(0, len(body), 7)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", chunks + b"0", b"X-Trailer: 1", b"", b""])


@contextmanager
def proxy_process(**settings: str) -> Iterator[tuple[str, str]]:
    """Run ``python -m shoal_proxy`` with settings from its environment; give its own and its admin port's address."""
    environment = {"SHOAL_PROXY_LISTEN": "127.0.0.1:0", "SHOAL_PROXY_ADMIN_LISTEN": "127.0.0.1:0", **settings}
    own = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT / 'proxy'}:{ROOT / 'schema'}"}
    command = [sys.executable, "-m", "shoal_proxy"]
    with subprocess.Popen(command, env={**own, **environment}, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            seen = []
            for line in process.stderr:
                seen.append(line)
                if "event=listening" in line:
                    break
            else:
                raise AssertionError("".join(seen))
            words = dict(word.partition("=")[::2] for word in seen[-1].split() if "=" in word)
            yield words["address"], words["admin"]
            process.terminate()
            assert process.wait(20) == 0
        finally:
            process.kill()


def until_ok(url: str, within_s: float = 60.0) -> None:
    """Ask for ``url`` until it answers 200: another process has no event to wait for."""
    end_s = time.monotonic() + within_s
    while (answer := plain.get(url)).status_code != 200:
        assert time.monotonic() < end_s, answer.text
        time.sleep(0.05)
