"""A proxy's ``/metrics`` -> the rows it holds, and whether it can meet its objective.

Not every pod that is asked is a proxy, and a tenant's pod may say anything. So this reads only lines as our proxy
writes them, in one pass whose time grows with the text's length alone, and believes only counts that a proxy can have.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal_operator.autoscaler.law import Load
from shoal_operator.planning.evidence import Unread
from shoal_schema.metrics import IN_FLIGHT_ROWS, OBJECTIVE_ATTAINABLE, QUEUE_ROWS, REQUEST_BYTES

MAX_ROWS = 2**31 - 1
"""No proxy holds more rows in a queue; a larger number counts as no data."""

_ROWS = (QUEUE_ROWS.name, IN_FLIGHT_ROWS.name)
_ATTAINABLE = OBJECTIVE_ATTAINABLE.name
_HEARD = REQUEST_BYTES.name
_LINE = re.compile(rf"^({'|'.join((*_ROWS, _ATTAINABLE, _HEARD))}) ([0-9.e+-]{{1,32}})\r?$", re.MULTILINE)
_ANSWERS: dict[int | None, bool] = {0: False, 1: True}


@dataclass(frozen=True, slots=True)
class Reading:
    """What one proxy says; None where it does not.

    Args:
        rows: that wait and run, 0 to twice ``MAX_ROWS``.
        attainable: whether a request alone would meet the latency objective.
        heard: a text that is another one after each request that came; empty: not said.
        refused: there was an answer, and no proxy gives such a one.
    """

    rows: int | None = None
    attainable: bool | None = None
    heard: str = field(default="", compare=False)
    refused: bool = field(default=False, compare=False)


def read_metrics(text: str) -> Reading:
    """Return what a text says; a value that no proxy can have is not said."""
    said = dict(_LINE.findall(text))
    counts = {name: _count(value) for name, value in said.items()}
    waiting, running = (counts.get(name) for name in _ROWS)
    rows = None if waiting is None or running is None else waiting + running
    return Reading(rows, _ANSWERS.get(counts.get(_ATTAINABLE)), said.get(_HEARD, ""))


def total_load(readings: Sequence[Reading]) -> Load | None:
    """Return the rows in all pods, or None when no pod says."""
    known = [reading.rows for reading in readings if reading.rows is not None]
    return Load(sum(known), complete=len(known) == len(readings)) if known else None


def unread(readings: Sequence[Reading]) -> Unread | None:
    """Return why no pod says how much it holds, or None where one does."""
    if any(reading.rows is not None for reading in readings):
        return None
    if not readings:
        return Unread.NO_READY_POD
    return Unread.REFUSED if any(reading.refused for reading in readings) else Unread.UNREACHABLE


def _count(text: str) -> int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if 0 <= value <= MAX_ROWS and value.is_integer() else None
