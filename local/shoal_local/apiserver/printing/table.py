"""Objects to a ``Table``, the form that `kubectl get` asks for."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from shoal_local.apiserver.kinds.resource import Object, Resource
from shoal_local.apiserver.printing.builtin import PRINTERS
from shoal_local.apiserver.printing.custom import custom_printer
from shoal_local.apiserver.printing.printer import Printer

_HEADER = ("name", "type", "format", "description", "priority")


def as_table(resource: Resource, objects: Sequence[Object], meta: Object, *, now: datetime, include: str) -> Object:
    """Return a Table with a row for each object.

    ``meta``: metadata of the list (resourceVersion, continue).
    ``now``: what ages are counted to.
    ``include``: which part of each object goes along: Object, None or (the default) Metadata.
    """
    printer = printer_of(resource)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": [dict(zip(_HEADER, column, strict=True)) for column in printer.columns],
        "rows": [{"cells": printer.cells(obj, now), "object": _included(obj, include)} for obj in objects],
    }


def printer_of(resource: Resource) -> Printer:
    """Return how this kind is printed."""
    return custom_printer(resource) if resource.custom else PRINTERS.get(resource.key, PRINTERS[""])


def _included(obj: Object, include: str) -> Any:
    included: dict[str, Callable[[], Any]] = {"Object": lambda: obj, "None": lambda: None}
    return included.get(include, lambda: _metadata_only(obj))()


def _metadata_only(obj: Object) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
