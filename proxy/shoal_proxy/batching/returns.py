"""Hold a batch for clients that are about to send their next request.

Clients in closed loops all send their next request when their batch ends. Starting the first of these requests alone
costs two batches: 1 + 63 instead of 64. This module estimates the time between a response and the next request of the
same connection. It holds a batch as long as the device's idle time is shorter than the extra time of a second batch.
Let w rows wait, let n rows be about to return, r of them within h, and let l(x) be the time of a batch of x rows:

    hold h, if  h < l(w) + l(n) - l(w + r) - l(n - r)

So holding pays only if nearly all clients return. Holding for a part of the clients, and then running the others as a
second batch, would lose time. Late clients are ignored; their requests join the next batch.

Holding must also pay in each following round. Clients in one batch all return after it, and the device is idle until
then, in every round. With two batches, the clients of one return while the other runs. The host's time to send
responses and to receive and queue n requests grows with n, so it is estimated as a line g. If g(w + n) is longer than
the extra time of a second batch, no batch is held:

    g(w + n) < l(w) + l(n) - l(w + n)

Clients of an open loop return after many milliseconds or never. For them the condition is never met, and no batch is
held.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from itertools import accumulate

from shoal_proxy.batching.latency import FittedLine, LatencyTable

THINK_S = (0.0001, 0.0002, 0.0003, 0.0005, 0.0007, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.006, 0.008, 0.012, 0.016)
"""Bounds of the histogram of think times; no batch is held for clients that take longer than the last."""
_CLOSED = 0.5
"""Share of clients back within the last bound above which the load counts as a closed loop."""
_NEARLY_ALL = 0.9
_FORGET = 0.9
"""Weight that the think times of one burst keep after each later burst."""


class Burst:
    """The clients of one batch, and the times until their next requests."""

    __slots__ = ("back_s", "clients", "completed_s", "outstanding", "returned_rows")

    def __init__(self, completed_s: float) -> None:
        self.completed_s = completed_s
        self.outstanding = 0
        self.clients = 0
        """Clients that have not returned soon."""
        self.back_s: list[float] = []
        """Think times of the clients that returned soon, shortest first."""
        self.returned_rows = 0

    def add_response(self, rows: int) -> None:
        """Count a response with ``rows`` rows."""
        self.outstanding += rows
        self.clients += 1

    def record_return(self, rows: int, now_s: float) -> None:
        """Record the next request of a client whose response had ``rows`` rows."""
        self.outstanding -= rows
        think_s = now_s - self.completed_s
        if think_s <= THINK_S[-1]:
            self.clients -= 1
            self.back_s.append(think_s)
            self.returned_rows += rows

    def think_time_counts(self) -> list[int]:
        """Return a histogram of clients by think time, with the limits `THINK_S`.

        The last count is the clients that took longer or did not return.
        """
        counts = [0] * (len(THINK_S) + 1)
        for think_s in self.back_s:
            counts[bisect_left(THINK_S, think_s)] += 1
        counts[-1] = max(0, self.clients)
        return counts

    @property
    def gathering_s(self) -> float:
        """Return the time (s) in which most clients sent their next requests.

        It is the time of 90 % of the clients that sent their next request soon after a response.
        """
        return self.back_s[int(_NEARLY_ALL * (len(self.back_s) - 1))] if self.back_s else 0.0


class ReturningClients:
    """Statistics on how soon clients return after a response."""

    def __init__(self) -> None:
        self._bursts: deque[Burst] = deque()
        self._counts = [0.0] * (len(THINK_S) + 1)
        self._shares = [0.0] * len(THINK_S)
        self._gathering = FittedLine()

    @property
    def closed_loop(self) -> bool:
        """Return whether most clients return soon after a response."""
        return self._shares[-1] > _CLOSED

    def burst(self, completed_s: float) -> Burst:
        """Create the record of the requests that follow a completed batch.

        Earlier records that are complete are added to the statistics.
        """
        while self._bursts and completed_s - self._bursts[0].completed_s > THINK_S[-1]:
            over = self._bursts.popleft()
            over.outstanding = 0
            if over.back_s:
                self._gathering.observe(over.returned_rows, over.gathering_s)
            self._counts = [
                _FORGET * old + new for old, new in zip(self._counts, over.think_time_counts(), strict=True)
            ]
            total = sum(self._counts)
            self._shares = [count / total for count in accumulate(self._counts[:-1])] if total else self._shares
        burst = Burst(completed_s)
        self._bursts.append(burst)
        return burst

    def hold_s(
        self,
        waiting: int,
        running: Sequence[tuple[int, float]],
        table: LatencyTable,
        *,
        free_s: float,
        max_rows: int,
    ) -> float:
        """Return the time (s) after ``free_s`` to hold the next batch; 0 sends it at once.

        Args:
            waiting: rows that could be sent now.
            running: rows and expected response time of each batch at the runtime.
            table: batch times.
            free_s: earliest start on the device.
            max_rows: maximum rows of a batch.
        """
        # Responses sent recently, and those of the batches that still run.
        bursts = [(burst.outstanding, burst.completed_s) for burst in self._bursts if burst.outstanding > 0]
        bursts.extend(running)
        if not bursts or waiting >= max_rows or not self.closed_loop:
            return 0.0
        coming = sum([count * self._share(completed_s, free_s, THINK_S[-1]) for count, completed_s in bursts])
        # In every later round too, the second batch must cost more than it takes all clients to gather.
        together_s = _saved_s(waiting, round(coming), round(coming), max_rows, table)
        if self._gathering.at(waiting + round(coming)) >= together_s:
            return 0.0
        best_s, most_s = 0.0, 0.0
        for hold_s in THINK_S:
            returning = sum([count * self._share(completed_s, free_s, hold_s) for count, completed_s in bursts])
            if returning >= _NEARLY_ALL * coming:  # stragglers do not count
                returning = coming
            saved_s = _saved_s(waiting, round(coming), round(returning), max_rows, table) - hold_s
            if saved_s > most_s:
                best_s, most_s = hold_s, saved_s
        return best_s

    def _share(self, completed_s: float, free_s: float, hold_s: float) -> float:
        """Return the share of a batch's absent clients that return in time.

        Args:
            completed_s: time at which the batch's responses were sent.
            free_s: earliest time of the next batch; clients that have not returned by then are absent.
            hold_s: further time (s) in which absent clients may return.
        """
        gone = self._within(free_s - completed_s)
        return (self._within(free_s + hold_s - completed_s) - gone) / (1 - gone) if gone < 1 else 0.0

    def _within(self, think_s: float) -> float:
        index = bisect_left(THINK_S, think_s + 1e-9)
        return self._shares[min(index, len(THINK_S)) - 1] if index else 0.0


def _saved_s(waiting: int, coming: int, returning: int, max_rows: int, table: LatencyTable) -> float:
    """Return the time saved by running ``returning`` of the ``coming`` rows together with those ``waiting``."""
    together = min(waiting + returning, max_rows)
    rest = waiting + coming - together
    apart_s = _cost_s(waiting, table) + _cost_s(coming, table)
    return apart_s - _cost_s(together, table) - _cost_s(rest, table)


def _cost_s(rows: int, table: LatencyTable) -> float:
    return table.mean_s(rows) if rows else 0.0
