"""Counts and times of one candidate revision, from which `RolloutReport` is made."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from shoal_proxy.batching.pending import Delivery, Outcome, RequestResult
from shoal_proxy.dispatch.upstream import RuntimeMemory
from shoal_proxy.errors import RowsFailed
from shoal_proxy.rollout.comparison import OutputDifference
from shoal_schema.interfaces.metrics import RejectionReason
from shoal_schema.interfaces.rollout import (
    MAX_BYTES,
    MAX_OUTPUTS,
    BatchTimes,
    OutputCounts,
    RolloutReport,
    add_batch,
    rows_bucket,
)

_MAX_CHANGE: Final = 256
_OUTPUT_BYTES: Final = 512
"""Most bytes of an output in a report, without its name and change."""
_OTHER_BYTES: Final = 16384
"""Most bytes of a report without its outputs."""
NO_MEMORY: Final = RuntimeMemory()
_LARGEST_COUNT: Final = 2**53
_LARGEST: Final = 1.7976931348623157e308
"""JSON has no infinity."""


class RowTally:
    """Rows of batches or requests, and the sum of their squared numbers."""

    __slots__ = ("rows", "squares")

    def __init__(self) -> None:
        self.rows = 0
        self.squares = 0

    def add(self, rows: int) -> None:
        """Count the rows of one batch or request."""
        self.rows += rows
        self.squares += rows * rows


class _Compared:
    """Compared rows of one output."""

    __slots__ = ("change", "disagreements", "max_abs_error", "repeated_disagreements", "repeated_rows", "rows")

    def __init__(self) -> None:
        self.rows, self.disagreements = RowTally(), RowTally()
        self.repeated_rows, self.repeated_disagreements = RowTally(), RowTally()
        self.max_abs_error = 0.0
        self.change = ""

    def counts(self) -> OutputCounts:
        """Return the counts for a report."""
        return OutputCounts(
            rows=self.rows.rows,
            row_squares=self.rows.squares,
            disagreements=self.disagreements.rows,
            disagreement_squares=self.disagreements.squares,
            max_abs_error=min(self.max_abs_error, _LARGEST),
            repeated_rows=self.repeated_rows.rows,
            repeated_row_squares=self.repeated_rows.squares,
            repeated_disagreements=self.repeated_disagreements.rows,
            repeated_disagreement_squares=self.repeated_disagreements.squares,
            change=self.change,
        )


class RolloutCounts:
    """Counts since the first plan that named the candidate; all are 0 at first."""

    def __init__(self) -> None:
        self.served_rows = 0
        self.failed = RowTally()
        self.candidate_requests = self.candidate_rows = 0
        self.candidate_failed = RowTally()
        self.returned_requests = 0
        self.shadowed_batches = self.shadowed_rows = 0
        self.shadow_failed = RowTally()
        self.dropped_batches = 0
        self._left_bytes = MAX_BYTES - _OTHER_BYTES
        """Room for outputs in the report."""
        self._outputs: dict[str, _Compared] = {}
        self._times: dict[int, BatchTimes] = {}

    @property
    def compared_rows(self) -> dict[str, tuple[int, int]]:
        """Return compared and disagreeing rows by output."""
        return {name: (each.rows.rows, each.disagreements.rows) for name, each in self._outputs.items()}

    def record_batch(self, rows: int, runtime_s: float) -> None:
        """Count the time of one of this pod's own batches at the runtime."""
        bucket = rows_bucket(rows)
        self._times[bucket] = add_batch(self._times.get(bucket) or BatchTimes(bucket), rows, runtime_s)

    def record_outcomes(self, deliveries: Sequence[Delivery]) -> None:
        """Count requests of clients that ended on this pod."""
        for pending, outcome in deliveries:
            if not pending.shadow:
                self.served_rows += pending.rows
                self.failed.add(failed_rows(outcome, pending.rows))

    def record_candidate(self, rows: int, outcome: Outcome) -> None:
        """Count a request that the candidate served, with any outcome."""
        self.candidate_requests += 1
        self.candidate_rows += rows
        self.candidate_failed.add(failed_rows(outcome, rows))

    def record_shadow(self, rows: int, failed: int) -> None:
        """Count a batch that the candidate ran again, of which ``failed`` rows have no result."""
        self.shadowed_batches += 1
        self.shadowed_rows += rows
        self.shadow_failed.add(failed)

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
                compared.repeated_rows.add(difference.rows)
                compared.repeated_disagreements.add(difference.disagreements)
                continue
            compared.rows.add(difference.rows)
            compared.disagreements.add(difference.disagreements)
            compared.max_abs_error = max(compared.max_abs_error, difference.max_abs_error)
            if difference.change and not compared.change:
                change = difference.change[:_MAX_CHANGE]
                compared.change = change if self._spend(0, change) else change[:1]

    def needs_repeats(self, most_rows: int) -> bool:
        """Return whether noise that was not observed yet may explain the disagreement of an output.

        ``most_rows``: repeated rows without disagreement after which it cannot.
        """
        return any(
            each.disagreements.rows and not each.repeated_disagreements.rows and each.repeated_rows.rows < most_rows
            for each in self._outputs.values()
        )

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
        memory: RuntimeMemory = NO_MEMORY,
        input_change: str = "",
        output_change: str = "",
    ) -> RolloutReport:
        """Return the report of a proxy with these counts."""
        return RolloutReport(
            revision=revision,
            candidate=candidate,
            served_rows=self.served_rows,
            failed_rows=self.failed.rows,
            failed_squares=self.failed.squares,
            candidate_requests=self.candidate_requests,
            candidate_rows=self.candidate_rows,
            candidate_failed_rows=self.candidate_failed.rows,
            candidate_failed_squares=self.candidate_failed.squares,
            returned_requests=self.returned_requests,
            shadowed_batches=self.shadowed_batches,
            shadowed_rows=self.shadowed_rows,
            shadow_failed_rows=self.shadow_failed.rows,
            shadow_failed_squares=self.shadow_failed.squares,
            dropped_batches=self.dropped_batches,
            outputs={name: each.counts() for name, each in self._outputs.items()},
            times=tuple(times for _, times in sorted(self._times.items())),
            memory_bytes=min(memory.process_bytes, _LARGEST_COUNT),
            device_memory_bytes=min(memory.device_bytes, _LARGEST_COUNT),
            ready_candidates=ready_candidates,
            input_change=input_change,
            output_change=output_change,
        )


def failed_rows(outcome: Outcome, rows: int) -> int:
    """Return the rows without a result.

    Rows that the model rejects as invalid count: a revision that rejects more rows than the other one is worse. Clients
    that send invalid rows send them to both.
    """
    if isinstance(outcome, RequestResult):
        return 0
    if isinstance(outcome, RowsFailed):
        return len(outcome.errors)
    return 0 if outcome.reason is RejectionReason.DRAINING else rows
