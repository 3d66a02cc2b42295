"""Sets of field paths, and their ``fieldsV1`` form in objects.

A path is a tuple of steps: ``f:spec`` (a field or a map's key), ``k:{"name":"a"}`` (an element of a keyed list),
``v:"x"`` (an element of a set). Atomic lists and maps, and lists without a declared type, have one owner as a whole.

Source: sigs.k8s.io/structured-merge-diff, typed/tofieldset.go and fieldpath.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from shoal_local.apiserver.schemas.node import Node

Path = tuple[str, ...]
FieldSet = frozenset[Path]

_ABSENT: Any = object()


def field_set(value: Any, node: Node | None) -> FieldSet:
    """Return the paths of the fields that a configuration sets."""
    return frozenset(path for path in _walk(value, node, ()) if path)


def _walk(value: Any, node: Node | None, path: Path) -> Iterator[Path]:
    if isinstance(value, dict) and value and not is_atomic(value, node):
        for key, inner in value.items():
            child = (*path, f"f:{key}")
            # Keys of a map are owned themselves; named fields only through their contents.
            if node is None or key not in node.fields:
                yield child
            yield from _walk(inner, node.child(key) if node else None, child)
    elif isinstance(value, list) and not is_atomic(value, node):
        for item in value:
            step = list_step(item, node)
            yield (*path, step)
            if step.startswith("k:"):
                yield from _walk(item, node.item if node else None, (*path, step))
    else:
        yield path


def is_atomic(value: Any, node: Node | None) -> bool:
    """Return whether a list or map has one owner as a whole."""
    if isinstance(value, list):
        return node is None or node.tag("list-type") not in ("map", "set")
    return node is not None and node.tag("map-type") == "atomic"


def list_step(item: Any, node: Node | None) -> str:
    """Return the path step of a list element, from its keys or its value."""
    if node is not None and node.associative and isinstance(item, dict):
        keys = {}
        for key in sorted(node.map_keys):
            field = node.item.child(key) if node.item else None
            # A port's protocol is part of its key, and has a default.
            keys[key] = item.get(key, field.schema.get("default") if field else None)
        return "k:" + _text({key: value for key, value in keys.items() if value is not None})
    return "v:" + _text(item)


def _text(value: Any) -> str:
    return orjson.dumps(value).decode()


def step_into(value: Any, step: str, node: Node | None) -> Any:
    """Return the field or element at a path step. Raises KeyError: missing."""
    if step.startswith("f:") and isinstance(value, dict):
        return value[step[2:]]
    if isinstance(value, list):
        for item in value:
            if list_step(item, node) == step:
                return item
    raise KeyError(step)


def child_node(node: Node | None, step: str) -> Node | None:
    """Return the schema of the field or element at a path step."""
    if node is None:
        return None
    return node.child(step[2:]) if step.startswith("f:") else node.item


def to_fields_v1(paths: Iterable[Path]) -> dict[str, Any]:
    """Return the nested ``fieldsV1`` form of a set of paths."""
    tree: dict[str, Any] = {}
    for path in sorted(paths):
        at = tree
        for step in path:
            at = at.setdefault(step, {})
        at["."] = {}
    return _without_lone_dots(tree)


def _without_lone_dots(tree: dict[str, Any]) -> dict[str, Any]:
    return {step: {} if set(inner) == {"."} else _without_lone_dots(inner) for step, inner in tree.items()}


def from_fields_v1(tree: dict[str, Any], path: Path = ()) -> FieldSet:
    """Return the paths in a ``fieldsV1`` tree; ``path`` is their prefix."""
    found: FieldSet = frozenset()
    for step, inner in tree.items():
        below = path if step == "." else (*path, step)
        found |= from_fields_v1(inner, below) if inner else {below}
    return found


def path_text(path: Path) -> str:
    """Return the text of a path, such as ``.spec.containers[name="a"].image``."""
    texts = []
    for step in path:
        kind, text = step[0], step[2:]
        if kind == "f":
            texts.append(f".{text}")
        elif kind == "v":
            texts.append(f"[={text}]")
        else:
            keys: dict[str, Any] = orjson.loads(text)
            texts.append("[" + ",".join(f"{key}={_text(value)}" for key, value in keys.items()) + "]")
    return "".join(texts)


@dataclass(frozen=True, slots=True)
class Difference:
    """Paths that were added or changed, and paths that were removed."""

    changed: FieldSet
    removed: FieldSet


def compare(old: Any, new: Any, node: Node | None) -> Difference:
    """Return the difference between ``old`` and ``new``."""
    found = list(_differences(old, new, node, ()))
    changed = frozenset(path for path, gone in found if not gone)
    return Difference(changed, frozenset(path for path, gone in found if gone))


def _differences(old: Any, new: Any, node: Node | None, path: Path) -> Iterator[tuple[Path, bool]]:
    if old is _ABSENT or new is _ABSENT:
        gone = new is _ABSENT
        value = old if gone else new
        # Added structs and keyed lists are not in the set themselves, only what they contain.
        struct = isinstance(value, list) or (isinstance(value, dict) and node and node.fields)
        if gone or not value or is_atomic(value, node) or path[-1][0] == "k" or not struct:
            yield path, gone
        for below in field_set(value, node):
            yield (*path, *below), gone
    elif old == new:
        return
    elif type(old) is type(new) and isinstance(old, dict | list) and not is_atomic(new, node):
        # By key, so that a moved element is no change.
        before, after = _parts(old, node), _parts(new, node)
        for step in [*before, *(step for step in after if step not in before)]:
            was, now = before.get(step, _ABSENT), after.get(step, _ABSENT)
            yield from _differences(was, now, child_node(node, step), (*path, step))
    else:
        yield path, False


def _parts(value: Any, node: Node | None) -> dict[str, Any]:
    if isinstance(value, dict):
        return {f"f:{key}": inner for key, inner in value.items()}
    return {list_step(item, node): item for item in value}
