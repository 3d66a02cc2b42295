"""Trace of arrivals as text, from `shoal record` for `shoal simulate`.

CSV with a header line. Columns, in any order:

    arrived_s    seconds since any fixed time
    rows         rows of the request; 1 where the column is absent
    shape        shape of one row, as the proxy names it; requests of different shapes share no batch. Absent: all equal
    deadline_ms  timeout of the client; absent or empty for none
"""

import csv
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.simulator.engine import SimulatedRequest

COLUMNS = ("arrived_s", "rows", "shape", "deadline_ms")
HEADER = ",".join(COLUMNS)
MAX_ROWS = 262_144
"""Most rows of one request: the simulation takes time and memory for each."""


class TraceError(Exception):
    """A trace is malformed; the message names line and column."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One recorded arrival. ``deadline_ms`` is None if the client set no deadline."""

    arrived_s: float
    rows: int = 1
    shape: str = ""
    deadline_ms: float | None = None

    def line(self) -> str:
        """Return the arrival as a line of CSV, with microsecond resolution."""
        deadline = "" if self.deadline_ms is None else f"{self.deadline_ms:g}"
        shape = self.shape
        if set(shape) & set(',"\r\n'):
            shape = '"' + shape.replace('"', '""') + '"'
        return f"{self.arrived_s:.6f},{self.rows},{shape},{deadline}"

    def request(self, objective_s: float) -> SimulatedRequest:
        """Return a request with the objective or its own deadline, if earlier."""
        own = self.deadline_ms is not None
        # A client gets an error at its own deadline. The objective is the service's and causes no error.
        deadline_s = self.arrived_s + self.deadline_ms / 1000 if self.deadline_ms is not None else NEVER_S
        soft_deadline_s = min(self.arrived_s + objective_s, deadline_s)
        return SimulatedRequest(self.arrived_s, soft_deadline_s, self.rows, self.shape, own, deadline_s=deadline_s)


def read_trace(lines: Iterable[str]) -> list[TraceEntry]:
    """Return the entries of a trace, in order of arrival.

    Raises:
        TraceError: a line or column is malformed.
    """
    reader = csv.reader(lines, strict=True)
    try:
        columns = [name.strip() for name in next(reader, [])]
        for name in columns:
            if name not in COLUMNS:
                raise TraceError(f"line 1: unknown column {name!r}; columns are {HEADER}")
            if columns.count(name) > 1:
                raise TraceError(f"line 1: column {name} occurs twice")
        if "arrived_s" not in columns:
            raise TraceError(f"line 1 must name the columns, at least arrived_s: {HEADER}")
        entries: list[TraceEntry] = []
        for cells in filter(None, reader):
            line = reader.line_num
            if len(cells) != len(columns):
                raise TraceError(f"line {line} has {len(cells)} cells, but the header {len(columns)}")
            cell = dict(zip(columns, cells, strict=True))
            arrived_s = _number(cell["arrived_s"], line, "arrived_s", "a number of seconds", _finite)
            rows = _number(cell.get("rows", "1"), line, "rows", f"an integer from 1 to {MAX_ROWS}", _count)
            # An empty cell means no deadline.
            deadline = cell.get("deadline_ms", "").strip()
            within: float | None = None
            if deadline:
                within = _number(deadline, line, "deadline_ms", "milliseconds above 0, or empty", _positive)
            entries.append(TraceEntry(arrived_s, int(rows), cell.get("shape", ""), within))
    except csv.Error as error:
        raise TraceError(f"line {reader.line_num} is not CSV: {error}") from None
    if not entries:
        raise TraceError("the trace has no arrivals: expected one line each after the header")
    return sorted(entries, key=lambda entry: entry.arrived_s)


def _number(text: str, line: int, column: str, wanted: str, parse: Callable[[str], float]) -> float:
    try:
        return parse(text)
    except ValueError:
        raise TraceError(f"line {line}, column {column}: {text!r} is not {wanted}") from None


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def _count(text: str) -> float:
    value = int(text)
    if not 1 <= value <= MAX_ROWS:
        raise ValueError
    return value


def _positive(text: str) -> float:
    value = _finite(text)
    if value <= 0:
        raise ValueError
    return value
