"""Handlers of kopf's watches: each event schedules a reconciliation.

They are kopf's low-level handlers, which need no finalizers and write no annotations. An event's content is dropped,
because the reconciliation reads the cluster again.
"""

import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import kopf

from shoal_operator.children.observation import Key, controller_of, replica_set_owner
from shoal_operator.loop.echoes import Echoes
from shoal_operator.loop.workqueue import Priority
from shoal_operator.manifests.desired import (
    CANDIDATE_SERVICE,
    DEPLOYMENT,
    ENDPOINT_SLICE,
    PEERS,
    READ_CHILDREN,
    Kind,
    resource_names,
)
from shoal_operator.manifests.job import KINDS
from shoal_operator.manifests.labels import BATCH_LABEL, GRAPH_LABEL, SERVICE_LABEL, WATCH_SELECTOR
from shoal_schema.resource import BATCH_PLURAL, GRAPH_KIND, GRAPH_PLURAL, GROUP, PLURAL, VERSION

# Events of a rollout come in bursts; one reconciliation shortly afterwards covers them all.
_SETTLE_S = 0.05
_SERVER_TIMEOUT_S = 300
_MARGIN_S = 15
_LOGIN_AGAIN_S = 5.0


class RetryDelays(Iterable[float]):
    """Endless delays between kopf's retries, so that watches survive outages."""

    def __iter__(self) -> Iterator[float]:
        """Yield 1, 2, 4 and 8 seconds, then 10 forever."""
        return itertools.chain((1.0, 2.0, 4.0, 8.0), itertools.repeat(10.0))


@dataclass(slots=True)
class EventHandlers:
    """Handlers that map watch events to keys of the work queue.

    Args:
        mark: schedules a key's reconciliation after a delay (s), with a priority.
        echoes: recognizes events of the operator's own writes.
        on_heartbeat: called at each event of the heartbeat Lease.
    """

    mark: Callable[[Key, float, Priority], None]
    on_heartbeat: Callable[[], None]
    echoes: Echoes = field(default_factory=Echoes)

    async def on_service(self, event: Any, **_: Any) -> None:
        """Handle an event of an ``InferenceService``."""
        self._mark([_key(event, PLURAL)], event, 0.0, _priority(event))

    async def on_graph(self, event: Any, **_: Any) -> None:
        """Handle an event of an ``InferenceGraph``."""
        self._mark([_key(event, GRAPH_PLURAL)], event, 0.0, _priority(event))

    async def on_batch(self, event: Any, **_: Any) -> None:
        """Handle an event of a ``BatchInference``, or of its job, which has the same name."""
        self._mark([_key(event, BATCH_PLURAL)], event, 0.0, Priority.CHANGED)

    async def on_child(self, event: Any, **_: Any) -> None:
        """Handle an event of a service's child.

        The child's name identifies the service, because any client may change labels.
        """
        body = event["object"]
        metadata = body["metadata"]
        # The headless Service, or another service whose name collides with it. Items of a list have no kind.
        names = resource_names(body.get("kind", PEERS.kind), metadata["name"]) or [metadata["name"]]
        # Services and graphs share the names of children: one may wait for a name that the other releases.
        plurals = (PLURAL, GRAPH_PLURAL) if event["type"] == "DELETED" else (_plural(body),)
        self._mark([Key(metadata["namespace"], name, each) for each in plurals for name in names], event, _SETTLE_S)

    async def on_endpoints(self, event: Any, **_: Any) -> None:
        """Handle an event of an EndpointSlice of a service's Service."""
        body = event["object"]
        # The headless Service has the same endpoints: one of the two is enough. A candidate has none of the service's.
        name = body["metadata"].get("labels", {}).get(SERVICE_LABEL, "")
        headless = (PEERS.named(name), CANDIDATE_SERVICE.named(name))
        if (owner := controller_of(body)) and owner["name"] not in headless:
            self._mark([Key(body["metadata"]["namespace"], owner["name"], _plural(body))], event, _SETTLE_S)

    async def on_pod(self, event: Any, **_: Any) -> None:
        """Handle an event of a pod."""
        pod = event["object"]
        metadata = pod["metadata"]
        labels = metadata.get("labels", {})
        if batch := labels.get(BATCH_LABEL):
            self._mark([Key(metadata["namespace"], batch, BATCH_PLURAL)], event, _SETTLE_S)
        # A pod that its ReplicaSet released, since its labels changed, keeps the service's name in a label.
        elif name := replica_set_owner(pod) or labels.get(SERVICE_LABEL):
            names = resource_names(DEPLOYMENT.kind, name)
            self._mark([Key(metadata["namespace"], each, _plural(pod)) for each in names], event, _SETTLE_S)

    async def on_lease(self, **_: Any) -> None:
        """Handle an event of the heartbeat Lease, which shows that watches work."""
        self.on_heartbeat()

    def _mark(self, keys: Iterable[Key], event: Any, delay_s: float, priority: Priority = Priority.REST) -> None:
        if event["type"] == "DELETED":
            self.echoes.forget(event["object"])
        # Events of the initial list (type None) always count.
        elif event["type"] is not None and self.echoes.is_echo(event["object"]):
            return
        for key in keys:
            self.mark(key, delay_s, priority)


def make_registry(
    event_handlers: EventHandlers,
    login: Callable[[], Awaitable[kopf.ConnectionInfo]],
    check_health: Callable[[], str | None],
) -> kopf.OperatorRegistry:
    """Return kopf's registry with the operator's handlers.

    Args:
        event_handlers: handles the events.
        login: returns the API server's address and credentials.
        check_health: returns the fault that fails the liveness probe, or None.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry, backoff=_LOGIN_AGAIN_S)
    async def _login(**_: Any) -> kopf.ConnectionInfo:
        return await login()

    @kopf.on.probe(registry=registry, id="watches", errors=kopf.ErrorsMode.PERMANENT)
    async def _probe(**_: Any) -> str:
        if wrong := check_health():
            raise kopf.PermanentError(wrong)
        return "ok"

    kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)(event_handlers.on_service)
    kopf.on.event(GROUP, VERSION, GRAPH_PLURAL, registry=registry)(event_handlers.on_graph)
    for names in ((GROUP, VERSION, BATCH_PLURAL), *map(_names, KINDS.values())):
        kopf.on.event(*names, registry=registry)(event_handlers.on_batch)
    kopf.on.event("v1", "pods", registry=registry)(event_handlers.on_pod)
    kopf.on.event("coordination.k8s.io", "v1", "leases", registry=registry)(event_handlers.on_lease)
    kopf.on.event(*_names(ENDPOINT_SLICE), registry=registry)(event_handlers.on_endpoints)
    for names in dict.fromkeys(map(_names, READ_CHILDREN)):
        kopf.on.event(*names, registry=registry)(event_handlers.on_child)
    return registry


def make_settings(heartbeat: str, *, namespaced: bool) -> kopf.OperatorSettings:
    """Return kopf's settings, with filters and timeouts of watches.

    Args:
        heartbeat: name of the Lease whose renewals show that watches work.
        namespaced: the operator has no permission to read cluster-wide.
    """
    settings = kopf.OperatorSettings()
    # The reconciler posts its own Events, on transitions only.
    settings.posting.enabled = False
    settings.scanning.disabled = namespaced
    settings.networking.error_backoffs = RetryDelays()
    settings.process.ultimate_exiting_timeout = 20
    # The client's timeouts end a watch whose connection is dead without an error.
    settings.watching.server_timeout = _SERVER_TIMEOUT_S
    settings.watching.client_timeout = _SERVER_TIMEOUT_S + _MARGIN_S
    settings.watching.connect_timeout = _MARGIN_S
    settings.watching.chunk_size = 500
    settings.queueing.idle_timeout = 0.5
    for group, plural in (
        ("", "pods"),
        *(_names(kind)[::2] for kind in (ENDPOINT_SLICE, *KINDS.values(), *READ_CHILDREN)),
    ):
        settings.watching.label_selectors[group, plural] = WATCH_SELECTOR
    settings.watching.field_selectors["coordination.k8s.io", "leases"] = f"metadata.name={heartbeat}"
    return settings


def _names(kind: Kind) -> tuple[str, str, str]:
    """Return group, version and plural of a kind."""
    group, _, version = kind.api_version.rpartition("/")
    return group, version, kind.plural


def _priority(event: Any) -> Priority:
    """Return a high priority for a new or changed spec, and for a deletion."""
    metadata, status = event["object"]["metadata"], event["object"].get("status") or {}
    settled = status.get("observedGeneration") == metadata.get("generation") and "deletionTimestamp" not in metadata
    return Priority.REST if settled and event["type"] != "DELETED" else Priority.CHANGED


def _key(event: Any, plural: str) -> Key:
    metadata = event["object"]["metadata"]
    return Key(metadata["namespace"], metadata["name"], plural)


def _plural(body: Any) -> str:
    """Return the plural of the kind that owns a child.

    It is the plural of ``InferenceGraph`` for children of graphs, and of ``InferenceService`` otherwise.
    """
    owner = controller_of(body)
    of_graph = GRAPH_LABEL in body["metadata"].get("labels", {}) or (owner and owner.get("kind") == GRAPH_KIND)
    return GRAPH_PLURAL if of_graph else PLURAL
