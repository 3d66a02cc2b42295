"""Cells of kubectl tables: ages (``5m30s``, ``2d``) and JSONPath values."""

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

_STEP = re.compile(
    r"""\.?(?:
      \[\?\(\s*@(?P<test>(?:\.[\w-]+|\['[^']+'\])+)\s*==\s*(?P<quote>["'])(?P<wanted>.*?)(?P=quote)\s*\)\]
    | \[(?P<index>-?\d+)\]
    | \[(?P<every>\*)\]
    | \[(?P<q>["'])(?P<key>[^\]]+)(?P=q)\]
    | (?P<name>(?:[\w/-]|\\\.)+)
    | (?P<star>\*)
    )""",
    re.VERBOSE,
)


def find_all(obj: Any, path: str) -> list[Any]:
    """Return the values at a JSONPath; [] if a part of the path is missing.

    Raises ValueError: the path uses unsupported JSONPath syntax.
    """
    values = [obj]
    at = 0
    # `kubectl` writes `{.spec.a}`, definitions `.spec.a`.
    path = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    while at < len(path):
        step = _STEP.match(path, at)
        if not step or step.end() == at:
            raise ValueError(f"cannot read the JSONPath {path!r} at {path[at:]!r}")
        values = [inner for value in values for inner in _step_into(value, step)]
        at = step.end()
    return values


def _step_into(value: Any, step: re.Match[str]) -> Iterator[Any]:
    name = (step["name"] or step["key"] or "").replace("\\.", ".")
    if name:
        if isinstance(value, dict) and name in value:
            yield value[name]
    elif step["index"] is not None:
        index = int(step["index"])
        if isinstance(value, list) and -len(value) <= index < len(value):
            yield value[index]
    elif step["every"] or step["star"]:
        yield from value.values() if isinstance(value, dict) else value or ()
    elif isinstance(value, list):
        yield from (item for item in value if step["wanted"] in map(str, find_all(item, step["test"])))


def age(created: str | None, now: datetime) -> str:
    """Return the time since an API timestamp, ``<unknown>`` without one."""
    if not created:
        return "<unknown>"
    then = datetime.fromisoformat(created).astimezone(UTC)
    return human_duration(int((now - then).total_seconds()))


_SHOWN = (
    # Upper bound in seconds, the unit in seconds and its letter, and the same of the smaller unit beside it.
    (120, 1, "s", 0, ""),
    (600, 60, "m", 1, "s"),
    (3 * 3600, 60, "m", 0, ""),
    (8 * 3600, 3600, "h", 60, "m"),
    (48 * 3600, 3600, "h", 0, ""),
    (8 * 86400, 86400, "d", 3600, "h"),
    (730 * 86400, 86400, "d", 0, ""),
    (8 * 365 * 86400, 365 * 86400, "y", 86400, "d"),
    (math.inf, 365 * 86400, "y", 0, ""),
)


def human_duration(seconds: int) -> str:
    """Return a duration as kubectl prints it, such as ``5m30s`` or ``3h``."""
    if seconds < -1:
        return "<invalid>"
    # A clock that is one second behind is tolerated.
    seconds = max(seconds, 0)
    _, unit, letter, small, small_letter = next(row for row in _SHOWN if seconds < row[0])
    rest = seconds % unit // small if small else 0
    return f"{seconds // unit}{letter}" + (f"{rest}{small_letter}" if rest else "")
