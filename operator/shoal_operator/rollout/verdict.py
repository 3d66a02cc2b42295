"""Verdict on a candidate: continue with the step, next step, or failed.

The verdict is computed from the counts since the candidate's start, and may be computed at any time and any number of
times: see `findings.FALSE_FAILURE_RATE`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

from shoal_operator.rollout.findings import (
    BucketPair,
    Finding,
    VerdictCause,
    candidate_failed_rows,
    candidate_rows,
    dropped_for_candidate,
    find_disagreement,
    find_errors,
    find_signature_change,
    find_slowdown,
    find_unknown_outputs,
    pair_times,
    percent,
)
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces.rollout import RolloutReport
from shoal_schema.resource.comparison import CompareSpec
from shoal_schema.resource.rollout import RolloutStep, step_rows

IDLE_S: Final = 60.0
"""A step without rows for this long is reported as waiting for requests."""
_MIB: Final = 1 << 20
LEAST_REPEATED_ROWS: Final = 2000
"""Repeated rows from which, at the end of a step, a stable revision without disagreement counts as deterministic.

One that disagrees with itself in 0.5 % of rows has none in so many with a probability of 0.00004.
"""


class VerdictState(StrEnum):
    """What the operator does next."""

    CONTINUE = "Continue"
    STEP_PASSED = "StepPassed"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Shortest time from the creation of a pod until it was ready (s); None without a ready pod."""

    stable_s: float | None = None
    candidate_s: float | None = None


NO_STARTS: Final = StartTimes()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict at one time."""

    state: VerdictState
    sentence: str
    """``status.rollout.verdict``."""
    figures: Json
    """``status.rollout.figures``."""
    cause: VerdictCause | None = None
    """Of `FAILED`; or of `CONTINUE`, why a step that has its rows and minutes does not pass."""


@dataclass(frozen=True, slots=True)
class StepProgress:
    """The current step and its beginning."""

    step: RolloutStep
    rows_before: int
    """`candidate_rows` at the start of the step."""
    elapsed_s: float
    """Time since the start of the step."""
    served_before: int = 0
    """Rows that the stable pods had run for clients at the start of the step."""
    dropped_before: int = 0
    """`dropped_for_candidate` at the start of the step."""

    def has_passed(self, rows: int) -> bool:
        """Return whether the step has its rows and its minutes; ``rows`` is `candidate_rows` now."""
        least_rows = max(1, step_rows(self.step))
        return rows - self.rows_before >= least_rows and self.elapsed_s >= (self.step.minutes or 0) * 60


def judge(
    compare: CompareSpec,
    stable: RolloutReport,
    candidate: RolloutReport,
    progress: StepProgress,
    *,
    starts: StartTimes = NO_STARTS,
    repeats: bool = True,
) -> Verdict:
    """Return the verdict on a candidate.

    Args:
        compare: tolerances.
        stable: sum of the stable pods' reports.
        candidate: sum of the candidate pods' reports. Only times and memory are read.
        progress: progress of the step.
        starts: reported, and not judged, as is the memory.
        repeats: whether stable pods repeat rows. If not, any disagreement is the candidate's.
    """
    rows, pairs = candidate_rows(stable), pair_times(stable, candidate)
    figures = {**_figures(stable, rows, pairs), **_memory_figures(stable, candidate), **_start_figures(starts)}
    failure = (
        find_signature_change(compare, stable)
        or find_errors(compare, stable)
        or find_disagreement(compare, stable, _deterministic_from_rows(progress, rows, repeats=repeats))
        or find_slowdown(compare, pairs)
    )
    if failure is not None:
        return Verdict(VerdictState.FAILED, failure.sentence, figures, failure.cause)
    unknown = find_unknown_outputs(compare, stable)
    if unknown is not None:
        return Verdict(VerdictState.CONTINUE, unknown.sentence, figures, unknown.cause)
    if not progress.has_passed(rows):
        return Verdict(VerdictState.CONTINUE, _describe_progress(progress, stable, pairs, figures), figures)
    suspicion = find_disagreement(compare, stable, 0)
    if suspicion is not None:
        return Verdict(VerdictState.CONTINUE, _describe_suspicion(suspicion), figures, suspicion.cause)
    sentence = (
        f"The candidate passed the step with {rows - progress.rows_before:,} rows: {_describe(stable, pairs, figures)}."
    )
    return Verdict(VerdictState.STEP_PASSED, sentence, figures)


def _deterministic_from_rows(progress: StepProgress, rows: int, *, repeats: bool) -> float:
    """Return the argument of `find_disagreement`.

    A step must not pass while a disagreement may be the candidate's, nor a candidate fail for noise that was not
    measured. So the step waits for repeated rows.
    """
    if not repeats:
        return 0
    return LEAST_REPEATED_ROWS if progress.has_passed(rows) else inf


def _figures(stable: RolloutReport, rows: int, pairs: Sequence[BucketPair]) -> Json:
    figures: Json = {"rows": rows, "errors": _decimal(candidate_failed_rows(stable) / rows if rows else 0.0)}
    worst = _most_disagreeing(stable)
    if worst is not None:
        share, figures["output"] = worst
        figures["disagreement"] = _decimal(share)
    if pairs:
        figures["latencyRatio"] = _decimal(max(pair.ratio for pair in pairs))
    return figures


def _memory_figures(stable: RolloutReport, candidate: RolloutReport) -> Json:
    """Return the memory of one pod's runtimes (bytes): of the device, or of the process if either has no device."""
    device, process = (
        {"memoryBytes": getattr(candidate, name), "stableMemoryBytes": getattr(stable, name)}
        for name in ("device_memory_bytes", "memory_bytes")
    )
    return next((each for each in (device, process) if all(each.values())), {})


def _start_figures(starts: StartTimes) -> Json:
    if starts.stable_s is None or starts.candidate_s is None:
        return {}
    return {"startSeconds": round(starts.candidate_s), "stableStartSeconds": round(starts.stable_s)}


def _most_disagreeing(stable: RolloutReport) -> tuple[float, str] | None:
    shares = [(each.disagreements / each.rows, name) for name, each in stable.outputs.items() if each.rows]
    return max(shares, default=None)


def _describe_progress(
    progress: StepProgress, stable: RolloutReport, pairs: Sequence[BucketPair], figures: Json
) -> str:
    rows = candidate_rows(stable) - progress.rows_before
    # The first rows arrive after the pods and the plan: the reasons below would be noise until then.
    if rows <= 0 and progress.elapsed_s < IDLE_S:
        return "The candidate has run no rows in this step yet."
    if rows <= 0:
        return f"The candidate has run no rows in this step, so the step waits: {_why_idle(progress, stable)}."
    wanted, minutes = step_rows(progress.step), progress.step.minutes
    done = [f"{rows:,} of {wanted:,} rows"] if wanted else [f"{rows:,} rows"]
    done += [f"{progress.elapsed_s / 60:.0f} of {minutes} minutes"] if minutes else []
    return f"The candidate has {' and '.join(done)} of this step: {_describe(stable, pairs, figures)}."


def _why_idle(progress: StepProgress, stable: RolloutReport) -> str:
    """Return why the candidate has run no rows in a step."""
    served = stable.served_rows - progress.served_before
    dropped = dropped_for_candidate(stable) - progress.dropped_before
    reasons = [] if stable.ready_candidates else ["no pod of the candidate responds"]
    if dropped > 0:
        reasons.append(f"none of {dropped:,} batches and requests that were selected for it ran there")
    elif served > 0:
        reasons.append(f"of {served:,} rows that arrived, none was selected for it")
    elif not reasons:
        reasons.append("no requests arrive")
    return ", and ".join(reasons)


def _describe_suspicion(suspicion: Finding) -> str:
    return f"{suspicion.sentence} The step waits for more repeated rows."


def _describe(stable: RolloutReport, pairs: Sequence[BucketPair], figures: Json) -> str:
    """Return the figures in words."""
    rows = candidate_rows(stable)
    worst, slowest = _most_disagreeing(stable), max(pairs, key=lambda pair: pair.ratio, default=None)
    parts = [
        f"{percent(worst[0], 1)} of rows disagree (output `{worst[1]}`)" if worst else "no results compared",
        f"batches take up to {slowest.ratio:.3g} times as long" if slowest else "too few batches to compare times",
        f"{percent(candidate_failed_rows(stable), rows)} of {rows:,} rows failed",
    ]
    if "memoryBytes" in figures:
        used, usual = (figures[name] / _MIB for name in ("memoryBytes", "stableMemoryBytes"))
        parts.append(f"{used:,.0f} MiB of memory are used (stable: {usual:,.0f} MiB)")
    if "startSeconds" in figures:
        parts.append(f"a pod starts in {figures['startSeconds']} s (stable: {figures['stableStartSeconds']} s)")
    return ", ".join(parts)


def _decimal(number: float) -> str:
    return f"{number:.6f}".rstrip("0").rstrip(".")
