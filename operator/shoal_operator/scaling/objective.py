"""The pods' reports about their latency objective, smoothed over time.

A negative report (objective missed) counts immediately, and stays in effect for `HOLD_S`, because the reports of a pod
at its limit alternate. A pod that cannot be read keeps its last report for `FRESH_S`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

FRESH_S = 30.0
"""Older reports are dropped."""
HOLD_S = 120.0
"""Time after a pod's last negative report in which its positive reports are ignored."""


@dataclass(frozen=True, slots=True)
class ObjectiveReport:
    """One pod's reports on its latency objective (times: monotonic s)."""

    received_s: float
    """Time of the last report."""
    missed_s: float | None = None
    """Time of the last negative report, or None."""


@dataclass(frozen=True, slots=True)
class ObjectiveReports:
    """Reports on the latency objective from one service's ready pods."""

    first_read_s: float
    """When they were first read (monotonic s)."""
    by_uid: Mapping[str, ObjectiveReport] = field(default_factory=dict)
    """Fresh reports."""


def record_reports(reports: ObjectiveReports, attains: Mapping[str, bool | None], now_s: float) -> ObjectiveReports:
    """Return ``reports``, updated with the pods' newest reports.

    Args:
        reports: the earlier reports.
        attains: by uid, whether each ready pod can meet its objective; None if the pod sent no report.
        now_s: monotonic time (s).
    """
    by_uid: dict[str, ObjectiveReport] = {}
    for uid, attained in attains.items():
        # A positive report keeps the time of the last negative one.
        last = reports.by_uid.get(uid)
        if attained is not None:
            by_uid[uid] = ObjectiveReport(now_s, (last.missed_s if last else None) if attained else now_s)
        elif last and now_s - last.received_s < FRESH_S:
            by_uid[uid] = last
    return ObjectiveReports(reports.first_read_s, by_uid)


def attainable(reports: ObjectiveReports, now_s: float) -> dict[str, bool] | None:
    """Return by uid whether pods can meet their objective; None if unknown."""
    if not reports.by_uid and now_s - reports.first_read_s < FRESH_S:
        return None
    return {uid: each.missed_s is None or now_s - each.missed_s >= HOLD_S for uid, each in reports.by_uid.items()}
