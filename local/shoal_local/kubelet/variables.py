"""Environment variables of a container: values, references to fields, ConfigMaps and Secrets, and $(VAR)."""

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]
Lookup = Callable[[str, str], Object | None]
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
    find: Lookup
    """Plural and name to an object of the pod's namespace."""


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
        field, plural = ("secretRef", "secrets") if "secretRef" in source else ("configMapRef", "configmaps")
        obj = context.find(plural, source[field]["name"])
        if obj is None and not source[field].get("optional"):
            raise ConfigError(f'{plural[:-1]} "{source[field]["name"]}" not found')
        for key, text in ((obj or {}).get("data") or {}).items():
            # Keys that are no variable names are skipped.
            if _NAME.fullmatch(key):
                variables[source.get("prefix", "") + key] = text if plural == "configmaps" else _decoded(text)
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
    for field, plural in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
        if field not in source:
            continue
        reference = source[field]
        found = context.find(plural, reference["name"])
        text = ((found or {}).get("data") or {}).get(reference["key"])
        if text is not None:
            return str(text) if plural == "configmaps" else _decoded(text)
        if reference.get("optional"):
            return None
        if found is None:
            raise ConfigError(f'{plural[:-1]} "{reference["name"]}" not found')
        space = context.pod["metadata"]["namespace"]
        raise ConfigError(f"couldn't find key {reference['key']} in {plural[:-1]} {space}/{reference['name']}")
    raise ConfigError(f"valueFrom has no supported source: {', '.join(source)}")


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode(errors="replace")


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
