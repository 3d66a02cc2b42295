"""An in-memory cluster for the reconciler and the Lease, and a manual clock."""

import asyncio
import copy
import datetime
import itertools
import selectors
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shoal_operator.children.observation import Key, Observation, key_of
from shoal_operator.errors import ApiError
from shoal_operator.loop.records import Records
from shoal_operator.manifests.desired import ENDPOINT_SLICE, Child, read_children
from shoal_operator.models.resolution import ModelResolution
from shoal_operator.reconciliation.reconciler import Reconciler
from shoal_operator.rollout.plans import Assignment, Found
from shoal_operator.rollout.stays import StayRequest
from shoal_operator.rollout.upgrading import Upgrading
from shoal_operator.scaling.reading import Reading
from shoal_operator.scaling.service_cache import Replica
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces.load import GraphState
from shoal_schema.process.settings.operator import OperatorProcess
from shoal_schema.resource.locations import moves
from shoal_schema.resource.service import InferenceServiceSpec
from tests.operator.samples import DEFAULTS

T = TypeVar("T")


class FakeCluster:
    """Stores objects as an API server does, counts writes, and fails on request.

    Args:
        refuse: called with each write (verb, what) before it is done; raises what it returns.
        mutate: changes each child in place as it is written, as a mutating admission policy does.
    """

    def __init__(
        self,
        refuse: Callable[[str, str], Exception | None] | None = None,
        mutate: Callable[[Child, Json], None] | None = None,
    ) -> None:
        self.services: dict[Key, Json] = {}
        self.children: dict[tuple[Key, Child], Json] = {}
        self.pods: dict[Key, list[Json]] = {}
        self.candidate_pods: dict[Key, list[Json]] = {}
        self.slices: dict[Key, list[Json]] = {}
        self.events: list[Json] = []
        self.writes: list[tuple[str, str]] = []
        self.scales: list[tuple[Key, int]] = []
        self.costs: dict[str, int] = {}
        self.lease: Json | None = None
        self.pruned: frozenset[str] = frozenset()
        """What the definition does not know of a status."""
        self._refuse = refuse or (lambda verb, what: None)
        self._mutate = mutate or (lambda kind, child: None)
        self._counter = itertools.count(1)

    async def read_service(self, key: Key) -> Json | None:
        return copy.deepcopy(self.services.get(key))

    async def observe(self, key: Key, resource: Json) -> Observation:
        own = Key(key.namespace, key.name)  # services and graphs share the names of children
        kinds = (*read_children(resource), ENDPOINT_SLICE)
        found = {kind: self.children[own, kind] for kind in kinds if (own, kind) in self.children}
        slices = tuple(self.slices[key]) if key in self.slices else None
        pods, candidates = (tuple(copy.deepcopy(each.get(key, []))) for each in (self.pods, self.candidate_pods))
        return Observation(resource, copy.deepcopy(found), pods, slices, candidates)

    async def apply(self, kind: Child, body: Json, uid: str | None) -> Json:
        key = Key(body["metadata"]["namespace"], body["metadata"]["name"].removesuffix(kind.suffix))
        self._write("apply", kind.kind)
        live = self.children.get((key, kind))
        if (live["metadata"]["uid"] if live else None) != uid:
            raise ApiError(409, "the object is another one")
        stored = merged(live or {}, body)
        stored["metadata"] |= {"uid": uid or f"uid-{next(self._counter)}", "generation": 1}
        self._mutate(kind, stored)
        self.children[key, kind] = stored
        return copy.deepcopy(stored)

    async def merge(self, kind: Child, stored: Json, patch: Json) -> Json:
        key = Key(stored["metadata"]["namespace"], stored["metadata"]["name"].removesuffix(kind.suffix))
        self._write("merge", kind.kind)
        self.children[key, kind] = without_nulls(merged(self.children[key, kind], patch))
        self._mutate(kind, self.children[key, kind])
        return copy.deepcopy(self.children[key, kind])

    async def annotate(self, kind: Child, key: Key, uid: str, annotations: Mapping[str, str | None]) -> None:
        self._write("annotate", kind.kind)
        metadata = self.children[key, kind]["metadata"]
        if metadata["uid"] != uid:
            raise ApiError(409, "the object is another one")
        found = {**metadata["annotations"], **annotations}
        metadata["annotations"] = {name: value for name, value in found.items() if value is not None}

    async def set_deletion_cost(self, key: Key, uid: str, cost: int) -> None:
        self._write("annotate", "Pod")
        self.costs[uid] = cost

    async def delete(self, kind: Child, key: Key, uid: str) -> None:
        self._write("delete", kind.kind)
        own = Key(key.namespace, key.name)
        if self.children[own, kind]["metadata"]["uid"] == uid:
            del self.children[own, kind]

    async def apply_status(self, resource: Json, status: Json) -> Json:
        self._write("status", resource["metadata"]["name"])
        key = key_of(resource)
        self.services[key]["status"] = copy.deepcopy({each: status[each] for each in status if each not in self.pruned})
        return copy.deepcopy(self.services[key])

    async def post_event(self, event: Json) -> None:
        self._write("event", event["reason"])
        self.events.append(event)

    async def scale(self, key: Key, replicas: int, *, was: int | None = None) -> Json | None:
        stored = self.services.get(key)
        if stored is not None and was not in (None, stored["spec"].get("replicas", 1)):
            return None
        self._write("scale", str(key))
        self.scales.append((key, replicas))
        return copy.deepcopy(stored) or {"metadata": {"namespace": key.namespace, "name": key.name, "uid": "uid"}}

    async def list_services(self, namespaces: Sequence[str]) -> list[Json]:
        return copy.deepcopy(list(self.services.values()))

    async def list_pods(self, namespace: str, selector: str) -> tuple[Json, ...]:
        return ()

    async def observe_batch(self, key: Key, kind: Child) -> tuple[Json | None, tuple[Json, ...]]:
        return copy.deepcopy(self.children.get((Key(key.namespace, key.name), kind))), tuple(self.pods.get(key, []))

    async def read_kinds(self, api_version: str) -> list[Json]:
        return []

    async def write_heartbeat(self, key: Key, wall_time: str) -> None:
        self._write("heartbeat", str(key))

    async def read_lease(self, key: Key) -> Json | None:
        self._write("read", str(key))
        return copy.deepcopy(self.lease)

    async def write_lease(self, key: Key, body: Json) -> Json:
        self._write("lease", str(key))
        stored = self.lease["metadata"]["resourceVersion"] if self.lease else None
        if body["metadata"].get("resourceVersion") != stored:
            raise ApiError(409, "the Lease has changed")
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(next(self._counter))
        return copy.deepcopy(self.lease)

    def _write(self, verb: str, what: str) -> None:
        if error := self._refuse(verb, what):
            raise error
        self.writes.append((verb, what))


def merged(live: Any, ours: Any) -> Any:
    """Apply our fields over stored ones; lists of named elements are merged by name."""
    if isinstance(live, dict) and isinstance(ours, dict):
        return {**live, **{key: merged(live.get(key), value) for key, value in ours.items()}}
    return copy.deepcopy(ours)


def without_nulls(value: Any) -> Any:
    """Return the value without the keys that a merge patch has set to null."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return value


class FakeProxies:
    """Pods with given readings; others cannot be read."""

    def __init__(self) -> None:
        self.readings: dict[str, Reading] = {}
        self.asked: list[str] = []

    async def read(self, replicas: Sequence[Replica]) -> list[Reading]:
        self.asked += [replica.uid for replica in replicas]
        return [self.readings.get(replica.uid, Reading()) for replica in replicas]


@dataclass
class NoNames:
    """Names of which nothing is known but what is said here: no registry is asked."""

    known: ModelResolution | None = None

    def resolution(self, key: Key, resource: Json, uri: str | None, *, follows: bool) -> ModelResolution | None:
        return self.known if uri and moves(uri) else None

    def registry(self, uri: str) -> Mapping[str, str]:
        return {}


class NoActivators:
    """No activator: no service scales to zero."""

    def host(self, key: Key, spec: InferenceServiceSpec, observation: Observation) -> None: ...

    def observe(self, key: Key, observation: Observation) -> None: ...

    async def process_readings(self, key: Key, replicas: Sequence[Replica], readings: Sequence[Reading]) -> bool:
        return False


@dataclass
class SaidOfGraphs:
    """What the pods of graphs say, by uid."""

    said: dict[str, GraphState] = field(default_factory=dict)

    def latest(self, key: Key, replicas: Sequence[Replica]) -> Mapping[str, GraphState]:
        return {replica.uid: self.said[replica.uid] for replica in replicas if replica.uid in self.said}


@dataclass
class SentStays:
    """Stays sent to stopping pods, by service and uid (s)."""

    sent: dict[Key, dict[str, int]] = field(default_factory=dict)

    def send(self, key: Key, stays: Iterable[StayRequest]) -> None:
        self.sent[key] = {each.replica.uid: each.seconds for each in stays}


@dataclass
class FoundOfCandidates:
    """What is found of candidates, and the plans that proxies get."""

    known: Found = field(default_factory=Found)
    assigned: dict[Key, Assignment | None] = field(default_factory=dict)

    def found(self, key: Key, revision: str, stable: frozenset[str]) -> Found:
        return self.known

    def follow(self, key: Key, assignment: Assignment | None) -> None:
        self.assigned[key] = assignment


def new_year() -> datetime.datetime:
    """Return the time at which all happens that has no time of its own."""
    return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def upgrading(
    cluster: "FakeCluster",
    settings: OperatorProcess = OperatorProcess(),  # noqa: B008 (it cannot be changed)
    mark: Callable[[Key, float], object] = lambda key, delay_s: None,
    utc_now: Callable[[], datetime.datetime] = new_year,
    records: Records | None = None,
) -> Upgrading:
    """Return the real thing, which knows of no other service."""
    made = Upgrading(cluster, records or Records(), settings, mark, utc_now)
    made.load([])
    return made


def reconciler_of(
    cluster: "FakeCluster",
    *,
    defaults: OperatorProcess = DEFAULTS,
    utc_now: Callable[[], datetime.datetime] = new_year,
    records: Records | None = None,
    **seams: Any,
) -> Reconciler:
    """Return the reconciler of a cluster; where no seam is given, it knows nothing."""
    records = Records() if records is None else records
    knowing: dict[str, Any] = {
        "records": records,
        "clock": lambda: 0.0,
        "names": NoNames(),
        "scale_to_zero": NoActivators(),
        "graphs": SaidOfGraphs(),
        "stays": SentStays(),
        "judging": FoundOfCandidates(),
    }
    if "upgrading" not in seams:
        knowing["upgrading"] = upgrading(cluster, defaults, records=records)
    return Reconciler(cluster, defaults, utc_now=utc_now, **(knowing | seams))


class _NoWaiting(selectors.SelectSelector):
    """A selector that, instead of waiting, moves the loop's clock."""

    loop: "VirtualTimeLoop"

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is not None and timeout > 0:
            self.loop.now_s += timeout
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer: hours pass in milliseconds."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        selector = _NoWaiting()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run on virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def clock() -> float:
    """Return the running loop's own time."""
    return asyncio.get_running_loop().time()
