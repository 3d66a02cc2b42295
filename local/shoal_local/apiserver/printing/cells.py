"""What stands in a cell: an age as kubectl writes it (``5m30s``, ``3h``, ``2d``), or what is at a JSONPath."""

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
    """Return the values at a path; none when something on the way is missing.

    Raises:
        ValueError: the path is written in no form that is known here.
    """
    values = [obj]
    at = 0
    path = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    while at < len(path):
        step = _STEP.match(path, at)
        if not step or step.end() == at:
            raise ValueError(f"cannot read the JSONPath {path!r} at {path[at:]!r}")
        values = [inner for value in values for inner in _walk(value, step)]
        at = step.end()
    return values


def _walk(value: Any, step: re.Match[str]) -> Iterator[Any]:
    name = (step["name"] or step["key"] or "").replace("\\.", ".")
    if name:
        if isinstance(value, dict) and name in value:
            yield value[name]
    elif step["index"] is not None:
        yield from _at(value, int(step["index"]))
    elif step["every"] or step["star"]:
        yield from value.values() if isinstance(value, dict) else value or ()
    elif isinstance(value, list):
        yield from (item for item in value if step["wanted"] in map(str, find_all(item, step["test"])))


def _at(value: Any, index: int) -> Iterator[Any]:
    if isinstance(value, list) and -len(value) <= index < len(value):
        yield value[index]


def age(created: str | None, now: datetime) -> str:
    """Return the time since an API timestamp, ``<unknown>`` without one."""
    if not created:
        return "<unknown>"
    then = datetime.fromisoformat(created.replace("Z", "+00:00")).astimezone(UTC)
    return human_duration(int((now - then).total_seconds()))


def human_duration(seconds: int) -> str:
    """Round a duration the way kubectl does: finer while it is short."""
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s") if minutes >= 2 else f"{seconds}s"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m") if hours >= 3 else f"{minutes}m"
    return f"{hours}h" if hours < 48 else _long(hours, days)


def _long(hours: int, days: int) -> str:
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    if days < 365 * 2:
        return f"{days}d"
    if days < 365 * 8:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}" + (f"{small}{small_unit}" if small else "")
