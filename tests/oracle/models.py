"""The table of models, made by their own libraries."""

from collections.abc import Mapping
from functools import cache

from tests.oracle import estimators, folders, graphs, trees
from tests.oracle.entries import Entry


@cache
def table() -> Mapping[str, Entry]:
    """Return the models by name, in a fixed order."""
    found: dict[str, Entry] = {}
    for part in (estimators, trees, folders, graphs):
        for entry in part.entries():
            assert entry.name not in found, entry.name
            found[entry.name] = entry
    return found
