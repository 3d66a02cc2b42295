"""Merge patches: plain (RFC 7386), and strategic, which treats lists as sets or keyed lists.

Directives: ``$patch: replace|delete|merge``, ``$deleteFromPrimitiveList/<field>``, ``$setElementOrder/<field>``,
    ``$retainKeys``. Keys and strategies come from the OpenAPI definitions.
"""

from typing import Any

from shoal_local.apiserver.errors import bad_request
from shoal_local.apiserver.schemas.node import Node


def merge_patch(target: Any, patch: Any) -> Any:
    """Return ``target`` with ``patch`` merged; null removes, a list replaces. Both arguments stay unchanged."""
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
    """Return ``target`` with ``patch`` merged by the schema at ``node``. Both arguments stay unchanged.

    Raises ApiError: 400, an element of a keyed list does not have its key, or a directive is unknown.
    """
    if not isinstance(patch, dict):
        return patch
    directive = patch.get("$patch")
    if directive not in (None, "replace", "delete", "merge"):
        raise bad_request(f"unrecognized directive: {directive!r} is no value of $patch")
    if directive == "delete":
        return {}
    base = {} if directive == "replace" or not isinstance(target, dict) else dict(target)
    if _RETAIN in patch:
        base = {key: value for key, value in base.items() if key in patch[_RETAIN]}
    before = dict(base)
    for key, value in patch.items():
        # Directives are applied below, to the merged fields.
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
    for directive, value in patch.items():
        name = directive.partition("/")[2]
        if directive.startswith(_DELETE):
            base[name] = [item for item in base.get(name) or [] if item not in value]
        elif directive.startswith(_ORDER) and isinstance(base.get(name), list):
            child = node.child(name) if node else None
            base[name] = _ordered(base[name], value, before.get(name) or [], _key(child))
    return base


def _key(node: Node | None) -> str:
    return str(node.tag("patch-merge-key") or "") if node else ""


def _merge_list(target: list[Any], patch: list[Any], node: Node) -> list[Any]:
    if not _key(node):
        # A set.
        return [*target, *(value for value in patch if value not in target)]
    if any(isinstance(value, dict) and value.get("$patch") == "replace" for value in patch):
        return [value for value in patch if "$patch" not in value]
    merged, key = list(target), _key(node)
    for value in patch:
        if not isinstance(value, dict) or key not in value:
            raise bad_request(f"map: {value} does not contain declared merge key: {key}")
        # The position of the element with this key, or the end.
        at = next((i for i, item in enumerate(merged) if item.get(key) == value[key]), len(merged))
        deleted = value.get("$patch") == "delete"
        merged[at : at + 1] = [] if deleted else [strategic_merge((merged[at:] or [{}])[0], value, node.item)]
    return merged


def _ordered(items: list[Any], order: list[Any], before: list[Any], merge_key: str) -> list[Any]:
    """Return the elements of a merged list in their new order.

    Elements of the patch follow ``order``. An element that is not in the patch precedes an element of the patch only
    if it did so in ``before``.
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
