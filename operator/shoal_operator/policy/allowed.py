"""Check of specs against the install's policy of allowed values.

Users who may only create InferenceServices must not gain further permissions through the operator.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from msgspec import structs

from shoal_operator.children.observation import dig
from shoal_operator.manifests.deployment import make_deployment
from shoal_operator.manifests.job import make_job
from shoal_operator.manifests.target import Target
from shoal_operator.policy.restricted import beyond_restricted, listed
from shoal_schema.fields.declaring import as_json, fields_of
from shoal_schema.guides import guide
from shoal_schema.resource.offline import Engine
from shoal_schema.resource.policy import Policy

Requested = Iterator[tuple[str, str]]
"""Fields of the spec, with the requested values."""
_PLAIN = re.compile(r"[-\w.,:/@%+*~]*", re.ASCII)
"""Annotation values that cannot inject configuration: a size, a time, a name, a list of them."""
_FREE = ("annotations", "labels", "parameters")
"""Parts of a spec with free text as keys, which contain no references."""


def not_allowed(target: Target) -> str:
    """Return a message with the values that the policy does not allow, or ""."""
    found = list(_unmatched(target))
    if not target.defaults.policy.root:
        # A RayJob has the pods of a Job, without the index.
        batch = target.batch
        workload = make_job(target, structs.replace(batch, engine=Engine.JOB)) if batch else make_deployment(target)
        level = "policy.root: false, so the restricted Pod Security level applies"
        found += [f"{path} {value:.200} ({level})" for path, value in beyond_restricted(workload["spec"]["template"])]
    if not found:
        return ""
    remedy = f"Change the spec, or have the operator's administrator allow it{guide('how-to/policy', ' (', ')')}"
    return f"not allowed by the chart's values: {'; '.join(found)}. {remedy}"


def _unmatched(target: Target) -> Iterator[str]:
    policy = target.defaults.policy
    for each in fields_of(Policy):
        rule = RULES.get(each.name)
        patterns: tuple[str, ...] = getattr(policy, each.path[0]) if rule else ()
        known = [pattern.replace("$(NAMESPACE)", target.namespace) for pattern in patterns]
        for path, requested in rule(target) if rule else ():
            # ``name=value`` only matches patterns with a value; a name also matches the name in such a pattern.
            fitting = [p for p in known if "=" in p] if "=" in requested else [p.split("=")[0] for p in known]
            if not any(fnmatchcase(requested, pattern) for pattern in fitting):
                yield f"{path} {requested!r:.200} (policy.{each.name}: {', '.join(known) or 'none'})"


def images(target: Target) -> Requested:
    """Yield the images of containers and volumes in the spec."""
    spec, own = target.spec, (target.defaults.runtime_image, target.defaults.proxy_image)
    given = {"spec.runtime.image": spec.runtime.image, "spec.proxy.image": spec.proxy.image}
    if spec.model.volume and spec.model.volume.image:
        given["spec.model"] = spec.model.volume.image.reference
    yield from ((path, image) for path, image in given.items() if image and image not in own)
    for part, containers in (("containers", spec.pod.containers), ("initContainers", spec.pod.init_containers)):
        yield from ((f"spec.pod.{part}[{each['name']}].image", str(each.get("image"))) for each in containers)
    # Image volumes.
    for path, name in _scalars(list(spec.pod.volumes), "spec.pod.volumes"):
        if path.endswith(".image.reference"):
            yield path, name


def hosts(target: Target) -> Requested:
    """Yield the hosts of the service's routes from outside the cluster."""
    route = target.spec.route
    if route and route.ingress:
        yield "spec.route.ingress.host", route.ingress.host
    if route and route.http_route:
        for name in route.http_route.hostnames or ("*",):
            yield "spec.route.httpRoute.hostnames", name


def annotations(target: Target) -> Requested:
    """Yield annotations of the Ingress and the Service."""
    # Controllers such as nginx copy values into their configuration.
    ingress = target.spec.route.ingress if target.spec.route else None
    given = {"spec.route.ingress": ingress and ingress.annotations, "spec.service": target.spec.service.annotations}
    for path, each in given.items():
        for name, value in (each or {}).items():
            yield f"{path}.annotations", name if _PLAIN.fullmatch(value) else f"{name}={value}"


def webhook_hosts(target: Target) -> Requested:
    """Yield the hosts to which proxies may send results."""
    webhooks = target.spec.asynchronous.webhooks if target.spec.asynchronous else None
    if webhooks and target.batch is None:
        yield from (("spec.asynchronous.webhooks.allowedHosts", host) for host in webhooks.allowed_hosts)


def secrets(target: Target) -> Requested:
    """Yield names of Secrets anywhere in the spec."""
    for path, value in _scalars(as_json(target.batch or target.spec), "spec"):
        *_, holder, name = ("", *path.split("."))
        # References to Secrets: secretName, ...SecretName, and `name` below secretRef or imagePullSecrets.
        if name.endswith(("secretName", "SecretName")) or (
            name == "name" and (holder.startswith(("secret", "imagePullSecrets[")) or holder.endswith("SecretRef"))
        ):
            yield path, value


def service_accounts(target: Target) -> Requested:
    """Yield the ServiceAccount that the spec names."""
    # Also one with the service's name: the operator does not own it.
    if name := target.spec.pod.service_account_name:
        yield "spec.pod.serviceAccountName", name


def volumes(target: Target) -> Requested:
    """Yield the kinds of volumes and of projected volumes' sources."""
    own = as_json(target.spec.model.volume) if target.spec.model.volume else {}
    yield from (("spec.model.volume", kind) for kind in own if kind != "mountPath")
    for each in target.spec.pod.volumes:
        sources = [source for source in listed(dig(each, "projected", "sources")) if isinstance(source, dict)]
        kinds = [kind for part in (each, *sources) for kind in part if kind not in ("name", "emptyDir")]
        yield from ((f"spec.pod.volumes[{each['name']}]", kind) for kind in kinds)


def services(target: Target) -> Requested:
    """Yield the type of the Service that the spec requests."""
    if target.batch is None:
        yield "spec.service.type", str(target.spec.service.type)


def priority_classes(target: Target) -> Requested:
    """Yield the priority class that the spec names."""
    if name := target.spec.pod.priority_class_name:
        yield "spec.pod.priorityClassName", name


def runtime_classes(target: Target) -> Requested:
    """Yield the runtime class that the spec names."""
    if name := target.spec.pod.runtime_class_name:
        yield "spec.pod.runtimeClassName", name


def pod_labels(target: Target) -> Requested:
    """Yield the names of the pods' labels, by which any Service may select."""
    yield from (("spec.pod.labels", name) for name in target.spec.pod.labels or ())


def pod_annotations(target: Target) -> Requested:
    """Yield the names of the pods' annotations, on which webhooks may act."""
    yield from (("spec.pod.annotations", name) for name in target.spec.pod.annotations or ())


RULES: Mapping[str, Callable[[Target], Requested]] = {
    "images": images,
    "hosts": hosts,
    "annotations": annotations,
    "services": services,
    "webhookHosts": webhook_hosts,
    "secrets": secrets,
    "serviceAccounts": service_accounts,
    "volumes": volumes,
    "priorityClasses": priority_classes,
    "runtimeClasses": runtime_classes,
    "podLabels": pod_labels,
    "podAnnotations": pod_annotations,
}
"""By the chart's value with the allowed patterns."""


def _scalars(value: Any, path: str) -> Requested:
    """Yield all scalar values in a part of a spec, with their paths."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _scalars(inner, f"{path}.{name}") if name not in _FREE else ()
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _scalars(inner, f"{path}[{index}]")
    elif value is not None:
        yield path, str(value)
