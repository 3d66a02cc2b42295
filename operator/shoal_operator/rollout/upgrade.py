"""Order of upgrades to this operator's images and pod template.

A service whose spec changes is upgraded with that change. Other services keep their pods and are upgraded oldest first,
with limited concurrency, within a weekly window. Upgrades pause while a service that was ready before its upgrade is
not ready after it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from msgspec import structs

from shoal_operator.children.changes import Changes, plan_changes
from shoal_operator.children.conditions import find
from shoal_operator.children.observation import Key, dig
from shoal_operator.children.pods import template_hash
from shoal_operator.loop.records import Records
from shoal_operator.manifests.containers import PROXY, RUNTIME
from shoal_operator.manifests.desired import Child
from shoal_operator.manifests.labels import SPEC_HASH_ANNOTATION
from shoal_operator.manifests.target import Target
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import ConditionType, Reason, Status

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY_MIN = 24 * 60
_WEEK_MIN = 7 * _DAY_MIN
_EPOCH_DAY = _DAYS.index("Thu")


@dataclass(frozen=True, slots=True)
class Window:
    """The weekly window in which upgrades may start, in UTC."""

    days: frozenset[int] = frozenset()
    """Weekdays on which it opens, from 0 for Monday; empty: every day."""
    start_min: int = 0
    """Minute of the day."""
    end_min: int = 0
    """Minute of the day; of the next day, unless it is after the start."""

    @classmethod
    def parse(cls, text: str) -> "Window":
        """Parse a window such as ``Sat,Sun 02:00-05:00 UTC``; empty: always open."""
        if not text:
            return cls()
        *days, hours = text.removesuffix(" UTC").split(" ")
        start, end = hours.split("-")
        named = frozenset(_DAYS.index(day) for day in ",".join(days).split(",") if day)
        return cls(named, _minutes(start), _minutes(end))

    def opens_in_s(self, epoch_s: float) -> float:
        """Return the time until the window opens (s); 0 while it is open."""
        # Minutes since Monday 00:00 UTC; the epoch was a Thursday.
        now_min = (epoch_s / 60 + _EPOCH_DAY * _DAY_MIN) % _WEEK_MIN
        length_min = (self.end_min - self.start_min) % _DAY_MIN or _DAY_MIN
        days = self.days or range(len(_DAYS))
        since_min = [(now_min - day * _DAY_MIN - self.start_min) % _WEEK_MIN for day in days]
        if min(since_min) < length_min:
            return 0.0
        return (_WEEK_MIN - max(since_min)) * 60


def _minutes(text: str) -> int:
    hours, minutes = text.split(":")
    return 60 * int(hours) + int(minutes)


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


@dataclass(frozen=True, slots=True)
class UpgradeState:
    """Upgrade state of a service, as the service's status reports it."""

    created: str
    """Creation time in the API's format, which sorts."""
    ready: str = ""
    """Status of the condition Ready; empty without one."""
    reason: str = ""
    """Reason of the condition Ready."""
    pending: bool = False
    """Its pods have other images or another template."""
    running: bool = False
    """The upgrade of the service has started, and it has not been ready since."""
    failed: bool = False
    """Its upgrade has failed."""

    @classmethod
    def of(cls, resource: Json) -> "UpgradeState":
        """Return the upgrade state in a service's status."""
        conditions: list[Json] = dig(resource, "status", "conditions", default=[])
        ready = find(conditions, ConditionType.READY) or {}
        upgraded = (find(conditions, ConditionType.UPGRADED) or {}).get("reason")
        return cls(
            created=dig(resource, "metadata", "creationTimestamp", default=""),
            ready=ready.get("status", ""),
            reason=ready.get("reason", ""),
            pending=upgraded == Reason.UPGRADE_PENDING,
            running=Upgrade.stored(resource) is not None,
            failed=upgraded == Reason.UPGRADE_FAILED,
        )


def next_services(states: Mapping[Key, UpgradeState], most: int) -> list[Key]:
    """Return the services whose upgrade may start, ready and old ones first.

    Args:
        states: upgrade states of all services.
        most: maximum of concurrent upgrades.
    """
    # A failed upgrade stops all others.
    if any(state.failed for state in states.values()):
        return []
    # Ready services first: an upgrade may help one that is not ready, but must not block the others.
    room = most - sum(state.running for state in states.values())
    waiting = sorted(
        (state.ready != Status.TRUE, state.created, key)
        for key, state in states.items()
        if state.pending and not state.running
    )
    return [key for *_, key in waiting[: max(0, room)]]


@dataclass(frozen=True, slots=True)
class Unreconciled:
    """A service not reconciled since this operator leads; it may have an earlier turn."""


@dataclass(slots=True)
class Upgrades:
    """Upgrades of all services, as the statuses of the services report them.

    Args:
        most: maximum of concurrent upgrades; 0: none starts without a change of the spec.
        window: the weekly window in which upgrades may start.
        records: states of all services.
    """

    most: int
    window: Window
    records: Records = field(default_factory=Records)
    _started: bool = False
    _due: frozenset[Key] = frozenset()

    def start(self, services: Mapping[Key, Json]) -> None:
        """Load the upgrade states of all services, when leadership begins."""
        for kind in (UpgradeState, Unreconciled):
            self.records.remove_all(kind)
        for key, resource in services.items():
            self.observe(key, resource)
            self.records.put(key, Unreconciled())
        self._started = True

    def observe(self, key: Key, resource: Json) -> None:
        """Record the upgrade state in a service's status."""
        self.records.put(key, UpgradeState.of(resource))

    @property
    def states(self) -> dict[Key, UpgradeState]:
        """The states of all services."""
        return dict(self.records.of(UpgradeState))

    @property
    def settled(self) -> bool:
        """Whether every service has been reconciled since this operator leads."""
        return self._started and next(self.records.of(Unreconciled), None) is None

    def reconciled(self, key: Key) -> None:
        """Record that a service has been reconciled."""
        self.records.remove(key, Unreconciled)

    def try_start(self, key: Key, epoch_s: float) -> bool:
        """Return whether a pending service's upgrade starts now, and record the start."""
        state = replace(self.states[key], pending=True)
        self.records.put(key, state)
        if key not in self.due(epoch_s):
            return False
        # Occupies a slot at once, before the status is written.
        self.records.put(key, replace(state, running=True))
        return True

    def newly_due(self, epoch_s: float) -> list[Key]:
        """Return the services whose upgrade may start now, and could not at the last call."""
        due, before = self.due(epoch_s), self._due
        self._due = frozenset(due)
        return [key for key in due if key not in before]

    def due(self, epoch_s: float) -> list[Key]:
        """Return the services whose upgrade may start now."""
        if not self.settled or self.window.opens_in_s(epoch_s):
            return []
        return next_services(self.states, self.most)

    def readiness(self) -> list[tuple[str, str]]:
        """Return status and reason of the condition Ready of each service."""
        return [(each.ready, each.reason) for each in self.states.values() if each.ready]

    def counts(self) -> dict[str, int]:
        """Return the numbers of pending, running and failed upgrades."""
        known = self.states.values()
        return {
            "pending": sum(each.pending and not each.running for each in known),
            "running": sum(each.running and not each.failed for each in known),
            "failed": sum(each.failed for each in known),
        }


def is_of_same_spec(body: Json, live: Json, resource: Json) -> bool:
    """Return whether two Deployments were derived from the same spec, apart from replicas and scaling.

    An older release wrote no hash; then the spec is the same if the status is about its current generation.
    """
    live_hash = dig(live, "metadata", "annotations", SPEC_HASH_ANNOTATION)
    if live_hash is None:
        return bool(dig(resource, "status", "observedGeneration") == dig(resource, "metadata", "generation"))
    return bool(live_hash == dig(body, "metadata", "annotations", SPEC_HASH_ANNOTATION))


def is_pending(body: Json, live: Json, resource: Json) -> bool:
    """Return whether ``body`` would replace pods without a change of the spec."""
    return _template_of(body) != _template_of(live) and is_of_same_spec(body, live, resource)


def _template_of(deployment: Json) -> str | None:
    return template_hash(dig(deployment, "spec", "template", default={}))


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
    """Return the writes for a service whose pods stay unchanged.

    If only the images differ, changes of the Deployment by other writers are corrected. The template of another release
    is unknown, so only the replicas of its Deployment are written.

    Args:
        target: the service, with this operator's images.
        children: the observed objects.
        deployment: Deployment of the service.
        kept: current images of the Deployment.
    """
    changes = plan_changes(with_images(target, kept), children)
    body = changes.deployment
    if body is None or _template_of(body) == _template_of(deployment):
        return changes
    spec_hash = body["metadata"]["annotations"][SPEC_HASH_ANNOTATION]
    return changes.keeping_pods(deployment, target.replicas, {SPEC_HASH_ANNOTATION: spec_hash})
