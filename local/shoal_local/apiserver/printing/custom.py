"""Printer columns of custom kinds."""

from datetime import datetime
from typing import Any

from shoal_local.apiserver.kinds.resource import Column, Object, Resource
from shoal_local.apiserver.printing.durations import age
from shoal_local.apiserver.printing.json_path import find_all
from shoal_local.apiserver.printing.printer import NAME, Printer

_AGE = Column("Age", ".metadata.creationTimestamp", "date")


def custom_printer(resource: Resource) -> Printer:
    """Return how a custom kind is printed: its name, then its columns, else its age."""
    columns = resource.columns or (_AGE,)

    def cells(obj: Object, now: datetime) -> list[Any]:
        return [obj["metadata"]["name"], *(_cell(obj, column, now) for column in columns)]

    header = ((c.name, c.type, c.format, c.description, c.priority) for c in columns)
    return Printer((NAME, *header), cells)


def _cell(obj: Object, column: Column, now: datetime) -> Any:
    values = find_all(obj, column.json_path)
    if not values:
        return None
    if column.type == "date":
        return age(values[0], now)
    if column.type == "string":
        return ",".join(_text(value) for value in values)
    return values[0]


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
