"""Sequential tests of a candidate against the stable revision.

The operator repeats each test every two seconds and stops at the first rejection, so an ordinary test would reject an
equal candidate sooner or later. These tests use e-processes: under the null hypothesis, the expected value at any
stopping time is at most 1. By Ville's inequality, the probability that one ever reaches 1 / rate is at most the rate
(Ramdas, Grünwald, Vovk and Shafer 2023, "Game-theoretic statistics and safe anytime-valid inference").

Each function returns a natural logarithm. For two samples, the e-processes are multiplied and the product is minimized
over all pairs of parameters of the null hypothesis, so that neither sample's true parameter must be estimated.
"""

from dataclasses import dataclass
from math import inf, lgamma, log
from typing import Self

# Prior of a share: Beta(1/8, 1). Half of its mass is below 0.004, where shares of failing rows usually are.
_ALPHA, _BETA = 0.125, 1.0
# Prior of the difference of a mean from its hypothesis, in standard deviations: normal with this inverse variance.
# Slowdowns that matter are 0.2 to 1 standard deviations of a batch's time; the stable revision's mean, of more batches,
# differs less.
_CANDIDATE_PRECISION, _STABLE_PRECISION = 4.0, 300.0
_LEAST_VARIANCE = 0.01**2
"""Smallest variance of the logarithm of a time: 1 % of it, so that a coarse clock cannot make all times equal."""
_LEAST_BATCHES = 30
_GRID = 128


@dataclass(frozen=True, slots=True)
class Events:
    """Number of rows with an event, as of rows that fail independently of one another."""

    rows: float
    events: float

    @classmethod
    def of_batches(cls, rows: int, events: int, event_squares: int, row_squares: int = 0) -> Self:
        """Divide both counts by the number of rows that fail together in a batch.

        Source: Rao and Scott 1992, "A simple method for the analysis of clustered binary data": the design effect, at
        least 1. With fewer than 30 batches, or without `row_squares`, rows of a batch with several events count as
        dependent even if chance explains them.

        Args:
            rows: rows with and without the event.
            events: rows with the event.
            event_squares: sum over batches of their squared number of events.
            row_squares: sum over batches of their squared number of rows. 0: unknown.
        """
        rows = max(rows, events)
        if not events:
            return cls(rows, 0)
        chance = events / rows if 0 < row_squares * _LEAST_BATCHES <= rows**2 and events < rows else 0.0
        together = max(1.0, (event_squares - chance**2 * row_squares) / (events * (1.0 - chance)))
        return cls(rows / together, events / together)

    @property
    def share(self) -> float:
        """Return the share of rows with the event; 0 without rows."""
        return self.events / self.rows if self.rows else 0.0

    def evidence(self, share: float) -> float:
        """Return the evidence against a true share: the beta-binomial mixture.

        Source: Robbins 1970, "Statistical methods related to the law of the iterated logarithm".
        """
        absent = self.rows - self.events
        mixed = _log_beta(_ALPHA + self.events, _BETA + absent) - _log_beta(_ALPHA, _BETA)
        return mixed - _times_log(self.events, share) - _times_log(absent, 1.0 - share)


@dataclass(frozen=True, slots=True)
class Times:
    """Logarithms of execution times: number, mean, and sum of squared differences from the mean."""

    count: int
    mean: float
    variance_sum: float

    def evidence(self, mean: float, precision: float) -> float:
        """Return the evidence against a true mean: the t-test with a normal prior of the effect.

        Source: Wang and Ramdas 2024, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown
        variance". It is exact for log-normal times from the second one on.
        """
        between = self.count * (self.mean - mean) ** 2
        within = self.variance_sum + self.count * _LEAST_VARIANCE
        kept = precision / (self.count + precision)
        return 0.5 * log(kept) + 0.5 * self.count * log((within + between) / (within + between * kept))


def evidence_of_excess(candidate: Events, noise: Events, tolerated: float) -> float:
    """Return the evidence that the candidate's share exceeds `tolerated` plus the share of `noise`.

    Without rows of noise, any share may be noise, and there is no evidence. To assume that there is none, use
    `evidence_of_share`.
    """
    low, high = noise.share, candidate.share - tolerated
    if high <= low:
        return 0.0
    # The product is convex in the noise's share: bisect its derivative.
    for _ in range(50):
        share = (low + high) / 2
        beyond = tolerated + share
        slope = _per_share(candidate.rows - candidate.events, 1.0 - beyond) - _per_share(candidate.events, beyond)
        slope += _per_share(noise.rows - noise.events, 1.0 - share) - _per_share(noise.events, share)
        low, high = (low, share) if slope > 0 else (share, high)
    return candidate.evidence(tolerated + low) + noise.evidence(low)


def evidence_of_share(candidate: Events, tolerated: float) -> float:
    """Return the evidence that the candidate's share exceeds `tolerated`."""
    return candidate.evidence(tolerated) if candidate.share > tolerated else 0.0


def evidence_of_slowdown(candidate: Times, stable: Times, log_ratio: float) -> float:
    """Return the evidence that the difference of the two means exceeds `log_ratio`."""

    def evidence(mean: float) -> float:
        """Return the evidence against a true mean of the stable revision."""
        return stable.evidence(mean, _STABLE_PRECISION) + candidate.evidence(mean + log_ratio, _CANDIDATE_PRECISION)

    low, high = stable.mean, candidate.mean - log_ratio
    if high <= low:
        return 0.0
    # The product may have two local minima, so a grid precedes the narrowing.
    for _ in range(2):
        width = (high - low) / _GRID
        best = min((low + width * index for index in range(_GRID + 1)), key=evidence)
        low, high = best - width, best + width
    return evidence(best)


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def _per_share(count: float, share: float) -> float:
    """Return a count divided by a share; 0 of nothing, although the share may be rounded to 0 then."""
    return count / share if count else 0.0


def _times_log(count: float, share: float) -> float:
    if count <= 0:
        return 0.0
    return count * log(share) if share > 0 else -inf
