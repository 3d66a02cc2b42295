"""Lines of JSON, each the object of a row. Pure."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from shoal_runtime.codecs.json_data import exact_json

_NESTED: Final = (dict, list)
_APART: Final = re.compile(rb'"\s+:')


class _Twice(ValueError):
    """An object has two values of one key."""


def parsed_line(line: bytes) -> dict[str, Any] | str:
    """Return the object that a line of JSON is, or why it is none."""
    try:
        row = exact_json(line)
        if isinstance(row, dict) and not _has_few_keys(line, row):
            json.loads(line, object_pairs_hook=_checked)
    except _Twice as error:
        return str(error)
    except (ValueError, RecursionError) as error:
        return f"the line is no JSON: {error}"
    return row if isinstance(row, dict) else "the line is JSON, but no object"


def _has_few_keys(line: bytes, row: dict[str, Any]) -> bool:
    """Return whether a line has no more places for keys than its objects have keys: then none is there twice."""
    places = line.count(b'":')
    return (places == len(row) or places == _keys(row)) and not _APART.search(line)


def _keys(value: dict[str, Any] | list[Any]) -> int:
    inner = value.values() if isinstance(value, dict) else value
    return (len(value) if isinstance(value, dict) else 0) + sum(_keys(each) for each in inner if type(each) in _NESTED)


def _checked(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise _Twice(f"the line has two values of the key {twice[:60]!r}")
    return found
