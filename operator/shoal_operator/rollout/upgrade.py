"""Order of upgrades to this operator's images and pod template.

A service whose spec changes is upgraded with that change. Other services keep their pods and are upgraded oldest first,
with limited concurrency. Upgrades pause while a service that was ready before its upgrade is not ready after it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from msgspec import structs

from shoal_operator.children.changes import Changes, plan_changes
from shoal_operator.children.conditions import find
from shoal_operator.children.observation import Key, dig
from shoal_operator.children.pods import deployed_hash
from shoal_operator.manifests.containers import PROXY, RUNTIME
from shoal_operator.manifests.deployment import spec_annotations
from shoal_operator.manifests.desired import Child
from shoal_operator.manifests.labels import SPEC_HASH_ANNOTATION
from shoal_operator.manifests.target import Target
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import ConditionType, Reason, Status


@dataclass(frozen=True, slots=True)
class Upgrade:
    """An upgrade in progress, as stored in ``status.upgrade``."""

    since: str
    """Start time in the API's format."""
    was_ready: bool
    """The service was ready before."""

    @classmethod
    def stored(cls, resource: Json) -> "Upgrade | None":
        """Return the upgrade in a service's status, or None."""
        found = dig(resource, "status", "upgrade", default={})
        return cls(found["since"], bool(found.get("wasReady"))) if found.get("since") else None

    def as_status(self) -> Json:
        """Return ``status.upgrade``."""
        return {"since": self.since, "wasReady": self.was_ready}


class Phase(StrEnum):
    """Phase of a service that does not have this operator's images and template."""

    PENDING = "pending"
    RUNNING = "running"
    """The upgrade has started, and the service has not been ready since."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class UpgradeState:
    """Upgrade state of a service, as the service's status reports it."""

    created: str
    """Creation time in the API's format, which sorts."""
    ready: str = ""
    """Status of the condition Ready; empty without one."""
    reason: str = ""
    """Reason of the condition Ready."""
    phase: Phase | None = None

    @classmethod
    def of(cls, resource: Json) -> "UpgradeState":
        """Return the upgrade state in a service's status."""
        conditions: list[Json] = dig(resource, "status", "conditions", default=[])
        ready = find(conditions, ConditionType.READY) or {}
        reason = (find(conditions, ConditionType.UPGRADED) or {}).get("reason")
        phase = Phase.PENDING if reason == Reason.UPGRADE_PENDING else None
        if Upgrade.stored(resource):
            phase = Phase.RUNNING
        if reason == Reason.UPGRADE_FAILED:
            phase = Phase.FAILED
        created = dig(resource, "metadata", "creationTimestamp", default="")
        return cls(created, ready.get("status", ""), ready.get("reason", ""), phase)


def next_services(states: Mapping[Key, UpgradeState], most: int) -> list[Key]:
    """Return the services whose upgrade may start, ready and old ones first.

    Args:
        states: upgrade states of all services.
        most: maximum of concurrent upgrades.
    """
    phases = [state.phase for state in states.values()]
    # A failed upgrade stops all others.
    if Phase.FAILED in phases:
        return []
    # Ready services first: an upgrade may help one that is not ready, but must not block the others.
    pending = [
        (each.ready != Status.TRUE, each.created, key) for key, each in states.items() if each.phase is Phase.PENDING
    ]
    return [key for *_, key in sorted(pending)[: max(0, most - phases.count(Phase.RUNNING))]]


def is_pending(body: Json, live: Json, resource: Json) -> bool:
    """Return whether a Deployment's write would replace pods without a change of the spec.

    Replicas and scaling are no change of the spec.
    """
    if deployed_hash(body) == deployed_hash(live):
        return False
    return has_spec(live, [dig(body, "metadata", "annotations", SPEC_HASH_ANNOTATION)], resource)


def has_spec(live: Json, hashes: Sequence[str], resource: Json) -> bool:
    """Return whether a Deployment was written for a spec with one of these hashes."""
    spec_hash = dig(live, "metadata", "annotations", SPEC_HASH_ANNOTATION)
    # An older release wrote no hash; then the spec is the same if the status is about its current generation.
    if spec_hash is None:
        return bool(dig(resource, "status", "observedGeneration") == dig(resource, "metadata", "generation"))
    return spec_hash in hashes


def with_images(target: Target, images: Mapping[str, str]) -> Target:
    """Return the target with these images instead of the operator's defaults."""
    named = {f"{name}_image": image for name, image in images.items()}
    return replace(target, defaults=structs.replace(target.defaults, **named))


def images_of(target: Target, deployment: Json) -> dict[str, str]:
    """Return a Deployment's images that come from the operator's defaults."""
    containers: list[Json] = dig(deployment, "spec", "template", "spec", "containers", default=[])
    found = {each["name"]: each["image"] for each in containers}
    named = {PROXY: target.spec.proxy.image, RUNTIME: target.spec.runtime.image}
    return {name: found[name] for name, image in named.items() if not image and name in found}


def keep_pods(target: Target, children: Mapping[Child, Json], deployment: Json, kept: Mapping[str, str]) -> Changes:
    """Return the writes for a service whose pods must not be replaced.

    If this operator's pod template differs from the Deployment's only in its images, the Deployment is written with its
    current images, which corrects changes by other writers. If more differs, another release wrote the template: then
    only the Deployment's replicas and annotations about the spec are written.

    Args:
        target: the service, with this operator's images.
        children: the observed objects.
        deployment: Deployment of the service.
        kept: current images of the Deployment.
    """
    changes = plan_changes(with_images(target, kept), children)
    body = changes.deployment
    if body is None or deployed_hash(body) == deployed_hash(deployment):
        return changes
    return changes.keeping_pods(deployment, target.replicas, spec_annotations(target))
