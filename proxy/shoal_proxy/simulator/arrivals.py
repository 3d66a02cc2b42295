"""Arrival processes for benchmarks: seeded, in seconds.

All are open loops, whose clients do not wait for responses, except `ClosedLoop`.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.simulator.engine import SimulatedRequest

Times = npt.NDArray[np.float64]


def poisson(rate: float, count: int, *, seed: int) -> Times:
    """Return ``count`` Poisson arrivals with ``rate`` per second."""
    return gamma(rate, count, cv=1.0, seed=seed)


def gamma(rate: float, count: int, *, cv: float, seed: int) -> Times:
    """Return arrivals with gamma-distributed gaps; a ``cv`` of 1 is Poisson."""
    shape = 1 / cv**2
    return np.cumsum(np.random.default_rng(seed).gamma(shape, 1 / (rate * shape), count))


def on_off(low: float, high: float, count: int, *, quiet_s: float, busy_s: float, seed: int) -> Times:
    """Return Poisson arrivals with alternating rates ``low`` and ``high``.

    Args:
        low: arrivals per second in a quiet period; may be 0.
        high: arrivals per second in a busy period.
        count: number of arrivals.
        quiet_s: mean length of a quiet period; lengths are exponential.
        busy_s: mean length of a busy period.
        seed: seed of the random numbers.
    """
    random = np.random.default_rng(seed)
    lengths_s: list[float] = []
    rates: list[float] = []
    expected = 0.0
    # Enough periods that the last arrival lies within them.
    while expected < 1.5 * count + 100:
        for rate, mean_s in ((low, quiet_s), (high, busy_s)):
            lengths_s.append(random.exponential(mean_s))
            rates.append(rate)
            expected += rate * lengths_s[-1]
    edges_s = np.concatenate([[0.0], np.cumsum(lengths_s)])
    return _inhomogeneous(edges_s, np.array(rates), count, random)


def bursty(rate: float, count: int, *, duration_s: float, seed: int) -> Times:
    """Return arrivals with bursts within bursts, on every time scale.

    The trace is synthetic. Its rate is a random cascade: the requests of ``duration_s`` are split unevenly between its
    halves, those of each half between its quarters, down to fractions of a second. The minutes and seconds of public
    invocation traces vary alike (Azure Functions 2021: CV of counts far above 1 at every resolution). Within the finest
    step, arrivals are Poisson.

    Args:
        rate: mean arrivals per second.
        count: number of arrivals.
        duration_s: span of the cascade, which is repeated with other random numbers.
        seed: seed of the random numbers.
    """
    random = np.random.default_rng(seed)
    pieces: list[Times] = []
    have = 0.0
    while have < 1.5 * count + 100:
        weights = np.ones(1)
        # Split the requests of each interval unevenly between its halves.
        for _ in range(_CASCADE_LEVELS):
            share = random.beta(_CASCADE_BETA, _CASCADE_BETA, len(weights))
            weights = np.stack([2 * share * weights, 2 * (1 - share) * weights], axis=1).ravel()
        pieces.append(rate * weights)
        have += rate * duration_s
    rates = np.concatenate(pieces)
    edges = np.linspace(0.0, duration_s * len(pieces), len(rates) + 1)
    arrivals = _inhomogeneous(edges, rates, count, random)
    # A cascade cut off at ``count`` has another mean rate: scale it to the wanted one.
    return scaled(arrivals, float(arrivals[-1]) * rate / count)


def scaled(arrived_s: Times, factor: float) -> Times:
    """Return a trace ``factor`` times as fast."""
    return arrived_s / factor


def requests(arrived_s: Times | Sequence[float], objective_s: float = NEVER_S) -> list[SimulatedRequest]:
    """Return a one-row request per arrival.

    The deadline of each request is ``objective_s`` after its arrival.
    """
    return [SimulatedRequest(float(time), float(time) + objective_s) for time in arrived_s]


class ClosedLoop:
    """Clients that each wait for a response before their next request.

    Between a response and the next request passes a think time. A rejection counts as a response. No request is sent
    after ``until_s``.
    """

    def __init__(self, callers: int, think_s: Callable[[], float], *, until_s: float, objective_s: float) -> None:
        self.sent: list[SimulatedRequest] = []
        self._callers = callers
        self._think_s = think_s
        self._until_s = until_s
        self._objective_s = objective_s

    def start(self) -> list[SimulatedRequest]:
        """Return the first request of each client."""
        return [self._send(self._think_s()) for _ in range(self._callers)]

    def following(self, request: SimulatedRequest, now_s: float) -> SimulatedRequest | None:
        """Return the next request of a client after its response or rejection."""
        time_s = now_s + self._think_s()
        return self._send(time_s, request) if time_s < self._until_s else None

    def _send(self, time_s: float, previous: SimulatedRequest | None = None) -> SimulatedRequest:
        request = SimulatedRequest(time_s, time_s + self._objective_s, previous=previous)
        self.sent.append(request)
        return request


_CASCADE_LEVELS = 12
_CASCADE_BETA = 6.0
"""Parameter of the beta distribution of halves: at 6 the rate of 12 levels has a CV of 1.2, at 1 it would have 5.5."""


def _inhomogeneous(edges_s: Times, rates: Times, count: int, random: np.random.Generator) -> Times:
    """Return Poisson arrivals whose rate is constant between the edges."""
    # Invert the cumulative rate at the arrivals of a Poisson process of rate 1.
    due = np.concatenate([[0.0], np.cumsum(rates * np.diff(edges_s))])
    wanted = np.cumsum(random.exponential(1.0, count))
    # Where the rate is 0 nothing arrives, so any inverse is right.
    return np.interp(wanted, due, edges_s)
