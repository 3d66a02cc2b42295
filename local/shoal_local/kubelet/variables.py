"""Environment variables of a container: values, references to fields, ConfigMaps and Secrets, and $(VAR)."""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]
Objects = Mapping[tuple[str, str], Object | None]
"""ConfigMaps and Secrets by kind and name; None: missing."""
REFERENCES = {
    **dict.fromkeys(("configMap", "configMapRef", "configMapKeyRef"), "ConfigMap"),
    **dict.fromkeys(("secret", "secretRef", "secretKeyRef"), "Secret"),
}
"""Fields of a pod's spec that refer to an object, and its kind."""
_REFERENCE = re.compile(r"\$\$|\$\(([^()$]+)\)")
_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ConfigError(Exception):
    """The environment cannot be built; the message names the missing object or key."""


@dataclass(frozen=True, slots=True)
class Context:
    """The values that variables may refer to: fields of the pod, and objects."""

    pod: Object
    pod_ip: str
    host_ip: str
    objects: Objects
    """The objects of the pod's namespace to which it refers."""


def name_in(reference: Object) -> str | None:
    """Return the name of the object in a reference, if it has one; a volume has another field for Secrets."""
    return reference.get("secretName") or reference.get("name")


def referenced(field: str, source: Object, objects: Objects) -> Object:
    """Return the object in the ``field`` of a source, with ``data`` as bytes; {} if it is missing and optional.

    Raises ConfigError: the object is missing.
    """
    reference, kind = source[field], REFERENCES[field]
    found = objects.get((kind, name_in(reference) or ""))
    if found is None:
        if reference.get("optional"):
            return {}
        raise ConfigError(f'{kind.lower()} "{name_in(reference)}" not found')
    # Data of Secrets is encoded in base64, data of ConfigMaps is text.
    encode = base64.b64decode if kind == "Secret" else str.encode
    return {**found, "data": {key: encode(value) for key, value in (found.get("data") or {}).items()}}


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace $(VAR) by its value and $$ by a dollar sign; keep unknown names."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        # The pattern has no name for `$$`.
        return "$" if name is None else variables.get(name, found[0])

    return _REFERENCE.sub(value, text)


def make_variables(container: Object, context: Context) -> dict[str, str]:
    """Return the variables of a container; each may refer to earlier ones.

    Raises ConfigError: a reference cannot be resolved.
    """
    variables: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        field = "secretRef" if "secretRef" in source else "configMapRef"
        for key, value in referenced(field, source, context.objects).get("data", {}).items():
            # Keys that are no variable names are skipped.
            if _NAME.fullmatch(key):
                variables[source.get("prefix", "") + key] = value.decode(errors="replace")
    for entry in container.get("env") or []:
        if "valueFrom" in entry:
            found = _resolve(entry["valueFrom"], context)
            if found is not None:
                variables[entry["name"]] = found
        else:
            variables[entry["name"]] = expand(str(entry.get("value") or ""), variables)
    return variables


def _resolve(source: Object, context: Context) -> str | None:
    if "fieldRef" in source:
        return field_value(source["fieldRef"]["fieldPath"], context)
    if "resourceFieldRef" in source:
        raise ConfigError("resourceFieldRef is not supported by the kubelet of shoal local")
    for field in ("configMapKeyRef", "secretKeyRef"):
        if field not in source:
            continue
        reference, data = source[field], referenced(field, source, context.objects).get("data", {})
        if reference["key"] in data:
            return str(data[reference["key"]].decode(errors="replace"))
        if reference.get("optional"):
            return None
        where = f"{REFERENCES[field].lower()} {context.pod['metadata']['namespace']}/{reference['name']}"
        raise ConfigError(f"couldn't find key {reference['key']} in {where}")
    raise ConfigError(f"valueFrom has no supported source: {', '.join(source)}")


def field_value(path: str, context: Context) -> str:
    """Return a field of the pod as the downward API does. Raises ConfigError: the field is not supported."""
    meta, spec = context.pod["metadata"], context.pod["spec"]
    if found := _SUBSCRIPT.fullmatch(path):
        return str((meta.get(found[1]) or {}).get(found[2], ""))
    # All of them, one per line, for volumes.
    if path in ("metadata.labels", "metadata.annotations"):
        held = meta.get(path.partition(".")[2]) or {}
        return "\n".join(f'{key}="{value}"' for key, value in sorted(held.items()))
    fields = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta["namespace"],
        "metadata.uid": meta["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": context.pod_ip,
        "status.podIPs": context.pod_ip,
        "status.hostIP": context.host_ip,
        "status.hostIPs": context.host_ip,
    }
    if path not in fields:
        raise ConfigError(f"fieldPath {path!r} is not supported")
    return str(fields[path])
