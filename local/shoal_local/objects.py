"""Access to the common fields of API objects, and the format of times."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace ('' for cluster-scoped objects) and name."""


SERVICE_NAME = "kubernetes.io/service-name"
"""Label of an EndpointSlice."""


def key_of(obj: Object) -> Key:
    """Return the namespace and name of an object."""
    meta = obj["metadata"]
    # Cluster-scoped objects have no namespace.
    return meta.get("namespace", ""), meta["name"]


def timestamp(moment: datetime) -> str:
    """Return a time as the API writes it, such as ``2026-11-21T03:09:04Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(obj: Object, kind: str) -> Object | None:
    """Return the status condition of type ``kind``, or None."""
    # Absent and null are the same in the API.
    conditions = (obj.get("status") or {}).get("conditions") or []
    return next((dict(c) for c in conditions if c["type"] == kind), None)


def make_condition(kind: str, status: str, reason: str | None, message: str | None, since: str) -> Object:
    """Return a status condition of type ``kind``; ``since`` is the time of its last transition."""
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}


def other_conditions(obj: Object, kind: str) -> list[Object]:
    """Return the status conditions of other types than ``kind``."""
    return [c for c in (obj.get("status") or {}).get("conditions") or [] if c["type"] != kind]


def annotated(obj: Object, name: str, default: int) -> int:
    """Return the number in an annotation, or the default if it is missing or invalid."""
    text = (obj["metadata"].get("annotations") or {}).get(name, "")
    return int(text) if re.fullmatch(r"-?[0-9]{1,10}", text) else default


def is_deleting(obj: Object) -> bool:
    """Return whether the object is being deleted."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def is_ready(obj: Object) -> bool:
    """Return whether the Ready condition of a pod or node is true."""
    return (condition(obj, "Ready") or {}).get("status") == "True"


def has_ended(pod: Object) -> bool:
    """Return whether the pod has ended for good: Succeeded or Failed."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def controller_of(obj: Object) -> Object | None:
    """Return the owner reference of the object's controller, or None."""
    references = obj["metadata"].get("ownerReferences") or []
    return next((dict(r) for r in references if r.get("controller")), None)


def owned_by(owner: Object, objects: Iterable[Object]) -> list[Object]:
    """Return the objects that the owner controls."""
    uid = owner["metadata"]["uid"]
    return [o for o in objects if (ref := controller_of(o)) is not None and ref["uid"] == uid]


def reference_to(owner: Object) -> Object:
    """Return the owner reference that marks the owner as the object's controller."""
    named = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"]}
    return {**named, "uid": owner["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}


def dig(obj: Any, *path: str) -> Any:
    """Return the value at the path of keys, or None if a key is missing."""
    for step in path:
        if not isinstance(obj, dict):
            return None
        obj = obj.get(step)
    return obj


def share_of(value: int | str, total: int, *, round_up: bool = True) -> int:
    """Return a count, or a percentage of ``total`` as a count."""
    if isinstance(value, int):
        return value
    exact = int(value.removesuffix("%")) * total
    # Integer division: floats would round 7 % of 100 up to 8.
    return -(-exact // 100) if round_up else exact // 100
