"""Findings against a candidate: what exceeds which tolerance, in a sentence with its figures.

Each kind has a third of `FALSE_FAILURE_RATE`. The outputs share theirs equally (Bonferroni). The buckets of times have
a weighted mean of e-values, which is an e-value again (Vovk and Wang 2021, "E-values: calibration, combination and
applications").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from math import exp, inf, log
from typing import Final

from shoal_operator.rollout.sequential import (
    Events,
    Times,
    evidence_of_excess,
    evidence_of_share,
    evidence_of_slowdown,
)
from shoal_schema.interfaces.rollout import LEAST_SPREAD, BatchTimes, OutputCounts, RolloutReport
from shoal_schema.resource.comparison import CompareSpec, OutputToleranceSpec

FALSE_FAILURE_RATE: Final = 0.001
"""Probability per rollout that a candidate within the tolerances fails, however often it is judged."""
LEAST_BATCHES: Final = 10
"""Batches of a bucket, on each side, before their times are compared."""
_USUAL_BUCKETS: Final = 11
"""Buckets of up to 1024 rows, which batches usually have. They have most of the weight."""
_USUAL_WEIGHT: Final = 0.9 / _USUAL_BUCKETS
_OTHER_WEIGHT: Final = 0.1 / (32 - _USUAL_BUCKETS)
_EVIDENCE: Final = log(3 / FALSE_FAILURE_RATE)
"""Evidence for a finding of a kind that has one test."""
_LEAST_RATIO: Final = 1e-9


class VerdictCause(StrEnum):
    """Why a candidate fails, or why a step cannot pass."""

    SIGNATURE = "Signature"
    ERRORS = "Errors"
    DISAGREEMENT = "Disagreement"
    LATENCY = "Latency"
    UNKNOWN_OUTPUT = "UnknownOutput"
    """`compare.outputs` names an output that does not exist: the spec is wrong, not the candidate."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding."""

    cause: VerdictCause
    sentence: str


@dataclass(frozen=True, slots=True)
class BucketPair:
    """Times of batches of one bucket, of both revisions."""

    stable: BatchTimes
    candidate: BatchTimes

    @property
    def slope(self) -> float:
        """Return by how much the logarithm of the time grows with that of the rows: 0 to 1.

        If all batches of each revision have the same number of rows, the slope is the one that favors the candidate.
        """
        usual = max((self.stable, self.candidate), key=lambda times: times.log_rows_variance_sum)
        if usual.log_rows_variance_sum < LEAST_SPREAD:
            return float(self.candidate.log_rows_mean > self.stable.log_rows_mean)
        return usual.slope()

    @property
    def ratio(self) -> float:
        """Return the ratio of the candidate's times to the stable revision's at equal rows (geometric means)."""
        stable, candidate = self.at_equal_rows()
        return exp(candidate.mean - stable.mean)

    def at_equal_rows(self) -> tuple[Times, Times]:
        """Return the times as of batches of the stable revision's mean rows (analysis of covariance)."""
        slope, rows = self.slope, self.stable.log_rows_mean
        stable, candidate = (
            Times(
                each.batches,
                each.log_mean - slope * (each.log_rows_mean - rows),
                # Not below 0: the sums are rounded.
                max(
                    0.0, each.log_variance_sum - slope * (2 * each.covariance_sum - slope * each.log_rows_variance_sum)
                ),
            )
            for each in (self.stable, self.candidate)
        )
        return stable, candidate


def find_signature_change(compare: CompareSpec, stable: RolloutReport) -> Finding | None:
    """Return a change of inputs, or a change of outputs that is not allowed."""
    if stable.input_change:
        return Finding(VerdictCause.SIGNATURE, f"The candidate has other inputs: {stable.input_change}.")
    changed = [f"output `{name}`: {counts.change}" for name, counts in stable.outputs.items() if counts.change]
    change = stable.output_change or "; ".join(changed)
    if not change or compare.allow_signature_change:
        return None
    sentence = f"The candidate has other outputs: {change}. `compare.allowSignatureChange` is false."
    return Finding(VerdictCause.SIGNATURE, sentence)


def find_errors(compare: CompareSpec, stable: RolloutReport) -> Finding | None:
    """Return a share of failed rows beyond `errors.maxShare` plus the stable revision's share."""
    rows, failed = candidate_rows(stable), candidate_failed_rows(stable)
    squares = stable.candidate_failed_squares + stable.shadow_failed_squares
    candidate = Events.of_batches(rows, failed, squares)
    usual = Events.of_batches(stable.served_rows, stable.failed_rows, stable.failed_squares)
    if evidence_of_excess(candidate, usual, float(compare.errors.max_share)) < _EVIDENCE:
        return None
    sentence = (
        f"{failed:,} of {rows:,} rows failed on the candidate ({percent(failed, rows)}), and {stable.failed_rows:,} of"
        f" {stable.served_rows:,} on the stable revision; `compare.errors.maxShare` is {compare.errors.max_share}."
    )
    return Finding(VerdictCause.ERRORS, sentence)


def find_disagreement(compare: CompareSpec, stable: RolloutReport, deterministic_from_rows: float) -> Finding | None:
    """Return the output that disagrees most, of those that disagree beyond tolerance and noise.

    Args:
        compare: tolerances.
        stable: sum of the stable pods' reports.
        deterministic_from_rows: repeated rows from which a stable revision that never disagreed with itself counts as
            deterministic. Before, a part of the disagreement may be noise that was not observed yet.
    """
    needed = _EVIDENCE + log(max(1, len(stable.outputs)))
    found = []
    for name, counts in stable.outputs.items():
        agreement = compare.outputs.get(name, OutputToleranceSpec()).agreement
        tolerated = float(1 - Decimal(agreement))
        candidate = Events.of_batches(
            counts.rows, counts.disagreements, counts.disagreement_squares, counts.row_squares
        )
        noise = Events.of_batches(
            counts.repeated_rows,
            counts.repeated_disagreements,
            counts.repeated_disagreement_squares,
            counts.repeated_row_squares,
        )
        evidence = evidence_of_excess(candidate, noise, tolerated)
        if not noise.events and counts.repeated_rows >= deterministic_from_rows:
            evidence = evidence_of_share(candidate, tolerated)
        if evidence >= needed:
            found.append((counts.disagreements / counts.rows, _disagreement(name, counts, agreement)))
    return Finding(VerdictCause.DISAGREEMENT, max(found)[1]) if found else None


def find_slowdown(compare: CompareSpec, pairs: Sequence[BucketPair]) -> Finding | None:
    """Return the bucket with most evidence for times beyond `latency.maxRatio`; None if all have too little.

    Without that limit, there is no finding.
    """
    if compare.latency.max_ratio is None:
        return None
    limit = max(float(compare.latency.max_ratio), _LEAST_RATIO)
    found: list[tuple[float, BucketPair]] = []
    for pair in pairs:
        usual, times = pair.at_equal_rows()
        is_usual = pair.stable.rows < 1 << _USUAL_BUCKETS
        weight = _USUAL_WEIGHT if is_usual else _OTHER_WEIGHT
        found.append((log(weight) + evidence_of_slowdown(times, usual, log(limit)), pair))
    most, worst = max(found, key=lambda each: each[0], default=(-inf, None))
    # The logarithm of the weighted mean; buckets without times add at least nothing.
    if worst is None or most + log(sum(exp(evidence - most) for evidence, _ in found)) < _EVIDENCE:
        return None
    sentence = (
        f"Batches of {_rows_range(worst.stable.rows)} take {worst.ratio:.3g} times as long on the candidate as on the"
        f" stable revision ({worst.candidate.batches:,} and {worst.stable.batches:,} batches);"
        f" `compare.latency.maxRatio` is {compare.latency.max_ratio}."
    )
    return Finding(VerdictCause.LATENCY, sentence)


def find_unknown_outputs(compare: CompareSpec, stable: RolloutReport) -> Finding | None:
    """Return tolerances of outputs that were not compared although others were."""
    unknown = sorted(compare.outputs.keys() - stable.outputs.keys())
    if not stable.outputs or not unknown:
        return None
    names = ", ".join(f"`{name}`" for name in unknown)
    known = ", ".join(f"`{name}`" for name in sorted(stable.outputs))
    sentence = f"`compare.outputs` names {names}, but the compared outputs are {known}. Correct the names."
    return Finding(VerdictCause.UNKNOWN_OUTPUT, sentence)


def pair_times(stable: RolloutReport, candidate: RolloutReport) -> tuple[BucketPair, ...]:
    """Return the buckets of which both revisions have `LEAST_BATCHES`."""
    enough = {each.rows: each for each in stable.times if each.batches >= LEAST_BATCHES}
    return tuple(
        BucketPair(enough[each.rows], each)
        for each in candidate.times
        if each.rows in enough and each.batches >= LEAST_BATCHES
    )


def candidate_rows(stable: RolloutReport) -> int:
    """Return the rows that the candidate ran, those that failed included."""
    return stable.shadowed_rows + stable.candidate_rows


def dropped_for_candidate(stable: RolloutReport) -> int:
    """Return the batches and requests that were selected for the candidate and did not run there."""
    return stable.dropped_batches + stable.returned_requests


def candidate_failed_rows(stable: RolloutReport) -> int:
    """Return the rows that failed on the candidate."""
    return stable.shadow_failed_rows + stable.candidate_failed_rows


def percent(part: float, whole: float) -> str:
    """Return a share as text; 0 of nothing is 0."""
    return f"{100 * part / whole if whole else 0.0:.3g} %"


def _disagreement(name: str, counts: OutputCounts, agreement: str) -> str:
    return (
        f"Output `{name}` disagrees in {counts.disagreements:,} of {counts.rows:,} rows"
        f" ({percent(counts.disagreements, counts.rows)}), and on the stable revision itself in"
        f" {counts.repeated_disagreements:,} of {counts.repeated_rows:,} repeated rows; `compare.outputs`"
        f" requires an agreement of {agreement}."
    )


def _rows_range(largest: int) -> str:
    """Return the sizes of a bucket as text."""
    least = largest // 2 + 1
    return f"{least} to {largest} rows" if least < largest else f"{largest} row{'s' if largest > 1 else ''}"
