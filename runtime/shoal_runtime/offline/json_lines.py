"""Parser of JSON lines: one object, and one row, per line. Pure."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from shoal_runtime.codecs.json_data import exact_json

_NESTED: Final = (dict, list)
_APART: Final = re.compile(rb'"\s+:')


class _DuplicateKey(ValueError):
    """A JSON object has two values of one key."""


def parsed_line(line: bytes) -> dict[str, Any] | str:
    """Parse a line as a JSON object; return an error message if that fails."""
    try:
        row = exact_json(line)
        if isinstance(row, dict):
            # The parser keeps the last of two equal keys. Where a line has as many `":` as its objects have keys, no
            # key is there twice; only other lines are parsed again, by a slower parser that checks.
            places = line.count(b'":')
            if _APART.search(line) or (places != len(row) and places != _keys(row)):
                json.loads(line, object_pairs_hook=_checked)
    except _DuplicateKey as error:
        return str(error)
    except (ValueError, RecursionError) as error:
        return f"the line is not JSON: {error}"
    return row if isinstance(row, dict) else "the line is JSON, but not an object"


def _keys(value: dict[str, Any] | list[Any]) -> int:
    """Count the keys of all objects in a value, at any depth."""
    inner = value.values() if isinstance(value, dict) else value
    return (len(value) if isinstance(value, dict) else 0) + sum(_keys(each) for each in inner if type(each) in _NESTED)


def _checked(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    # Equal keys replace each other in a dict, so it is shorter than the pairs.
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise _DuplicateKey(f"the line has two values of the key {twice[:60]!r}")
    return found
