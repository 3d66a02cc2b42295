"""The HTTP server of the kubelet: container logs and health."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Self

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from shoal_local.kubelet.kubelet import Kubelet

POLL_S = 0.1


Count = Annotated[int, msgspec.Meta(ge=0)]


class LogQuery(msgspec.Struct, frozen=True, rename="camel"):
    """The options of a request for a log, named as in the log subresource."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail_lines: Count | None = None
    limit_bytes: Count | None = None
    since_seconds: Count | None = None
    since_time: datetime | None = None

    @classmethod
    def of(cls, query: Mapping[str, str], now: datetime) -> Self:
        """Parse a query; ``since_seconds`` sets ``since_time``. Raises ValueError: a number or time is invalid."""
        found = msgspec.convert(dict(query), cls, strict=False)
        if found.since_seconds is None:
            return found
        return msgspec.structs.replace(found, since_time=now - timedelta(seconds=found.since_seconds))


def format_lines(lines: Iterable[bytes], wanted: LogQuery) -> Iterator[bytes]:
    """Yield the texts of log lines. A partial line (tag P) has no newline: the next line continues it."""
    # Times in this format sort as text.
    since = wanted.since_time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S") if wanted.since_time else ""
    for line in lines:
        time, _, rest = line.partition(b" ")
        _, _, rest = rest.partition(b" ")
        tag, _, text = rest.partition(b" ")
        if time.decode(errors="replace") < since:
            continue
        end = b"" if tag == b"P" else b"\n"
        yield (time + b" " + text if wanted.timestamps else text).removesuffix(b"\n") + end


def make_app(runs: Kubelet) -> Starlette:
    """Return the ASGI application of the kubelet."""

    async def logs(request: Request) -> Response:
        names = request.path_params
        try:
            wanted = LogQuery.of(request.query_params, datetime.now(UTC))
        except ValueError as error:
            return PlainTextResponse(str(error), 400)
        name = names["container"]
        directory = runs.run_directory(names["namespace"], names["pod"], name, previous=wanted.previous)
        if directory is None:
            kind = "previous terminated container" if wanted.previous else "container"
            message = f'{kind} "{name}" in pod "{names["pod"]}" is waiting to start or not found'
            return PlainTextResponse(message, 400)
        return StreamingResponse(stream(directory, wanted), media_type="text/plain")

    async def healthz(request: Request) -> Response:
        return PlainTextResponse("ok")

    return Starlette(routes=[Route("/containerLogs/{namespace}/{pod}/{container}", logs), Route("/healthz", healthz)])


async def stream(directory: Path, wanted: LogQuery) -> AsyncIterator[bytes]:
    """Yield a log up to the byte limit; ``follow`` waits until the run ends."""
    left = sys.maxsize if wanted.limit_bytes is None else wanted.limit_bytes
    async for block in _blocks(directory, wanted):
        if piece := block[:left]:
            yield piece
        left -= len(piece)
        if left == 0:
            return


async def _blocks(directory: Path, wanted: LogQuery) -> AsyncIterator[bytes]:
    path = directory / "log"
    # The shim creates the file when the container starts.
    while wanted.follow and not path.exists() and _may_grow(directory):  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    if not path.exists():
        return
    with contextlib.closing(Tail(path)) as tail:
        # The shim keeps one rotated file.
        older = directory / "log.1"
        lines = [*(older.read_bytes().splitlines(keepends=True) if older.exists() else []), *tail.more()]
        if wanted.tail_lines is not None:
            lines = lines[-wanted.tail_lines :] if wanted.tail_lines else []
        yield b"".join(format_lines(lines, wanted))
        while wanted.follow:
            # Checked before the read: what was written before the end must still be read.
            last = not _may_grow(directory)
            if lines := tail.more():
                yield b"".join(format_lines(lines, wanted))
            elif last:
                return
            else:
                await asyncio.sleep(POLL_S)


def _may_grow(directory: Path) -> bool:
    """Return whether the run in this directory may still write its log."""
    return directory.exists() and not (directory / "exit.json").exists()


class Tail:
    """A reader of a growing log, across its rotation to ``log.1``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        self._part = b""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def more(self) -> list[bytes]:
        """Return the complete lines since the last call."""
        data = self._part + self._file.read()
        whole, _, self._part = data.rpartition(b"\n")
        replaced = False
        with contextlib.suppress(FileNotFoundError):
            replaced = os.stat(self._path).st_ino != os.fstat(self._file.fileno()).st_ino
        # Rotated, and the old file is read to its end.
        if not whole and replaced:
            self._file.close()
            self._file = self._path.open("rb")
            return self.more()
        return [line + b"\n" for line in whole.split(b"\n")] if whole else []
