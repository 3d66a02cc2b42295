"""Counts and times of one candidate revision, from which `RolloutReport` is made."""

from collections.abc import Mapping, Sequence
from math import log
from typing import Final

import msgspec

from shoal_proxy.batching.pending import Delivery, Outcome, RequestResult
from shoal_proxy.errors import RowsFailed
from shoal_proxy.rollout.comparison import OutputDifference
from shoal_schema.interfaces.metrics import RejectionReason
from shoal_schema.interfaces.rollout import MAX_BYTES, MAX_OUTPUTS, BatchTimes, OutputCounts, RolloutReport, rows_bucket

_MIN_TIME_S: Final = 1e-7
"""A shorter time is a fault of the clock."""
_MAX_CHANGE: Final = 256
_OUTPUT_BYTES: Final = 256
"""Most bytes of an output in a report, without its name and change."""
_OTHER_BYTES: Final = 16384
"""Most bytes of a report without its outputs."""
_SERVER_ERROR: Final = 500
_LARGEST: Final = 1.7976931348623157e308
"""JSON has no infinity."""


class _Times:
    """Mean and variance of the logarithm of times, by Welford's algorithm."""

    __slots__ = ("batches", "mean", "squares")

    def __init__(self) -> None:
        self.batches = 0
        self.mean = 0.0
        self.squares = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.batches += 1
        before = value - self.mean
        self.mean += before / self.batches
        self.squares += before * (value - self.mean)


class _Compared:
    """Compared rows of one output."""

    __slots__ = ("change", "disagreements", "max_abs_error", "repeated_disagreements", "repeated_rows", "rows")

    def __init__(self) -> None:
        self.rows = self.disagreements = self.repeated_rows = self.repeated_disagreements = 0
        self.max_abs_error = 0.0
        self.change = ""

    def counts(self) -> OutputCounts:
        """Return the counts for a report."""
        return OutputCounts(
            self.rows,
            self.disagreements,
            min(self.max_abs_error, _LARGEST),
            self.repeated_rows,
            self.repeated_disagreements,
            self.change,
        )


class RolloutCounts:
    """Counts since the first plan that named the candidate; all are 0 at first."""

    def __init__(self) -> None:
        self.served_rows = self.failed_rows = 0
        self.candidate_requests = self.candidate_rows = self.candidate_failed_rows = 0
        self.returned_requests = 0
        self.shadowed_batches = self.shadowed_rows = self.shadow_failed_rows = 0
        self.dropped_batches = 0
        self._left_bytes = MAX_BYTES - _OTHER_BYTES
        """Room for outputs in the report."""
        self._outputs: dict[str, _Compared] = {}
        self._times: dict[int, _Times] = {}

    def record_batch(self, rows: int, runtime_s: float) -> None:
        """Count the time of one of this pod's own batches at the runtime."""
        bucket = rows_bucket(rows)
        times = self._times.get(bucket)
        if times is None:
            times = self._times[bucket] = _Times()
        times.add(log(max(runtime_s, _MIN_TIME_S)))

    def record_outcomes(self, deliveries: Sequence[Delivery]) -> None:
        """Count requests of clients that ended on this pod."""
        for pending, outcome in deliveries:
            if not pending.shadow:
                self.served_rows += pending.rows
                self.failed_rows += failed_rows(outcome, pending.rows)

    def record_candidate(self, rows: int, outcome: Outcome) -> None:
        """Count a request that the candidate served, with any outcome."""
        self.candidate_requests += 1
        self.candidate_rows += rows
        self.candidate_failed_rows += failed_rows(outcome, rows)

    def record_differences(self, differences: Mapping[str, OutputDifference], *, repeated: bool = False) -> None:
        """Count the comparison of a batch's results.

        ``repeated``: with results of this pod itself instead of the candidate's.
        """
        for name, difference in differences.items():
            compared = self._outputs.get(name)
            if compared is None:
                if len(self._outputs) >= MAX_OUTPUTS or not self._spend(_OUTPUT_BYTES, name):
                    continue
                compared = self._outputs[name] = _Compared()
            if repeated:
                compared.repeated_rows += difference.rows
                compared.repeated_disagreements += difference.disagreements
                continue
            compared.rows += difference.rows
            compared.disagreements += difference.disagreements
            compared.max_abs_error = max(compared.max_abs_error, difference.max_abs_error)
            if difference.change and not compared.change:
                change = difference.change[:_MAX_CHANGE]
                compared.change = change if self._spend(0, change) else change[:1]

    def _spend(self, size_bytes: int, text: str) -> bool:
        """Reserve bytes of the report for a text and ``size_bytes`` more; return whether there is room."""
        size_bytes += len(msgspec.json.encode(text))
        if size_bytes > self._left_bytes:
            return False
        self._left_bytes -= size_bytes
        return True

    def report(
        self,
        revision: str,
        candidate: str,
        *,
        ready_candidates: int = 0,
        input_change: str = "",
        output_change: str = "",
    ) -> RolloutReport:
        """Return the report of a proxy with these counts."""
        return RolloutReport(
            revision=revision,
            candidate=candidate,
            served_rows=self.served_rows,
            failed_rows=self.failed_rows,
            candidate_requests=self.candidate_requests,
            candidate_rows=self.candidate_rows,
            candidate_failed_rows=self.candidate_failed_rows,
            returned_requests=self.returned_requests,
            shadowed_batches=self.shadowed_batches,
            shadowed_rows=self.shadowed_rows,
            shadow_failed_rows=self.shadow_failed_rows,
            dropped_batches=self.dropped_batches,
            outputs={name: each.counts() for name, each in self._outputs.items()},
            times=tuple(
                BatchTimes(bucket, each.batches, each.mean, each.squares)
                for bucket, each in sorted(self._times.items())
            ),
            ready_candidates=ready_candidates,
            input_change=input_change,
            output_change=output_change,
        )


def failed_rows(outcome: Outcome, rows: int) -> int:
    """Return the rows that failed because of model, runtime or proxy, not because of the client."""
    if isinstance(outcome, RequestResult):
        return 0
    if isinstance(outcome, RowsFailed):
        return sum([error.status >= _SERVER_ERROR for error in outcome.errors])
    is_fault = outcome.status >= _SERVER_ERROR and outcome.reason is not RejectionReason.DRAINING
    return rows if is_fault else 0
