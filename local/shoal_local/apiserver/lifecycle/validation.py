"""Rules of metadata, and rules of built-in kinds beyond their OpenAPI definitions.

The rules of metadata concern names, fields that the server writes, and fields that are immutable.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shoal_local.apiserver.errors import (
    Cause,
    forbidden_value,
    invalid,
    invalid_value,
    json_text,
    required_value,
    unsupported_value,
)
from shoal_local.apiserver.kinds.registry import NAMESPACES, PODS, SERVICES, Resource
from shoal_local.apiserver.storage.selectors import matches_label_selector
from shoal_local.objects import Object, dig

Check = Callable[[Object, Object | None], Iterator[Cause]]
_NEGATIVE = "must be greater than or equal to 0"
_NO_MATCH = "`selector` does not match template `labels`"


def rule_causes(key: str, obj: Object, live: Object | None) -> list[Cause]:
    """Return the violations of an object of a built-in kind; ``live`` is its stored version."""
    return list(CHECKS[key](obj, live)) if key in CHECKS else []


def _immutable(field: str, obj: Object, live: Object | None) -> Iterator[Cause]:
    new, old = (dig(each, *field.split(".")) for each in (obj, live))
    if live is not None and new != old:
        yield invalid_value(field, new, "field is immutable")


def _workload(obj: Object, live: Object | None) -> Iterator[Cause]:
    spec = obj["spec"]
    template = spec.get("template", {})
    labels = template.get("metadata", {}).get("labels", {})
    if spec.get("replicas", 0) < 0:
        yield invalid_value("spec.replicas", spec["replicas"], _NEGATIVE)
    if not matches_label_selector(spec.get("selector"), labels):
        yield invalid_value("spec.template.metadata.labels", labels, _NO_MATCH)
    if template.get("spec", {}).get("restartPolicy", "Always") != "Always":
        yield unsupported_value("spec.template.spec.restartPolicy", template["spec"]["restartPolicy"], ["Always"])
    yield from _pod_spec(template.get("spec", {}), "spec.template.spec")
    yield from _immutable("spec.selector", obj, live)
    # Only a Deployment has a strategy.
    bounds = spec.get("strategy", {}).get("rollingUpdate", {})
    if bounds and all(bounds.get(name) in (0, "0%") for name in ("maxSurge", "maxUnavailable")):
        why, field = "may not be 0 when `maxSurge` is 0", "spec.strategy.rollingUpdate.maxUnavailable"
        yield invalid_value(field, bounds["maxUnavailable"], why)


_JOB_NUMBERS = (
    *("parallelism", "completions", "activeDeadlineSeconds", "backoffLimit"),
    *("ttlSecondsAfterFinished", "backoffLimitPerIndex", "maxFailedIndexes"),
)
"""Numbers of a JobSpec that must not be negative."""
_JOB_WORDS = {"completionMode": ("NonIndexed", "Indexed"), "podReplacementPolicy": ("Failed", "TerminatingOrFailed")}
_NOT_HERE = ("successPolicy", "managedBy")


def _job(obj: Object, live: Object | None) -> Iterator[Cause]:
    spec = obj["spec"]
    for name in _NOT_HERE:
        if name in spec:
            yield forbidden_value(f"spec.{name}", "the Jobs of shoal local do not support it")
    for number, rule in enumerate((spec.get("podFailurePolicy") or {}).get("rules") or []):
        known = rule.get("onExitCodes") and (rule["action"], rule["onExitCodes"]["operator"]) == ("FailJob", "In")
        if not (known or (rule.get("onPodConditions") and rule["action"] == "Ignore")):
            why = "shoal local supports only FailJob with onExitCodes (In) and Ignore with onPodConditions"
            yield forbidden_value(f"spec.podFailurePolicy.rules[{number}]", why)
    for name in _JOB_NUMBERS:
        if spec.get(name, 0) < 0:
            yield invalid_value(f"spec.{name}", spec[name], _NEGATIVE)
    for name, words in _JOB_WORDS.items():
        if spec[name] not in words:
            yield unsupported_value(f"spec.{name}", spec[name], words)
    yield from _job_by_index(spec, obj["metadata"]["name"])
    yield from _job_template(spec)
    if live is not None:
        yield from _job_changes(obj, live)


def _job_by_index(spec: Object, name: str) -> Iterator[Cause]:
    indexed, wanted = spec["completionMode"] == "Indexed", spec.get("completions")
    limit, most = spec.get("backoffLimitPerIndex"), spec.get("maxFailedIndexes")
    if indexed and wanted is None:
        yield required_value("spec.completions", "when completion mode is Indexed")
    # The name of the last pod must be a valid host name.
    host = f"{name}-{max(0, (wanted or 1) - 1)}"
    if indexed and not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", host):
        yield invalid_value("metadata.name", name, f"will not able to create pod with invalid DNS label: {host}")
    if limit is not None and not indexed:
        yield invalid_value("spec.backoffLimitPerIndex", limit, "requires indexed completion mode")
    if most is not None and limit is None:
        yield required_value("spec.backoffLimitPerIndex", "when maxFailedIndexes is specified")
    if most is not None and most > (wanted or 0):
        yield invalid_value("spec.maxFailedIndexes", most, "must be less than or equal to completions")


def _job_template(spec: Object) -> Iterator[Cause]:
    # The selector must match the labels, and the restart policy must not be Always.
    labels = spec["template"].get("metadata", {}).get("labels", {})
    if "selector" not in spec:
        yield required_value("spec.selector")
    if not matches_label_selector(spec.get("selector"), labels):
        yield invalid_value("spec.template.metadata.labels", labels, _NO_MATCH)
    if len(name := labels.get("job-name", "")) > 63:
        yield invalid_value("spec.template.labels", name, "must be no more than 63 bytes")
    yield from _pod_spec(spec["template"]["spec"], "spec.template.spec")
    policy, field = spec["template"]["spec"]["restartPolicy"], "spec.template.spec.restartPolicy"
    if policy == "Always":
        yield required_value(field, 'valid values: "OnFailure", "Never"')
    elif policy not in ("OnFailure", "Never"):
        yield unsupported_value(field, policy, ("OnFailure", "Never"))


def _job_changes(obj: Object, live: Object) -> Iterator[Cause]:
    new, old = obj["spec"], live["spec"]
    # An elastic Indexed Job may change both together.
    together = new.get("completions") == new["parallelism"]
    indexed = new["completionMode"] == "Indexed"
    if new.get("completions") != old.get("completions") and not (indexed and together):
        why = "can only be modified in tandem with spec.parallelism" if indexed else "field is immutable"
        yield invalid_value("spec.completions", new.get("completions"), why)
    yield from _immutable("spec.selector", obj, live)
    fixed = [new["template"], old["template"]]
    # Until its first pod starts, a suspended Job may move to other nodes.
    if old.get("suspend") and not live.get("status", {}).get("startTime"):
        free = ("affinity", "nodeSelector", "tolerations", "schedulingGates")
        fixed = [{k: v for k, v in t["spec"].items() if k not in free} for t in fixed]
    if fixed[0] != fixed[1]:
        yield invalid_value("spec.template", new["template"], "field is immutable")
    for field in ("completionMode", "backoffLimitPerIndex", "podFailurePolicy"):
        yield from _immutable(f"spec.{field}", obj, live)


def _pod_spec(spec: Object, path: str) -> Iterator[Cause]:
    if not spec.get("containers"):
        yield required_value(f"{path}.containers")
    # Names are unique across init and main containers.
    seen: set[str] = set()
    for part in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(part, [])):
            name, at = container.get("name", ""), f"{path}.{part}[{index}]"
            if name in seen:
                yield Cause(f"{at}.name", f'Duplicate value: "{name}"', "FieldValueDuplicate")
            seen.add(name)
            if not container.get("image"):
                yield required_value(f"{at}.image")
            volumes = {volume["name"] for volume in spec.get("volumes", [])}
            for number, mount in enumerate(container.get("volumeMounts", [])):
                if mount.get("name") not in volumes:
                    message = f'Not found: "{mount.get("name")}"'
                    yield Cause(f"{at}.volumeMounts[{number}].name", message, "FieldValueNotFound")


def _service(obj: Object, live: Object | None) -> Iterator[Cause]:
    spec = obj["spec"]
    ports = spec.get("ports", [])
    if not ports and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
        yield required_value("spec.ports")
    for index, port in enumerate(ports):
        if len(ports) > 1 and not port.get("name"):
            yield required_value(f"spec.ports[{index}].name")
        if not 1 <= port["port"] <= 65535:
            yield invalid_value(f"spec.ports[{index}].port", port["port"], "must be between 1 and 65535, inclusive")
    # An address never changes, also not by another type of the service.
    fixed = live["spec"].get("clusterIP") if live else None
    if fixed and spec.get("clusterIP") != fixed:
        yield invalid_value("spec.clusterIPs[0]", [spec.get("clusterIP")], "may not change once set")


CHECKS: Mapping[str, Check] = {
    PODS: lambda obj, live: _pod_spec(obj["spec"], "spec"),
    SERVICES: _service,
    "apps/deployments": _workload,
    "apps/replicasets": _workload,
    "batch/jobs": _job,
}


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
    elif resource.key == SERVICES:
        pattern, rule, longest = _DNS_1035, _DNS_1035_RULE, 63
    elif resource.key == NAMESPACES:
        pattern, rule, longest = _LABEL, _LABEL_RULE, 63
    causes = []
    if not re.fullmatch(pattern, name):
        causes.append(invalid_value("metadata.name", name, rule))
    if len(name) > longest:
        causes.append(invalid_value("metadata.name", name, f"must be no more than {longest} characters"))
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
        missing = required_value("metadata.name", "name or generateName is required")
        raise invalid(resource.kind, resource.group, "", [missing])
    if causes := name_causes(resource, meta["name"]):
        raise invalid(resource.kind, resource.group, meta["name"], causes)
    meta |= {"uid": uid, "creationTimestamp": now}
    meta.pop("resourceVersion", None)
    return meta | ({"generation": 1} if resource.generation else {})


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
            causes.append(invalid_value(f"metadata.{field}", value, "field is immutable"))
    if live["metadata"].get("deletionTimestamp"):
        old = live["metadata"].get("finalizers") or []
        added = ", ".join(json_text(name) for name in new["metadata"].get("finalizers") or [] if name not in old)
        why = f"no new finalizers can be added if the object is being deleted, found new finalizers [{added}]"
        causes += [forbidden_value("metadata.finalizers", why)] if added else []
    return causes
