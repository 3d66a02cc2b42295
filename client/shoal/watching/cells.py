"""Format load figures as table cells, sparklines and JSON."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from shoal.watching.samples import Histories, History

COLUMNS = (
    "service", "replicas", "state", "queued", "running", "req/s", "answered/s", "rejected/s", "batch size",
    "latency mean", "p95", "utilization", "rows",
)  # fmt: skip
LESS = ("rows", "running", "batch size", "utilization", "p95", "answered/s")
"""Columns that a narrow terminal omits, in this order."""
GAP = 3
"""Characters between two columns."""
CURVE = 20
"""Samples in a sparkline."""
_BLOCKS = " ▁▂▃▄▅▆▇█"
_NOTHING = "-"


def cells(name: str, history: History) -> tuple[str, ...]:
    """Return the cells of one service, in the order of `COLUMNS`."""
    now, seen = history.now, history.last
    held = [each.service.queued_rows + each.service.running_rows for each in history.intervals][-CURVE:]
    return (
        name,
        str(now.pods) if seen.wanted in (None, now.pods) else f"{now.pods}/{seen.wanted}",
        f"{seen.state}, {now.silent} silent" if now.silent and seen.well else seen.state,
        str(now.queued_rows),
        str(now.running_rows),
        rate(now.asked_per_s),
        rate(now.answered_per_s),
        rate(now.refused_per_s),
        _NOTHING if now.batch_rows is None else f"{now.batch_rows:.1f}",
        duration(now.time_ms),
        duration(now.expected_ms),
        _NOTHING if now.busy is None else f"{100 * now.busy:.0f} %",
        curve(held),
    )


def fitting(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the indices of the columns of ``rows`` that fit into ``width`` characters.

    Args:
        rows: cells in the order of `COLUMNS`, of which the first column may wrap.
        width: width of the terminal.
    """
    widths = [max(len(row[at]) for row in (COLUMNS, *rows)) for at in range(len(COLUMNS))]
    kept = list(range(len(COLUMNS)))
    for name in LESS:
        if sum(widths[at] + GAP for at in kept) - GAP <= width:
            break
        kept.remove(COLUMNS.index(name))
    return kept


def rate(per_s: float | None) -> str:
    """Return a rate per second as text; a dash for None."""
    if per_s is None:
        return _NOTHING
    return f"{per_s:,.0f}" if per_s >= 10 or per_s == 0 else f"{per_s:.1f}"


def duration(time_ms: float | None) -> str:
    """Return a time as text with its unit, ms or s; a dash for None."""
    if time_ms is None:
        return _NOTHING
    return f"{time_ms / 1000:.3g} s" if time_ms >= 1000 else f"{time_ms:.3g} ms"


def curve(values: Sequence[float]) -> str:
    """Return a sparkline scaled to the largest value; any positive value is visible."""
    # The lowest block is empty, so positive values start at the second.
    most = max(values, default=0)
    top = len(_BLOCKS) - 1
    return "".join(_BLOCKS[max(1, math.ceil(top * value / most)) if value else 0] for value in values)


def document(watched: Histories) -> dict[str, Any]:
    """Return the services as JSON values, each with the figures of its last interval."""
    return {
        "services": [
            {
                "name": name,
                "wanted": history.last.wanted,
                "state": history.last.state,
                "well": history.last.well,
                "says": history.last.says,
                "looks": [asdict(history.now)],
            }
            for name, history in watched.sorted
        ]
    }
