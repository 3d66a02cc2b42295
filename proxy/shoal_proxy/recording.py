"""A recording of what arrives, without payloads: what `shoal simulate` replays."""

from __future__ import annotations

import asyncio
import csv
import io
import time
from collections.abc import AsyncIterator

from shoal_proxy.batching.pending import NEVER_S, Pending

LONGEST_RECORDING_S = 3600.0
HEADER = ("arrived_s", "rows", "shape", "deadline_ms")
_MOST_WAITING = 100_000
"""Lines kept for a reader that is slower than what arrives; then the recording ends, rather than the memory."""
_INTERVAL_S = 0.2


class Recorder:
    """Hands arrivals to whoever records; nobody does, as a rule, and then nothing is kept."""

    def __init__(self) -> None:
        self._recordings: list[list[Pending]] = []

    def arrived(self, pending: Pending) -> None:
        """Note an arrival."""
        for arrivals in self._recordings:
            arrivals.append(pending)

    async def lines(self, seconds: float) -> AsyncIterator[str]:
        """Yield the CSV of what arrives within ``seconds``, a piece at a time."""
        arrivals: list[Pending] = []
        began_s = time.monotonic()
        self._recordings.append(arrivals)
        try:
            yield ",".join(HEADER) + "\n"
            while (left_s := began_s + seconds - time.monotonic()) > 0 and len(arrivals) < _MOST_WAITING:
                await asyncio.sleep(min(_INTERVAL_S, left_s))
                taken, arrivals[:] = list(arrivals), []
                yield _csv(taken, began_s)
        finally:
            self._recordings.remove(arrivals)


def _csv(arrivals: list[Pending], began_s: float) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for pending in arrivals:
        shape = " ".join(f"{name}:{'x'.join(map(str, sizes))}" for name, sizes in pending.key.shapes)
        deadline_ms = "" if pending.due_s == NEVER_S else f"{1000 * (pending.due_s - pending.arrived_s):.3f}"
        writer.writerow((f"{pending.arrived_s - began_s:.6f}", pending.rows, shape, deadline_ms))
    return text.getvalue()
