"""Rules of the built-in kinds that their OpenAPI definitions do not tell."""

from collections.abc import Callable, Iterator, Mapping

from shoal_local.apiserver.errors import Cause
from shoal_local.apiserver.schemas.values import shown
from shoal_local.apiserver.storage.selectors import matches_label_selector
from shoal_local.objects import Object, dig

Check = Callable[[Object, Object | None], Iterator[Cause]]


def rule_causes(key: str, obj: Object, live: Object | None) -> list[Cause]:
    """Return what is wrong with an object of a built-in kind; ``live`` is its former version."""
    return list(CHECKS[key](obj, live)) if key in CHECKS else []


def _immutable(field: str, obj: Object, live: Object | None) -> Iterator[Cause]:
    new, old = (dig(each, *field.split(".")) for each in (obj, live))
    if live is not None and new != old:
        yield Cause(field, f"Invalid value: {shown(new)}: field is immutable")


def _workload(obj: Object, live: Object | None) -> Iterator[Cause]:
    spec = obj["spec"]
    template = spec.get("template", {})
    labels = template.get("metadata", {}).get("labels", {})
    if spec.get("replicas", 0) < 0:
        message = f"Invalid value: {spec['replicas']}: must be greater than or equal to 0"
        yield Cause("spec.replicas", message)
    if not matches_label_selector(spec.get("selector"), labels):
        message = f"Invalid value: {shown(labels)}: `selector` does not match template `labels`"
        yield Cause("spec.template.metadata.labels", message)
    if template.get("spec", {}).get("restartPolicy", "Always") != "Always":
        value = shown(template["spec"]["restartPolicy"])
        message = f'Unsupported value: {value}: supported values: "Always"'
        yield Cause("spec.template.spec.restartPolicy", message, "FieldValueNotSupported")
    yield from _pod_spec(template.get("spec", {}), "spec.template.spec")
    yield from _immutable("spec.selector", obj, live)


def _deployment(obj: Object, live: Object | None) -> Iterator[Cause]:
    yield from _workload(obj, live)
    bounds = obj["spec"].get("strategy", {}).get("rollingUpdate", {})
    if bounds and all(bounds.get(name) in (0, "0%") for name in ("maxSurge", "maxUnavailable")):
        message = f"Invalid value: {shown(bounds['maxUnavailable'])}: may not be 0 when `maxSurge` is 0"
        yield Cause("spec.strategy.rollingUpdate.maxUnavailable", message)


def _pod_spec(spec: Object, path: str) -> Iterator[Cause]:
    if not spec.get("containers"):
        yield Cause(f"{path}.containers", "Required value", "FieldValueRequired")
    seen: set[str] = set()
    for part in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(part, [])):
            name, at = container.get("name", ""), f"{path}.{part}[{index}]"
            if name in seen:
                yield Cause(f"{at}.name", f'Duplicate value: "{name}"', "FieldValueDuplicate")
            seen.add(name)
            yield from _container(container, {volume["name"] for volume in spec.get("volumes", [])}, at)


def _container(container: Object, volumes: set[str], path: str) -> Iterator[Cause]:
    if not container.get("image"):
        yield Cause(f"{path}.image", "Required value", "FieldValueRequired")
    for index, mount in enumerate(container.get("volumeMounts", [])):
        if mount.get("name") not in volumes:
            at = f"{path}.volumeMounts[{index}].name"
            yield Cause(at, f'Not found: "{mount.get("name")}"', "FieldValueNotFound")


def _service(obj: Object, live: Object | None) -> Iterator[Cause]:
    spec = obj["spec"]
    ports = spec.get("ports", [])
    if not ports and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
        yield Cause("spec.ports", "Required value", "FieldValueRequired")
    for index, port in enumerate(ports):
        if len(ports) > 1 and not port.get("name"):
            yield Cause(f"spec.ports[{index}].name", "Required value", "FieldValueRequired")
        if not 1 <= port["port"] <= 65535:
            message = f"Invalid value: {port['port']}: must be between 1 and 65535, inclusive"
            yield Cause(f"spec.ports[{index}].port", message)
    fixed = live["spec"].get("clusterIP") if live else None
    if fixed and spec.get("clusterIP") != fixed:
        message = f"Invalid value: {shown([spec.get('clusterIP')])}: may not change once set"
        yield Cause("spec.clusterIPs[0]", message)


CHECKS: Mapping[str, Check] = {
    "/pods": lambda obj, live: _pod_spec(obj["spec"], "spec"),
    "/services": _service,
    "apps/deployments": _deployment,
    "apps/replicasets": _workload,
}
