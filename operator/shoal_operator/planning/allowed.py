"""Whether a service may have what it asks for: one list of what is asked for each list of what is allowed.

Who may only create InferenceServices must not reach through the operator what is not theirs.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from msgspec import structs

from shoal_operator.manifests.deployment import make_deployment
from shoal_operator.manifests.job import make_job
from shoal_operator.manifests.target import Target
from shoal_operator.planning.observation import dig
from shoal_operator.planning.restricted import beyond_restricted, listed
from shoal_schema.declaring import Json, as_json, fields_of
from shoal_schema.policy import Policy
from shoal_schema.resource.offline import Engine

Asked = Iterator[tuple[str, str]]
"""Fields of the spec, and what they ask for."""
_PLAIN = re.compile(r"[-\w.,:/@%+*~]*", re.ASCII)
"""A value that stays one wherever a controller writes it: a size, a time, a name, a list of them."""
_FREE = ("annotations", "labels", "parameters")
"""Parts of a spec in which a key that is called like a reference is none."""


def not_allowed(target: Target) -> str:
    """Return what a service asks for and may not have, with what would allow it; empty where it may have all."""
    told = [*_unmatched(target), *_beyond(target)]
    if not told:
        return ""
    remedy = "Change the spec, or ask who installed the operator to allow it (docs/how-to/policy.md)"
    return f"not allowed by the values of the chart: {'; '.join(told)}. {remedy}"


def _unmatched(target: Target) -> Iterator[str]:
    policy = target.defaults.policy
    for each in fields_of(Policy):
        rule = RULES.get(each.name)
        patterns: tuple[str, ...] = getattr(policy, each.path[0]) if rule else ()
        known = [pattern.replace("$(NAMESPACE)", target.namespace) for pattern in patterns]
        for path, asked in rule(target) if rule else ():
            if not any(_matches(asked, pattern) for pattern in known):
                yield f"{path} {asked!r:.200} (policy.{each.name}: {', '.join(known) or 'none'})"


def _matches(asked: str, pattern: str) -> bool:
    """Return whether a pattern allows it: an annotation that is told with its value, only one that has a value too."""
    name, *_ = pattern.split("=")
    return fnmatchcase(asked, name) if "=" not in asked else "=" in pattern and fnmatchcase(asked, pattern)


def _beyond(target: Target) -> Iterator[str]:
    if not target.defaults.policy.root:
        # A RayJob has the pods of a Job, without the index.
        workload = (
            make_job(target, structs.replace(target.batch, engine=Engine.JOB))
            if target.batch
            else make_deployment(target)
        )
        template: Json = workload["spec"]["template"]
        for path, value in beyond_restricted(template):
            yield f"{path} {value:.200} (policy.root: false, so the restricted Pod Security level holds)"


def images(target: Target) -> Asked:
    """Images that the spec names."""
    spec, own = target.spec, (target.defaults.runtime_image, target.defaults.proxy_image)
    given = {"spec.runtime.image": spec.runtime.image, "spec.proxy.image": spec.proxy.image}
    if spec.model.volume and spec.model.volume.image:
        given["spec.model"] = spec.model.volume.image.reference
    yield from ((path, image) for path, image in given.items() if image and image not in own)
    for part, containers in (("containers", spec.pod.containers), ("initContainers", spec.pod.init_containers)):
        yield from ((f"spec.pod.{part}[{each['name']}].image", str(each.get("image"))) for each in containers)
    for path, name in _found(list(spec.pod.volumes), "spec.pod.volumes"):
        if path.endswith(".image.reference"):
            yield path, name


def hosts(target: Target) -> Asked:
    """Hosts under which the service is reached from outside."""
    route = target.spec.route
    if route and route.ingress:
        yield "spec.route.ingress.host", route.ingress.host
    if route and route.http_route:
        for name in route.http_route.hostnames or ("*",):
            yield "spec.route.httpRoute.hostnames", name


def annotations(target: Target) -> Asked:
    """Annotations that controllers outside act upon; nginx's, for one, copies values into its configuration."""
    ingress = target.spec.route.ingress if target.spec.route else None
    given = {"spec.route.ingress": ingress and ingress.annotations, "spec.service": target.spec.service.annotations}
    for path, each in given.items():
        for name, value in (each or {}).items():
            yield f"{path}.annotations", name if _PLAIN.fullmatch(value) else f"{name}={value}"


def secrets(target: Target) -> Asked:
    """Secrets, wherever the spec names one."""
    for path, value in _found(as_json(target.batch or target.spec), "spec"):
        *_, holder, name = ("", *path.split("."))
        # References to Secrets: secretName, ...SecretName, and `name` below secretRef or imagePullSecrets.
        if name.endswith(("secretName", "SecretName")) or (
            name == "name" and (holder.startswith(("secret", "imagePullSecrets[")) or holder.endswith("SecretRef"))
        ):
            yield path, value


def service_accounts(target: Target) -> Asked:
    """An account of the spec's own: also of the service's name, as it is then not the operator's."""
    if name := target.spec.pod.service_account_name:
        yield "spec.pod.serviceAccountName", name


def volumes(target: Target) -> Asked:
    """Kinds of volumes, and of what is projected into one: a token is a ServiceAccount's rights."""
    own = as_json(target.spec.model.volume) if target.spec.model.volume else {}
    yield from (("spec.model.volume", kind) for kind in own if kind != "mountPath")
    for each in target.spec.pod.volumes:
        sources = [source for source in listed(dig(each, "projected", "sources")) if isinstance(source, dict)]
        kinds = [kind for part in (each, *sources) for kind in part if kind not in ("name", "emptyDir")]
        yield from ((f"spec.pod.volumes[{each['name']}]", kind) for kind in kinds)


def services(target: Target) -> Asked:
    """The type of the Service."""
    if target.batch is None:
        yield "spec.service.type", str(target.spec.service.type)


def priority_classes(target: Target) -> Asked:
    """A priority before others' pods."""
    if name := target.spec.pod.priority_class_name:
        yield "spec.pod.priorityClassName", name


def runtime_classes(target: Target) -> Asked:
    """What runs the containers."""
    if name := target.spec.pod.runtime_class_name:
        yield "spec.pod.runtimeClassName", name


def pod_labels(target: Target) -> Asked:
    """Labels, by which others' Services and policies pick pods."""
    yield from (("spec.pod.labels", name) for name in target.spec.pod.labels or ())


def pod_annotations(target: Target) -> Asked:
    """Annotations, upon which webhooks and nodes act."""
    yield from (("spec.pod.annotations", name) for name in target.spec.pod.annotations or ())


RULES: Mapping[str, Callable[[Target], Asked]] = {
    "images": images,
    "hosts": hosts,
    "annotations": annotations,
    "services": services,
    "secrets": secrets,
    "serviceAccounts": service_accounts,
    "volumes": volumes,
    "priorityClasses": priority_classes,
    "runtimeClasses": runtime_classes,
    "podLabels": pod_labels,
    "podAnnotations": pod_annotations,
}
"""By the chart's value that allows what each finds."""


def _found(value: Any, path: str) -> Asked:
    """Yield the texts inside a part of a spec, with the path of each."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _found(inner, f"{path}.{name}") if name not in _FREE else ()
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _found(inner, f"{path}[{index}]")
    elif value is not None:
        yield path, str(value)
