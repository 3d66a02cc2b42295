"""Portions of a batch that a client has sent: their time limits and outcomes."""

import math
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from shoal.errors import ShoalError
from shoal.progress import Report
from shoal.wire.portions import Portion, Portions, Times
from shoal.wire.session import CallOptions


class SentPortion(NamedTuple):
    """A portion of a batch, with its result or error."""

    portion: Portion
    outcome: Any
    """The result, or a ShoalError."""
    ended_s: float
    """Monotonic time."""


def limits_of(options: CallOptions, timeout_s: float | None) -> Times:
    """Return a batch call's time limits: ``timeout_s`` for all portions, or the default for each portion."""
    ends_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    return Times(ends_s, options.timeout_s, options.retry_executed)


def record_ended(portions: Portions, ended: Iterable[SentPortion], report: Report) -> None:
    """Record the outcomes of sent portions, and report the rows done."""
    for portion, outcome, ended_s in ended:
        portions.ended(portion, outcome, ended_s)
        if not isinstance(outcome, ShoalError):
            report(portions.answered_rows, len(portions.rows))
