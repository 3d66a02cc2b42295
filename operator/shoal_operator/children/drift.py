"""Comparison of stored objects with declared ones.

Every declared field must be stored with its value; the hash annotation shows changes of the declaration itself. Fields
that other writers add (defaults of the server, an annotation of ``kubectl rollout restart``, a sidecar) are ignored, as
in server-side apply. `exact` checks the fields where additions would redirect traffic.
"""

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from shoal_schema.fields.quantities import kept_quantity

_QUANTITY_FIELDS = frozenset({"limits", "requests", "sizeLimit"})


def holds(desired: Any, live: Any, *, quantities: bool = False) -> bool:
    """Return whether ``live`` contains all fields of ``desired``.

    Args:
        desired: the declared value.
        live: the stored value.
        quantities: compare scalars as quantities (``0.5`` equals ``500m``), which the API server normalizes.
    """
    if isinstance(desired, dict):
        # The API server drops an empty object in some places and keeps it in others.
        if not isinstance(live, dict):
            return not desired and live is None
        return all(
            holds(value, live.get(key), quantities=quantities or key in _QUANTITY_FIELDS)
            for key, value in desired.items()
            if value is not None
        )
    if isinstance(desired, (list, tuple)):
        if not isinstance(live, list):
            return not desired and live is None
        # Entries with a name match by name, in any order; others by position.
        if desired and all(map(_is_named, desired)):
            named = {item["name"]: item for item in live if _is_named(item)}
            return all(holds(item, named.get(item["name"]), quantities=quantities) for item in desired)
        pairs = zip(desired, live, strict=False)
        return len(desired) == len(live) and all(holds(ours, theirs, quantities=quantities) for ours, theirs in pairs)
    if quantities and live is not None:
        return quantity(desired) == quantity(live)
    # The API server drops empty strings.
    return bool(desired == live) or (desired == "" and live is None)


def differences(desired: Any, live: Any, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield paths of fields in which ``live`` differs from ``desired``, in the form of ``managedFields``."""
    # managedFields identify entries of keyed lists by their key, and have no entries for other lists.
    named = [item["name"] for item in desired if _is_named(item)] if isinstance(desired, list) else []
    if isinstance(desired, dict) and isinstance(live, dict):
        for key, value in desired.items():
            if value is not None and not holds(value, live.get(key), quantities=key in _QUANTITY_FIELDS):
                yield from differences(value, live.get(key), *path, f"f:{key}")
    elif named and len(named) == len(desired) and isinstance(live, list):
        theirs = {item["name"]: item for item in live if _is_named(item)}
        for name, item in zip(named, desired, strict=True):
            if not holds(item, theirs.get(name)):
                item_key = f"k:{json.dumps({'name': name}, separators=(',', ':'))}"
                yield from differences(item, theirs.get(name), *path, item_key)
    else:
        yield path


def _is_named(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("name"), str)


def quantity(value: Any) -> Decimal | Any:
    """Return a Kubernetes quantity as a number; any other value unchanged."""
    try:
        return kept_quantity(str(value))
    except ValueError:
        return value
