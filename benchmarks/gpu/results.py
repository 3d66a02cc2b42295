"""Results of the pieces: files, the joint table, and the marks."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Row, Spread, Target, document, find, number

PERCENT: Callable[[float], str] = "{:.1%}".format
COLUMNS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "rows_per_s": ("rows/s", number),
    "tokens_per_s": ("tokens/s", number),
    "share_of_loop": ("of loop", PERCENT),
    "batch_ms": ("ms/batch", number),
    "p50_ms": ("p50 ms", number),
    "p99_ms": ("p99 ms", number),
    "p99_batches": ("p99/batch", number),
    "mean_batch_rows": ("rows/batch", number),
    "device_idle": ("idle", PERCENT),
    "estimated_idle": ("idle est.", PERCENT),
    "gap_ms": ("gap ms", number),
    "gpu_utilization": ("GPU used", PERCENT),
    "speedup": ("speedup", number),
    "rejected_per_s": ("rejected/s", number),
    "failed_per_s": ("failed/s", number),
    "proxy_cpu": ("proxy CPU", PERCENT),
    "runtime_cpu": ("runtime CPU", PERCENT),
    "clients_cpu": ("client CPU", PERCENT),
}
"""Quantity -> heading and format. The last column is the share of a core of the busiest process of clients."""


def write_atomically(path: Path, result: Mapping[str, Any]) -> None:
    """Write a results file, so that a run that is cut off leaves the last complete one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(result, indent=2) + "\n")
    unfinished.rename(path)


def piece_document(
    piece: str, rows: Sequence[Row], skipped: Mapping[str, str], targets: Sequence[Target], here: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the results file of one piece, with its marks."""
    found = document(rows, (), {**here, "piece": piece})
    return found | {"skipped": dict(skipped), "targets": [mark(target, rows, skipped) for target in targets]}


def mark(target: Target, rows: Sequence[Row], skipped: Mapping[str, str]) -> str:
    """Return whether a target is met, or why it was not measured."""
    if find(rows, target.case, target.quantity) is None:
        for case, reason in skipped.items():
            if target.case == case or target.case.startswith(f"{case}, "):
                return f"skip  {target.case}: {target.quantity} ({reason})"
    return target.line(rows)


def read_pieces(directory: Path, pieces: Iterable[str]) -> list[dict[str, Any]]:
    """Return the newest results file of each piece, by the date in it, in the order of the pieces."""
    newest: dict[str, dict[str, Any]] = {}
    for path in sorted(directory.glob("gpu-*.json")):
        found = json.loads(path.read_text())
        piece = found["piece"]
        if piece not in newest or found["date"] >= newest[piece]["date"]:
            newest[piece] = found
    return [newest[piece] for piece in pieces if piece in newest]


def rows_in(result: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a results file."""
    return [
        Row(case, {quantity: Spread(**spread) for quantity, spread in values.items()})
        for case, values in result["cases"].items()
    ]


def joint_table(rows: Sequence[Row]) -> list[str]:
    """Return one line per case, with the columns that any case has."""
    used = [quantity for quantity in COLUMNS if any(quantity in row.values for row in rows)]
    cells = [["case", *(COLUMNS[quantity][0] for quantity in used)]]
    for row in rows:
        shown = [COLUMNS[each][1](row.values[each].median) if each in row.values else "-" for each in used]
        cells.append([row.case, *shown])
    widths = [max(len(line[index]) for line in cells) for index in range(len(used) + 1)]
    return [
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in cells
    ]


def report_lines(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the joint table, the machines, the reasons of skipped cases and the marks of all pieces."""
    rows = [row for result in results for row in rows_in(result)]
    machines = {f"{each['device']}; {each['machine']}; proxy {each['proxy']}; {each['date']}" for each in results}
    skipped = {case: reason for result in results for case, reason in result["skipped"].items()}
    return [
        *sorted(machines),
        "",
        *(joint_table(rows) if rows else ["nothing was measured"]),
        "",
        *(f"{case}: skipped: {reason}" for case, reason in skipped.items()),
        *(line for result in results for line in result["targets"]),
    ]
