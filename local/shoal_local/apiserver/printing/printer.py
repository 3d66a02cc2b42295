"""What a printer is: columns, and a function that fills a row."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shoal_local.apiserver.printing.durations import age

Object = dict[str, Any]
Header = tuple[str, str, str, str, int]
Cells = Callable[[Object, datetime], list[Any]]
NONE, UNSET = "<none>", "<unset>"
NAME: Header = ("Name", "string", "name", "Name must be unique within a namespace.", 0)
_NUMBERS = ("Data", "Desired", "Current", "Secrets", "Value")


@dataclass(frozen=True, slots=True)
class Printer:
    """Columns (name, type, format, description, priority) and the function that fills them."""

    columns: tuple[Header, ...]
    cells: Cells


def header(name: str, priority: int = 0) -> Header:
    """Return a column; those of priority 1 are shown by ``-o wide``."""
    kind = "integer" if name in _NUMBERS else "string"
    return (name, kind, "", name, priority)


def printer(names: tuple[str, ...], cells: Cells, wide: tuple[str, ...] = ()) -> Printer:
    """Return a printer of Name, the named columns, and those for ``-o wide``.

    ``cells``: gives the named columns and the wide ones in order; the name is put before them.
    """
    columns: tuple[Header, ...] = (NAME, *(header(name) for name in names), *(header(name, 1) for name in wide))
    return Printer(columns, lambda obj, now: [obj["metadata"]["name"], *cells(obj, now)])


def age_of(obj: Object, now: datetime) -> str:
    """Return the object's age."""
    return age(obj["metadata"].get("creationTimestamp"), now)
