"""``metadata.managedFields``: the owners of an object's fields.

A manager has a name, an operation (Apply or Update) and a subresource. An apply owns exactly the fields of its
configuration; any other write owns the fields that it changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shoal_local.apiserver.patching.field_sets import Difference, FieldSet, Path, from_fields_v1, to_fields_v1
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
