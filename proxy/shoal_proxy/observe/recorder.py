"""Recorder of arriving requests, without payloads, for `shoal simulate`."""

import asyncio
import csv
import io
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import NamedTuple

from shoal_proxy.batching.pending import NEVER_S, PendingRequest

MAX_RECORDING_S = 3600.0
HEADER = ("arrived_s", "rows", "shape", "deadline_ms")
_MAX_WAITING = 100_000
"""Most arrivals buffered for a slow reader; the recording ends beyond them."""
_INTERVAL_S = 0.2


class Arrival(NamedTuple):
    """The arrival of one request, without its payload."""

    arrived_s: float
    rows: int
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    soft_deadline_s: float


@dataclass(slots=True, eq=False)
class _Recording:
    """The arrivals that one reader of a recording has not read yet."""

    arrivals: list[Arrival] = field(default_factory=list)
    full: bool = False


class Recorder:
    """Passes arrivals of requests to all active recordings."""

    def __init__(self) -> None:
        self._recordings: list[_Recording] = []

    @property
    def active(self) -> bool:
        """Return whether a recording is active."""
        return bool(self._recordings)

    def arrived(self, pending: PendingRequest) -> None:
        """Record an arrival, whether the request is admitted or rejected."""
        for recording in self._recordings:
            recording.full = recording.full or len(recording.arrivals) >= _MAX_WAITING
            if not recording.full:
                # Copied now: admission may set a default deadline later, and only the client's is recorded.
                arrival = Arrival(pending.arrived_s, pending.rows, pending.key.shapes, pending.soft_deadline_s)
                recording.arrivals.append(arrival)

    async def lines(self, seconds: float) -> AsyncIterator[str]:
        """Yield a recording of the next ``seconds`` as pieces of CSV text."""
        recording = _Recording()
        began_s = time.monotonic()
        self._recordings.append(recording)
        try:
            yield ",".join(HEADER) + "\n"
            while (left_s := began_s + seconds - time.monotonic()) > 0 and not recording.full:
                await asyncio.sleep(min(_INTERVAL_S, left_s))
                taken, recording.arrivals = recording.arrivals, []
                yield _csv(taken, began_s)
            if recording.arrivals:
                yield _csv(recording.arrivals, began_s)
        finally:
            self._recordings.remove(recording)


def _csv(arrivals: list[Arrival], began_s: float) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for arrival in arrivals:
        shape = " ".join(f"{name}:{'x'.join(map(str, sizes))}" for name, sizes in arrival.shapes)
        deadline_ms = (
            "" if arrival.soft_deadline_s == NEVER_S else f"{1000 * (arrival.soft_deadline_s - arrival.arrived_s):.3f}"
        )
        # Times are relative to the start of the recording.
        writer.writerow((f"{arrival.arrived_s - began_s:.6f}", arrival.rows, shape, deadline_ms))
    return text.getvalue()
