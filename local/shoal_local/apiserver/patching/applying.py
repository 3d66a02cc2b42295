"""Server-side apply, and the owners of an object's fields (``metadata.managedFields``).

A manager has a name, an operation (Apply or Update) and a subresource. An apply owns exactly the fields of its
configuration; any other write owns the fields that it changes.

1. The applier owns exactly the fields of the configuration.
2. A changed field of another owner is a conflict; a forced apply transfers the field instead.
3. A field that the applier owned, no longer lists, and that has no other owner, is removed.

Source: sigs.k8s.io/structured-merge-diff, merge/update.go.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shoal_local.apiserver.errors import ApiError, Cause
from shoal_local.apiserver.patching.field_sets import (
    Difference,
    FieldSet,
    Path,
    child_node,
    compare,
    field_set,
    from_fields_v1,
    is_atomic,
    list_step,
    path_text,
    step_into,
    to_fields_v1,
)
from shoal_local.apiserver.schemas.node import Node
from shoal_local.objects import Object

_SERVER_OWNED = """
name namespace creationTimestamp selfLink uid generation managedFields resourceVersion deletionTimestamp
deletionGracePeriodSeconds generateName
"""
_UNOWNED: frozenset[Path] = frozenset(
    {("f:apiVersion",), ("f:kind",), ("f:metadata",), *(("f:metadata", f"f:{name}") for name in _SERVER_OWNED.split())}
)
"""Fields without an owner: the server or the path determines them."""


@dataclass(frozen=True, slots=True)
class Manager:
    """A field manager: name, operation and subresource."""

    name: str
    operation: str
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Owned:
    """The fields of a manager, with apiVersion and time of its last write."""

    fields: FieldSet
    api_version: str
    time: str


Managers = Mapping[Manager, Owned]


def read_managers(obj: Object | None) -> dict[Manager, Owned]:
    """Return the field managers in an object's ``managedFields``."""
    entries = (obj or {}).get("metadata", {}).get("managedFields") or []
    return {
        Manager(e["manager"], e["operation"], e.get("subresource", "")): Owned(
            from_fields_v1(e.get("fieldsV1") or {}), e["apiVersion"], e.get("time", "")
        )
        for e in entries
        if e.get("manager")
    }


def managed_fields_of(managers: Managers) -> list[Object]:
    """Return ``managedFields``, without managers that own nothing."""
    # The order of Kubernetes: Apply before Update, then by time and name.
    order = sorted(managers.items(), key=lambda pair: (pair[0].operation, pair[1].time, pair[0].name))
    entries = []
    for manager, owned in order:
        if not owned.fields:
            continue
        entry = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": owned.api_version,
            "time": owned.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": to_fields_v1(owned.fields),
        }
        entries.append(entry | ({"subresource": manager.subresource} if manager.subresource else {}))
    return entries


def owned_part(fields: FieldSet) -> FieldSet:
    """Return the fields without those that only the server sets."""
    return frozenset(path for path in fields if path not in _UNOWNED and path[:2] not in _UNOWNED)


def after_update(
    managers: Managers, difference: Difference, writer: Manager, *, api_version: str, now: str
) -> dict[Manager, Owned]:
    """Return the managers after a write; ``writer`` owns the changed fields."""
    changed, removed = owned_part(difference.changed), owned_part(difference.removed)
    if not changed and not removed:
        return dict(managers)
    before = managers.get(writer, Owned(frozenset(), api_version, now)).fields
    kept = _without(before, removed)
    # Removed fields lose all owners, changed ones all but the writer.
    after = {m: replace(owned, fields=_without(owned.fields - changed, removed)) for m, owned in managers.items()}
    if changed:
        after[writer] = Owned(kept | changed, api_version, now)
    elif writer in after:
        after[writer] = replace(after[writer], fields=kept)
    return {manager: owned for manager, owned in after.items() if owned.fields}


def _without(fields: FieldSet, removed: FieldSet) -> FieldSet:
    """Return the fields that are not removed and not below a removed field."""
    if not removed:
        return fields
    return frozenset(p for p in fields if not any(p[:length] in removed for length in range(1, len(p) + 1)))


@dataclass(frozen=True, slots=True)
class Applier:
    """The field manager, time and force option of a server-side apply."""

    manager: Manager
    now: str
    force: bool = False


def apply(live: Object, config: Object, managers: Managers, applier: Applier, node: Node) -> tuple[Object, Managers]:
    """Merge ``config`` into ``live``; return the object and the managers of its fields.

    ``live`` is the stored object, or ``{}`` for a new one. Raises ApiError: 409, a changed field has another owner.
    """
    wanted = owned_part(field_set(config, node))
    merged = merge(live, config, node)
    changed = compare(live, merged, node).changed
    others = {manager: owned for manager, owned in managers.items() if manager != applier.manager}
    conflicts = {m: owned.fields & changed & wanted for m, owned in others.items()}
    if not applier.force and any(conflicts.values()):
        raise conflict_error({(m, others[m]): fields for m, fields in conflicts.items() if fields})
    others = {m: replace(o, fields=o.fields - conflicts[m]) for m, o in others.items()}
    nothing = Owned(frozenset(), config["apiVersion"], applier.now)
    former = managers.get(applier.manager, nothing)
    # The applier's former fields are removed, unless they or a part of them have another owner.
    kept = wanted.union(*(owned.fields for owned in others.values()))
    held = {path[:length] for path in kept for length in range(1, len(path) + 1)}
    merged = without(merged, (former.fields - wanted) - held, node)
    same = former.fields == wanted and former is not nothing
    # An apply without a change keeps its time, so that the object stays identical.
    own = former if same else replace(nothing, fields=wanted)
    return merged, {m: o for m, o in {**others, applier.manager: own}.items() if o.fields}


def merge(live: Any, config: Any, node: Node | None) -> Any:
    """Return ``live`` with the configuration's fields set. Both arguments stay unchanged."""
    if isinstance(config, dict) and isinstance(live, dict) and not is_atomic(config, node):
        merged = dict(live)
        for key, value in config.items():
            merged[key] = merge(live.get(key), value, node.child(key) if node else None)
        return merged
    if isinstance(config, list) and isinstance(live, list) and not is_atomic(config, node):
        return list(_merged_items(live, config, node))
    return config


def _merged_items(live: list[Any], config: list[Any], node: Node | None) -> Iterator[Any]:
    """Yield the elements of two merged lists.

    Elements of ``config`` are in the order of ``config``. The other elements of ``live`` keep their positions.
    """
    item_node = node.item if node else None
    old = {list_step(item, node): item for item in live}
    waiting = {list_step(item, node): item for item in config}
    named = set(waiting)
    for step, item in old.items():
        if step not in named:
            yield item
            continue
        while step in waiting:
            first = next(iter(waiting))
            yield merge(old.get(first), waiting.pop(first), item_node)
    for step, item in waiting.items():
        yield merge(old.get(step), item, item_node)


def without(value: Any, paths: FieldSet, node: Node | None) -> Any:
    """Return the value without the given paths and without containers that become empty.

    The argument stays unchanged.
    """
    # Containers first: an element without its key could not be found any more.
    for path in sorted(paths, key=len):
        value = _removed(value, path, node)
    return value


def _removed(value: Any, path: Path, node: Node | None) -> Any:
    step, rest = path[0], path[1:]
    try:
        inner = step_into(value, step, node)
    except KeyError:
        # Removed already, together with a container.
        return value
    left = _removed(inner, rest, child_node(node, step)) if rest else None
    keep = bool(rest) and (left not in ({}, []) or inner in ({}, []))
    if isinstance(value, dict):
        name = step[2:]
        return {k: (left if k == name else v) for k, v in value.items() if k != name or keep}
    items = [(left if list_step(v, node) == step else v, list_step(v, node) != step) for v in value]
    return [item for item, other in items if other or keep]


def conflict_error(conflicts: dict[tuple[Manager, Owned], FieldSet]) -> ApiError:
    """Return a 409 that lists the conflicting fields of each manager."""
    causes, lines = [], []
    for (manager, owned), fields in conflicts.items():
        owner = f'"{manager.name}"'
        if manager.subresource:
            owner += f' with subresource "{manager.subresource}"'
        if manager.operation == "Update":
            owner += f" using {owned.api_version}"
        paths = sorted(path_text(path) for path in fields)
        causes += [Cause(path, f"conflict with {owner}", "FieldManagerConflict") for path in paths]
        listed = "".join(f"\n- {path}" for path in paths)
        lines.append(f"conflict with {owner}: {paths[0]}" if len(paths) == 1 else f"conflicts with {owner}:{listed}")
    count = "1 conflict" if len(causes) == 1 else f"{len(causes)} conflicts"
    listed_causes = {"causes": [cause.as_json() for cause in causes]}
    return ApiError(409, "Conflict", f"Apply failed with {count}: " + "\n".join(lines), listed_causes)
