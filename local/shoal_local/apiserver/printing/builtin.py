"""How built-in kinds are printed: the columns of the real server, cell by cell."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shoal_local.apiserver.printing.durations import age

Object = dict[str, Any]
Header = tuple[str, str, str, str, int]
Cells = Callable[[Object, datetime], list[Any]]


@dataclass(frozen=True, slots=True)
class Printer:
    """Columns (name, type, format, description, priority) and the function that fills them."""

    columns: tuple[Header, ...]
    cells: Cells


NAME: Header = ("Name", "string", "name", "Name must be unique within a namespace.", 0)


def _age(obj: Object, now: datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def _printer(names: str, cells: Callable[[Object], list[Any]], wide: str = "") -> Printer:
    """Build a printer: Name, the named columns, Age, then those shown with ``-o wide``."""
    columns = [_header(name, 0) for name in (*names.split(), "Age")] + [
        _header(name, 1) for name in wide.split()
    ]
    before = len(names.split())

    def row(obj: Object, now: datetime) -> list[Any]:
        own = cells(obj)
        return [obj["metadata"]["name"], *own[:before], _age(obj, now), *own[before:]]

    return Printer((NAME, *columns), row)


def _header(name: str, priority: int) -> Header:
    name = name.replace("_", " ")
    return (
        name,
        "integer" if name in ("Data", "Desired", "Current") else "string",
        "",
        name,
        priority,
    )


PRINTERS: Mapping[str, Printer] = {"": _printer("", lambda obj: [])}
