"""The JSONPath of printer columns: ``.status.conditions[?(@.type=="Ready")].status``."""

import re
from collections.abc import Iterator
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
        yield from (
            item for item in value if step["wanted"] in map(str, find_all(item, step["test"]))
        )


def _at(value: Any, index: int) -> Iterator[Any]:
    if isinstance(value, list) and -len(value) <= index < len(value):
        yield value[index]
