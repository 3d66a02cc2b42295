"""Merge patches: plain (RFC 7386), and strategic, which knows which lists are sets or are keyed.

Directives: ``$patch: replace|delete|merge``, ``$deleteFromPrimitiveList/<field>``, ``$setElementOrder/<field>``,
``$retainKeys``. Keys and strategies are those of the OpenAPI definitions.
"""

from typing import Any

from shoal_local.apiserver.errors import bad_request
from shoal_local.apiserver.schemas.node import Node


def merge_patch(target: Any, patch: Any) -> Any:
    """Return ``target`` with ``patch`` laid over it; null removes, a list replaces. Neither is edited."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


_DELETE = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"
_RETAIN = "$retainKeys"


def strategic_merge(target: Any, patch: Any, node: Node | None) -> Any:
    """Return ``target`` with ``patch`` laid over it, by the schema at ``node``. Neither is edited.

    Raises ApiError: 400, an element of a keyed list lacks its key, or a directive is unknown.
    """
    if not isinstance(patch, dict):
        return patch
    directive = patch.get("$patch")
    if directive not in (None, "replace", "delete", "merge"):
        raise bad_request(f"unrecognized directive: {directive!r} is no value of $patch")
    if directive == "delete":
        return {}
    base = {} if directive == "replace" or not isinstance(target, dict) else dict(target)
    return _merge_map(base, patch, node)


def _merge_map(base: dict[str, Any], patch: dict[str, Any], node: Node | None) -> dict[str, Any]:
    if _RETAIN in patch:
        base = {key: value for key, value in base.items() if key in patch[_RETAIN]}
    before = dict(base)
    for key, value in patch.items():
        if key.startswith("$"):
            continue
        child = node.child(key) if node else None
        if value is None:
            base.pop(key, None)
        elif isinstance(value, list) and child and "merge" in str(child.tag("patch-strategy") or "").split(","):
            merged = _merge_list(base.get(key) or [], value, child)
            base[key] = _ordered(merged, value, before.get(key) or [], _key(child))
        else:
            base[key] = strategic_merge(base.get(key), value, child)
    return _by_directives(base, patch, before, node)


def _key(node: Node | None) -> str:
    return str(node.tag("patch-merge-key") or "") if node else ""


def _merge_list(target: list[Any], patch: list[Any], node: Node) -> list[Any]:
    if not _key(node):
        return [*target, *(value for value in patch if value not in target)]
    if any(isinstance(value, dict) and value.get("$patch") == "replace" for value in patch):
        return [value for value in patch if "$patch" not in value]
    merged, key = list(target), _key(node)
    for value in patch:
        if not isinstance(value, dict) or key not in value:
            raise bad_request(f"map: {value} does not contain declared merge key: {key}")
        at = next((i for i, item in enumerate(merged) if item.get(key) == value[key]), len(merged))
        deleted = value.get("$patch") == "delete"
        merged[at : at + 1] = [] if deleted else [strategic_merge((merged[at:] or [{}])[0], value, node.item)]
    return merged


def _by_directives(
    merged: dict[str, Any], patch: dict[str, Any], before: dict[str, Any], node: Node | None
) -> dict[str, Any]:
    for directive, value in patch.items():
        name = directive.partition("/")[2]
        if directive.startswith(_DELETE):
            merged[name] = [item for item in merged.get(name) or [] if item not in value]
        elif directive.startswith(_ORDER) and isinstance(merged.get(name), list):
            child = node.child(name) if node else None
            merged[name] = _ordered(merged[name], value, before.get(name) or [], _key(child))
    return merged


def _ordered(items: list[Any], order: list[Any], before: list[Any], merge_key: str) -> list[Any]:
    """Put the patch's elements in its order.

    The others keep theirs, and come first only if they did before. So an element that is new stands in front of those
    that the patch does not name.
    """

    def places(listed: list[Any]) -> dict[str, int]:
        return {_identity(item, merge_key): place for place, item in enumerate(listed)}

    wanted, old = places(order), places(before)
    named = [item for item in items if _identity(item, merge_key) in wanted]
    named.sort(key=lambda item: wanted[_identity(item, merge_key)])
    others = [item for item in items if _identity(item, merge_key) not in wanted]
    merged = []
    for item in named:
        place = old.get(_identity(item, merge_key), -1)
        while others and old.get(_identity(others[0], merge_key), 0) < place:
            merged.append(others.pop(0))
        merged.append(item)
    return merged + others


def _identity(item: Any, merge_key: str) -> str:
    return repr(item.get(merge_key) if merge_key and isinstance(item, dict) else item)
