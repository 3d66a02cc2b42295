"""The rules of metadata: names, fields that the server writes, and fields that are immutable."""

import re
from typing import Any

from shoal_local.apiserver.errors import Cause, invalid
from shoal_local.apiserver.kinds.resource import Resource
from shoal_local.objects import Object

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_DNS_1035 = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_RULE = "must consist of lower case alphanumeric characters"
_SUBDOMAIN_RULE = (
    f"a lowercase RFC 1123 subdomain {_RULE}, '-' or '.', and must start and end with an alphanumeric character "
    f"(e.g. 'example.com', regex used for validation is '{_SUBDOMAIN}')"
)
_LABEL_RULE = (
    f"a lowercase RFC 1123 label {_RULE} or '-', and must start and end with an alphanumeric character "
    f"(e.g. 'my-name',  or '123-abc', regex used for validation is '{_LABEL}')"
)
_DNS_1035_RULE = (
    f"a DNS-1035 label {_RULE} or '-', start with an alphabetic character, and end with an alphanumeric character "
    f"(e.g. 'my-name',  or 'abc-123', regex used for validation is '{_DNS_1035}')"
)
_DELETION = ("deletionTimestamp", "deletionGracePeriodSeconds")
_SERVER_OWNED = ("uid", "creationTimestamp", "generation", "selfLink", *_DELETION)
_FREE_NAMES = "rbac.authorization.k8s.io"


def name_causes(resource: Resource, name: str) -> list[Cause]:
    """Return a cause for each violation of the kind's naming rules."""
    pattern, rule, longest = _SUBDOMAIN, _SUBDOMAIN_RULE, 253
    if resource.group == _FREE_NAMES:
        pattern, rule = r"(?!\.{1,2}$)[^/%]+", "may not contain '/' or '%'"
    elif resource.key == "/services":
        pattern, rule, longest = _DNS_1035, _DNS_1035_RULE, 63
    elif resource.key == "/namespaces":
        pattern, rule, longest = _LABEL, _LABEL_RULE, 63
    causes = []
    if not re.fullmatch(pattern, name):
        causes.append(Cause("metadata.name", f'Invalid value: "{name}": {rule}'))
    if len(name) > longest:
        causes.append(Cause("metadata.name", f'Invalid value: "{name}": must be no more than {longest} characters'))
    return causes


def for_create(obj: Object, resource: Resource, *, uid: str, now: str) -> Object:
    """Return the metadata of a new object, with a name from ``generateName`` if it has no name.

    Raises ApiError: 422, the name is missing or invalid.
    """
    meta = {key: value for key, value in obj["metadata"].items() if key not in _SERVER_OWNED}
    if not meta.get("name") and meta.get("generateName"):
        # Five characters, as in Kubernetes, but derived from the uid.
        meta["name"] = meta["generateName"] + uid.replace("-", "")[:5]
    if not meta.get("name"):
        raise invalid(resource.kind, resource.group, "", [NAME_REQUIRED])
    if causes := name_causes(resource, meta["name"]):
        raise invalid(resource.kind, resource.group, meta["name"], causes)
    meta |= {"uid": uid, "creationTimestamp": now}
    meta.pop("resourceVersion", None)
    return meta | ({"generation": 1} if resource.generation else {})


NAME_REQUIRED = Cause("metadata.name", "Required value: name or generateName is required", "FieldValueRequired")


def for_update(new: Object, live: Object, *, counted: bool) -> Object:
    """Return the metadata of an updated object.

    If ``counted`` is set, a change outside of metadata and status increments ``generation``.
    """
    old = live["metadata"]
    meta = {key: value for key, value in new["metadata"].items() if key not in _SERVER_OWNED}
    meta |= {key: old[key] for key in _SERVER_OWNED if key in old}
    meta |= {"name": old["name"], "resourceVersion": old["resourceVersion"]}
    if counted and _counted_part(new) != _counted_part(live):
        meta["generation"] = old.get("generation", 0) + 1
    return meta


def _counted_part(obj: Object) -> dict[str, Any]:
    outside = ("metadata", "status", "kind", "apiVersion")
    return {key: value for key, value in obj.items() if key not in outside}


def immutable_causes(new: Object, live: Object) -> list[Cause]:
    """Return a cause for each forbidden change of metadata."""
    causes = []
    for field in ("name", "namespace", "uid"):
        old, value = live["metadata"].get(field), new["metadata"].get(field)
        if value is not None and value != old:
            causes.append(Cause(f"metadata.{field}", f'Invalid value: "{value}": field is immutable'))
    if live["metadata"].get("deletionTimestamp"):
        old = live["metadata"].get("finalizers") or []
        new_names = ", ".join(f'"{name}"' for name in new["metadata"].get("finalizers") or [] if name not in old)
        why = "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers "
        causes += [Cause("metadata.finalizers", f"{why}[{new_names}]", "FieldValueForbidden")] if new_names else []
    return causes
