"""Fields whose content must equal the declared content, without additions of other writers.

An additional label in a Service's selector stops all requests; an additional peer in a NetworkPolicy opens the admin
port; an additional setting in a container contradicts the spec. Server-side apply keeps additions to maps and keyed
lists, so a JSON merge patch removes them: null removes a key, and a list replaces a list.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal_operator.children.drift import holds
from shoal_operator.children.observation import dig
from shoal_operator.manifests.desired import (
    CANDIDATE_POLICY,
    CANDIDATE_SERVICE,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    HPA,
    HTTP_ROUTE,
    INGRESS,
    NETWORK_POLICY,
    PEERS,
    SCALED_OBJECT,
    SERVICE,
    Child,
)
from shoal_schema.fields.declaring import Json
from shoal_schema.process.unknown_variables import PREFIX as SETTINGS_PREFIX

_OF_A_SERVICE = (
    "selector",
    "ports",
    "publishNotReadyAddresses",
    "externalIPs",
    "externalName",
    "externalTrafficPolicy",
    "internalTrafficPolicy",
    "sessionAffinity",
    "sessionAffinityConfig",
)
_OF_A_POLICY = ("podSelector", "policyTypes", "ingress", "egress")
_CONTAINER_LISTS = ("initContainers", "containers")

EXACT: Mapping[Child, tuple[str, ...]] = {
    SERVICE: _OF_A_SERVICE,
    PEERS: _OF_A_SERVICE,
    CANDIDATE_SERVICE: _OF_A_SERVICE,
    DISRUPTION_BUDGET: ("selector", "minAvailable", "maxUnavailable"),
    NETWORK_POLICY: _OF_A_POLICY,
    CANDIDATE_POLICY: _OF_A_POLICY,
    INGRESS: ("rules", "tls", "defaultBackend"),
    HTTP_ROUTE: ("parentRefs", "hostnames", "rules"),
    # Not `behavior`: users may set it.
    HPA: ("scaleTargetRef", "metrics"),
    SCALED_OBJECT: ("scaleTargetRef", "triggers"),
}
"""Fields of ``spec``, by kind."""
_FILLED_IN: Mapping[Child, frozenset[str]] = {
    SERVICE: frozenset({"nodePort"}),
    PEERS: frozenset({"nodePort"}),
    CANDIDATE_SERVICE: frozenset({"nodePort"}),
    HTTP_ROUTE: frozenset({"group", "kind", "weight"}),
}
"""Keys that API servers add inside those fields."""
_DEFAULTS: Mapping[str, str] = {
    "internalTrafficPolicy": "Cluster",
    "externalTrafficPolicy": "Cluster",
    "sessionAffinity": "None",
}
"""Values that API servers set for undeclared fields."""


def is_stored(kind: Child, desired: Json, live: Json) -> bool:
    """Return whether a stored object is as declared, so that no write is needed."""
    return holds(desired, live) and not removal(kind, desired, live)


def removal(kind: Child, desired: Json, live: Json) -> Json:
    """Return the JSON merge patch that removes additions of other writers; empty if there are none."""
    if kind.kind == DEPLOYMENT.kind:
        # Rewrite the containers' lists without the foreign settings, and nothing else of them.
        foreign = foreign_settings(desired, live)
        if not foreign:
            return {}
        pod = dig(live, "spec", "template", "spec", default={})
        lists: Json = {}
        for part in (part for part in _CONTAINER_LISTS if pod.get(part)):
            lists[part] = containers = []
            for each in pod[part]:
                names = foreign.get(each["name"], ())
                kept = [entry for entry in each.get("env", []) if entry["name"] not in names]
                containers.append({**each, "env": kept} if names else each)
        return {"spec": {"template": {"spec": lists}}}
    ours, theirs = desired.get("spec", {}), live.get("spec", {})
    filled_in = _FILLED_IN.get(kind, frozenset())
    # Defaults of the API server are no additions.
    given = {name: value for name, value in theirs.items() if name in ours or value != _DEFAULTS.get(name)}
    wrong = [n for n in EXACT.get(kind, ()) if not _exactly(ours.get(n), given.get(n), filled_in)]
    return {"spec": {name: _replacing(ours.get(name), theirs.get(name)) for name in wrong}} if wrong else {}


def foreign_settings(desired: Json, live: Json) -> Mapping[str, tuple[str, ...]]:
    """Return, by container, the Shoal settings that other writers added to a Deployment's pods."""
    ours = {each["name"]: _variables(each) for each in _containers(desired)}
    found = ((each["name"], _variables(each)) for each in _containers(live) if each.get("name") in ours)
    added = {
        name: tuple(v for v in variables if (v.startswith(SETTINGS_PREFIX) and v not in ours[name]))
        for name, variables in found
    }
    return {name: variables for name, variables in added.items() if variables}


def removed_settings(desired: Json, live: Json, stored: Json) -> Mapping[str, tuple[str, ...]]:
    """Return, by container, the settings of other writers that the operator's write removed."""
    kept = foreign_settings(desired, stored)
    found = {
        name: tuple(v for v in variables if v not in kept.get(name, ()))
        for name, variables in foreign_settings(desired, live).items()
    }
    return {name: variables for name, variables in found.items() if variables}


def settings_text(settings: Mapping[str, Sequence[str]]) -> str:
    """Return the names of settings by container, as text for a message."""
    return "; ".join(f"{', '.join(variables)} of container {name}" for name, variables in settings.items())


def _containers(deployment: Json) -> list[Json]:
    pod = dig(deployment, "spec", "template", "spec", default={})
    return [each for part in _CONTAINER_LISTS for each in pod.get(part) or ()]


def _variables(container: Json) -> tuple[str, ...]:
    return tuple(entry["name"] for entry in container.get("env") or ())


def replacement(desired: Json, live: Json) -> Json:
    """Return the JSON merge patch that replaces all of ``spec`` by the declared one.

    Server-side apply keeps additions of other writers. Some contradict a declared field and make the object invalid, so
    that only a replacement corrects it: ``minAvailable`` with ``maxUnavailable``, or ``valueFrom`` with a variable's
    value.
    """
    return {"spec": _replacing(desired.get("spec", {}), live.get("spec", {}))}


def _exactly(ours: Any, theirs: Any, filled_in: frozenset[str]) -> bool:
    """Return whether a stored value adds nothing to the declared value.

    Args:
        ours: the declared value.
        theirs: the stored value.
        filled_in: keys that the API server may add.
    """
    if isinstance(ours, dict) and isinstance(theirs, dict):
        added = (key for key, value in theirs.items() if key not in ours and key not in filled_in and not _empty(value))
        same = (_exactly(value, theirs.get(key), filled_in) for key, value in ours.items())
        return not any(True for _ in added) and all(same)
    if isinstance(ours, list) and isinstance(theirs, list):
        pairs = zip(ours, theirs, strict=False)
        return len(theirs) <= len(ours) and all(_exactly(one, other, filled_in) for one, other in pairs)
    return ours is not None or _empty(theirs)


def _empty(value: Any) -> bool:
    return value in (None, False, "", [], {})


def _replacing(ours: Any, theirs: Any) -> Any:
    """Return the merge patch that replaces a stored value by the declared one.

    Args:
        ours: the declared value.
        theirs: the stored value.
    """
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        return ours
    # In a merge patch null removes a key.
    removed: Json = dict.fromkeys(theirs.keys() - ours.keys())
    return {**removed, **{key: _replacing(value, theirs.get(key)) for key, value in ours.items()}}
