"""Which fields differ between two versions of an object."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shoal_local.apiserver.patching.field_sets import FieldSet, Path, field_set, is_atomic, list_step
from shoal_local.apiserver.schemas.node import Node

_ABSENT: Any = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """Paths that were set to something new, and paths that are gone."""

    changed: FieldSet
    removed: FieldSet


def compare(old: Any, new: Any, node: Node | None) -> Difference:
    """Return what changed from ``old`` to ``new``."""
    found = list(_walk(old, new, node, ()))
    changed = frozenset(path for path, gone in found if not gone)
    return Difference(changed, frozenset(path for path, gone in found if gone))


def _walk(old: Any, new: Any, node: Node | None, path: Path) -> Iterator[tuple[Path, bool]]:
    if old is _ABSENT or new is _ABSENT:
        yield from _whole(old, new, node, path)
    elif old == new:
        return
    elif _granular(old, new, node):
        before, after = _parts(old, node), _parts(new, node)
        for step in [*before, *(step for step in after if step not in before)]:
            child = _child(node, step)
            inner = (*path, step)
            yield from _walk(before.get(step, _ABSENT), after.get(step, _ABSENT), child, inner)
    else:
        yield path, False


def _granular(old: Any, new: Any, node: Node | None) -> bool:
    same_kind = type(old) is type(new) and isinstance(old, dict | list)
    return same_kind and not is_atomic(new, node) and bool(old or new)


def _parts(value: Any, node: Node | None) -> dict[str, Any]:
    if isinstance(value, dict):
        return {f"f:{key}": inner for key, inner in value.items()}
    return {list_step(item, node): item for item in value}


def _child(node: Node | None, step: str) -> Node | None:
    if node is None:
        return None
    return node.child(step[2:]) if step.startswith("f:") else node.item


def _whole(old: Any, new: Any, node: Node | None, path: Path) -> Iterator[tuple[Path, bool]]:
    gone = new is _ABSENT
    value = old if gone else new
    if gone or _is_field(value, node, path):
        yield path, gone
    for below in field_set(value, node):
        yield (*path, *below), gone


def _is_field(value: Any, node: Node | None, path: Path) -> bool:
    """Say whether a new value is a field itself. A struct and a keyed list are not, only what is in them."""
    if not value or is_atomic(value, node) or path[-1][0] == "k":
        return True
    return not isinstance(value, list) and not (isinstance(value, dict) and node and node.fields)
