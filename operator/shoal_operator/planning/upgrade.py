"""Which service is brought to this operator's images and pod template next, and which keep what they have.

A service whose spec has changed gets them with that. All others keep their pods until it is their turn: the oldest
first, so many at a time, in the hours that are given, and no more while one that was ready before is not ready after.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from msgspec import structs

from shoal_operator.manifests.containers import PROXY, RUNTIME
from shoal_operator.manifests.desired import Kind
from shoal_operator.manifests.labels import SPEC_HASH_ANNOTATION
from shoal_operator.manifests.target import Target
from shoal_operator.planning.changes import Changes, plan_changes
from shoal_operator.planning.conditions import find
from shoal_operator.planning.observation import Key, dig
from shoal_operator.planning.pods import template_hash
from shoal_schema.conditions import ConditionType, Reason, Status
from shoal_schema.declaring import Json

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY_MIN = 24 * 60
_WEEK_MIN = 7 * _DAY_MIN
_EPOCH_DAY = _DAYS.index("Thu")


@dataclass(frozen=True, slots=True)
class Window:
    """The hours in which upgrades may begin: of these days (none: of all), minutes of the day in UTC.

    Where the end is not after the start, it is on the next day.
    """

    days: frozenset[int] = frozenset()
    start_min: int = 0
    end_min: int = 0

    @classmethod
    def parse(cls, text: str) -> "Window":
        """Read what `shoal_schema.processes.UPGRADE_WINDOW` allows, as ``Sat,Sun 02:00-05:00 UTC``; empty is always."""
        if not text:
            return cls()
        *days, hours = text.removesuffix(" UTC").split(" ")
        start, end = hours.split("-")
        named = frozenset(_DAYS.index(day) for day in ",".join(days).split(",") if day)
        return cls(named, _minutes(start), _minutes(end))

    def opens_in_s(self, epoch_s: float) -> float:
        """Return how long it is until an upgrade may begin (s); 0 while one may."""
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
    """An upgrade that has begun, as ``status.upgrade`` keeps it.

    Args:
        since: when, as the API writes times.
        was_ready: the service was ready before.
    """

    since: str
    was_ready: bool

    @classmethod
    def stored(cls, resource: Json) -> "Upgrade | None":
        """Return what a service's status tells."""
        found = dig(resource, "status", "upgrade", default={})
        return cls(found["since"], bool(found.get("wasReady"))) if found.get("since") else None

    def as_status(self) -> Json:
        """Return ``status.upgrade``."""
        return {"since": self.since, "wasReady": self.was_ready}


@dataclass(frozen=True, slots=True)
class Standing:
    """What a service's status tells of it.

    Args:
        created: when the service was, as the API writes times, which sort.
        ready: what `Ready` says; empty before it says anything.
        reason: of that.
        pending: its pods are of other images, or of another template.
        running: an upgrade of it has begun, and it is not ready since.
        failed: nor will it be, as far as can be told.
    """

    created: str
    ready: str = ""
    reason: str = ""
    pending: bool = False
    running: bool = False
    failed: bool = False

    @classmethod
    def of(cls, resource: Json) -> "Standing":
        """Read a service."""
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


def next_services(standings: Mapping[Key, Standing], most: int) -> list[Key]:
    """Return the services whose upgrade begins now: those that are ready first, of these the oldest.

    Args:
        standings: of all services.
        most: how many may be under way at a time.
    """
    if any(standing.failed for standing in standings.values()):
        return []
    room = most - sum(standing.running for standing in standings.values())
    waiting = sorted(
        (standing.ready != Status.TRUE, standing.created, key)
        for key, standing in standings.items()
        if standing.pending and not standing.running
    )
    return [key for *_, key in waiting[: max(0, room)]]


@dataclass(slots=True)
class Upgrades:
    """All services' standings, as their statuses tell them: what is forgotten in a restart is read there again.

    Args:
        most: how many upgrades may be under way at a time; 0: none begins by itself.
        window: when they may begin.
    """

    most: int
    window: Window
    standings: dict[Key, Standing] = field(default_factory=dict)
    _unseen: set[Key] | None = None
    """Services that have not been looked at since this operator leads: each may be one that waits, and older."""
    _due: frozenset[Key] = frozenset()

    def start(self, services: Mapping[Key, Json]) -> None:
        """Begin with these services, in the place of all that was known: another operator may have led meanwhile."""
        self.standings = {key: Standing.of(resource) for key, resource in services.items()}
        self._unseen = set(services)

    def see(self, key: Key, resource: Json) -> None:
        """Take a service as it was read, or with the status that was written."""
        self.standings[key] = Standing.of(resource)

    @property
    def settled(self) -> bool:
        """Whether every service has been looked at."""
        return self._unseen is not None and not self._unseen

    def reconciled(self, key: Key) -> None:
        """Note the end of a look."""
        if self._unseen:
            self._unseen.discard(key)

    def forget(self, key: Key) -> None:
        """Forget a service that is gone, or another install's."""
        self.standings.pop(key, None)

    def begins(self, key: Key, epoch_s: float) -> bool:
        """Return whether the upgrade of a service that waits for its turn begins now; then it is under way."""
        self.standings[key] = standing = replace(self.standings[key], pending=True)
        if key not in self.due(epoch_s):
            return False
        self.standings[key] = replace(standing, running=True)
        return True

    def called(self, epoch_s: float) -> list[Key]:
        """Return the services whose turn it is now and was not before: each is to be looked at."""
        due, before = self.due(epoch_s), self._due
        self._due = frozenset(due)
        return [key for key in due if key not in before]

    def due(self, epoch_s: float) -> list[Key]:
        """Return the services whose upgrade begins now."""
        if not self.settled or self.window.opens_in_s(epoch_s):
            return []
        return next_services(self.standings, self.most)

    def readiness(self) -> list[tuple[str, str]]:
        """Return of each service what `Ready` says, and its reason; nothing of one of which it says nothing yet."""
        return [(each.ready, each.reason) for each in self.standings.values() if each.ready]

    def counts(self) -> dict[str, int]:
        """Return how many services wait, are on their way, and have failed to get there."""
        known = self.standings.values()
        return {
            "pending": sum(each.pending and not each.running for each in known),
            "running": sum(each.running and not each.failed for each in known),
            "failed": sum(each.failed for each in known),
        }


def is_of_same_spec(body: Json, live: Json, resource: Json) -> bool:
    """Return whether a Deployment was made of the spec that ``body`` is made of, replicas and scaling aside.

    One of an older release does not tell; then it was if the status is about this very generation.
    """
    told = dig(live, "metadata", "annotations", SPEC_HASH_ANNOTATION)
    if told is None:
        return bool(dig(resource, "status", "observedGeneration") == dig(resource, "metadata", "generation"))
    return bool(told == dig(body, "metadata", "annotations", SPEC_HASH_ANNOTATION))


def is_pending(body: Json, live: Json, resource: Json) -> bool:
    """Return whether other pods would be made of a service, and not since its user asked for them."""
    return _template_of(body) != _template_of(live) and is_of_same_spec(body, live, resource)


def _template_of(deployment: Json) -> str | None:
    return template_hash(dig(deployment, "spec", "template", default={}))


def with_images(target: Target, images: Mapping[str, str]) -> Target:
    """Return the same service with these images where the operator's own would stand."""
    named = {f"{name}_image": image for name, image in images.items()}
    return replace(target, defaults=structs.replace(target.defaults, **named))


def images_of(target: Target, deployment: Json) -> dict[str, str]:
    """Return the images of a Deployment's containers that the spec does not name."""
    containers: list[Json] = dig(deployment, "spec", "template", "spec", "containers", default=[])
    found = {each["name"]: each["image"] for each in containers}
    named = {PROXY: target.spec.proxy.image, RUNTIME: target.spec.runtime.image}
    return {name: found[name] for name, image in named.items() if not image and name in found}


def keep_pods(target: Target, children: Mapping[Kind, Json], deployment: Json, kept: Mapping[str, str]) -> Changes:
    """Return what to write of a service whose pods stay as they are.

    Where they differ by their images alone, what somebody changed in their Deployment is put right; of a template of
    another release nobody knows any more what it was.

    Args:
        target: the service, with this operator's images.
        children: what there is.
        deployment: its Deployment.
        kept: the images that it has.
    """
    changes = plan_changes(with_images(target, kept), children)
    body = changes.deployment
    if body is None or _template_of(body) == _template_of(deployment):
        return changes
    told = body["metadata"]["annotations"][SPEC_HASH_ANNOTATION]
    return changes.keeping_pods(deployment, target.replicas, {SPEC_HASH_ANNOTATION: told})
