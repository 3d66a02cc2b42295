"""Events: each only marks its service."""

import asyncio
import itertools

import kopf
import pytest

from shoal_operator.children.observation import Key
from shoal_operator.loop.watches import EventHandlers, make_registry, make_settings
from shoal_operator.loop.workqueue import Priority
from shoal_operator.manifests.desired import PEERS, READ_CHILDREN, SERVICE, desired_objects
from shoal_schema.fields.declaring import Json
from shoal_schema.resource import GRAPH_PLURAL
from tests.operator.samples import EVERYTHING, service, target
from tests.operator.worlds import pod

CAT = Key("default", "cat")


class Listener:
    def __init__(self) -> None:
        self.marks, self.priorities, self.heard = list[Key](), list[Priority](), 0
        self.event_handlers = EventHandlers(self.mark, self.record)

    def mark(self, key: Key, _: float, priority: Priority) -> None:
        self.marks.append(key)
        self.priorities.append(priority)

    def record(self) -> None:
        self.heard += 1


def event(body: Json, kind: str | None = "MODIFIED") -> Json:
    return {"type": kind, "object": body}


OWNERS = {"ReplicaSet": "cat-5d9c7b4f", "Service": "cat", "InferenceGraph": "cat"}


def test_a_service_is_marked_at_every_event() -> None:
    listener = Listener()
    for kind in (None, "ADDED", "MODIFIED"):
        asyncio.run(listener.event_handlers.on_service(event(service(EVERYTHING), kind)))
    asyncio.run(listener.event_handlers.on_service(event(service(EVERYTHING), "DELETED")))

    assert listener.marks == [CAT] * 4
    assert listener.priorities == [Priority.CHANGED] * 4


def test_a_service_whose_spec_has_been_reconciled_waits_behind_those_that_changed() -> None:
    listener = Listener()
    settled = {**service(EVERYTHING), "status": {"observedGeneration": 1}}
    deleted = {**settled, "metadata": {**settled["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    edited = {**settled, "metadata": {**settled["metadata"], "generation": 2}}
    for each in (settled, deleted, edited):
        asyncio.run(listener.event_handlers.on_service(event(each)))
    asyncio.run(listener.event_handlers.on_child(event(desired_objects(target())[SERVICE])))

    assert listener.priorities == [Priority.REST, Priority.CHANGED, Priority.CHANGED, Priority.REST]


@pytest.mark.parametrize("label", ["cat", "dog", None])
def test_a_child_marks_the_service_of_its_name_whatever_its_labels_say(label: str | None) -> None:
    listener = Listener()
    child = desired_objects(target())[SERVICE]
    child["metadata"]["labels"] = {"serving.shoal.dev/inferenceservice": label} if label else {}
    asyncio.run(listener.event_handlers.on_child(event(child)))

    assert listener.marks == [CAT]


@pytest.mark.parametrize("label", ["cat", "dog"])
def test_a_pod_marks_the_service_whose_deployment_made_it(label: str) -> None:
    listener = Listener()
    made = pod()
    owner = {"kind": "ReplicaSet", "name": "cat-5d9c7b4f", "uid": "1", "controller": True}
    made["metadata"] |= {"namespace": "default", "ownerReferences": [owner]}
    made["metadata"]["labels"]["serving.shoal.dev/inferenceservice"] = label
    asyncio.run(listener.event_handlers.on_pod(event(made)))

    assert listener.marks == [CAT]


def test_endpoints_mark_the_service_that_they_are_of() -> None:
    listener = Listener()
    owner = {"kind": "Service", "name": "cat", "uid": "1", "controller": True}
    metadata = {"name": "cat-x7z", "namespace": "default", "ownerReferences": [owner]}
    asyncio.run(listener.event_handlers.on_endpoints(event({"metadata": metadata, "endpoints": []})))
    asyncio.run(listener.event_handlers.on_endpoints(event({"metadata": {"name": "by-hand", "namespace": "default"}})))

    assert listener.marks == [CAT]


def test_the_headless_service_marks_its_owner_and_its_endpoints_are_no_news() -> None:
    listener = Listener()
    asyncio.run(listener.event_handlers.on_child(event(desired_objects(target())[PEERS])))
    assert listener.marks == [Key("default", "cat-peers"), CAT]  # the first may be a service of that name
    labels = {"serving.shoal.dev/inferenceservice": "cat"}
    owner = {"kind": "Service", "name": "cat-peers", "uid": "1", "controller": True}
    metadata = {"name": "x", "namespace": "default", "labels": labels, "ownerReferences": [owner]}
    asyncio.run(listener.event_handlers.on_endpoints(event({"metadata": metadata})))
    assert len(listener.marks) == 2
    labels["serving.shoal.dev/inferenceservice"] = "cat-peers"  # of a service that is called so
    asyncio.run(listener.event_handlers.on_endpoints(event({"metadata": metadata})))
    assert listener.marks[2:] == [Key("default", "cat-peers")]


@pytest.mark.parametrize("owner", [None, {"kind": "InferenceService", "name": "cat-peers", "controller": True}])
def test_a_strangers_service_of_the_peers_name_marks_who_would_have_it(owner: Json | None) -> None:
    listener = Listener()
    metadata: Json = {"name": "cat-peers", "namespace": "default", "uid": "1"}
    metadata |= {"ownerReferences": [owner]} if owner else {}
    asyncio.run(listener.event_handlers.on_child(event({"kind": "Service", "metadata": metadata}, "DELETED")))
    asyncio.run(listener.event_handlers.on_child(event({"kind": "Deployment", "metadata": metadata})))

    both = [Key("default", "cat-peers"), CAT]
    graphs = [Key("default", each.name, GRAPH_PLURAL) for each in both]  # or a graph may have waited for the name
    assert listener.marks == [*both, *graphs, both[0]]


def test_what_belongs_to_a_graph_marks_the_graph() -> None:
    listener = Listener()
    graph = {"kind": "InferenceGraph", "metadata": {"name": "cat", "namespace": "default"}}
    asyncio.run(listener.event_handlers.on_graph(event(graph)))
    labels = {"serving.shoal.dev/inferencegraph": "cat", "serving.shoal.dev/inferenceservice": "cat"}
    owners = {kind: [{"kind": kind, "name": name, "uid": "1", "controller": True}] for kind, name in OWNERS.items()}
    metadata = {"name": "cat", "namespace": "default", "labels": labels}
    asyncio.run(
        listener.event_handlers.on_pod(event({"metadata": {**metadata, "ownerReferences": owners["ReplicaSet"]}}))
    )
    slices = {**metadata, "name": "cat-x7z", "ownerReferences": owners["Service"]}
    asyncio.run(listener.event_handlers.on_endpoints(event({"metadata": slices})))
    # The owner reference stays when the labels are removed.
    child = {"name": "cat", "namespace": "default", "ownerReferences": owners["InferenceGraph"]}
    asyncio.run(listener.event_handlers.on_child(event({"kind": "Deployment", "metadata": child})))

    assert listener.marks == [Key("default", "cat", GRAPH_PLURAL)] * 4


def test_the_echo_of_our_own_write_is_no_news_and_a_list_always_is() -> None:
    listener = Listener()
    child = desired_objects(target())[SERVICE]
    child["metadata"] |= {"uid": "u", "resourceVersion": "5"}
    listener.event_handlers.echoes.expect(child)
    asyncio.run(listener.event_handlers.on_child(event(child)))
    assert listener.marks == []
    asyncio.run(listener.event_handlers.on_child(event(child, None)))
    asyncio.run(listener.event_handlers.on_child(event(child, "DELETED")))

    assert listener.marks == [CAT, CAT, Key("default", "cat", GRAPH_PLURAL)]


def test_a_pod_marks_the_service_of_its_label() -> None:
    listener = Listener()
    ready = pod()
    ready["metadata"]["namespace"] = "default"
    asyncio.run(listener.event_handlers.on_pod(event(ready)))
    asyncio.run(listener.event_handlers.on_pod(event(ready, "DELETED")))

    assert listener.marks == [CAT, CAT]


def test_the_lease_is_a_sign_of_life() -> None:
    listener = Listener()
    asyncio.run(listener.event_handlers.on_lease(event=None))

    assert listener.heard == 1


def test_only_low_level_handlers_are_registered_so_no_object_gets_a_finalizer_or_an_annotation() -> None:
    async def login() -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server="http://127.0.0.1")

    registry = make_registry(Listener().event_handlers, login, lambda: None)

    assert len(registry._watching.get_all_handlers()) == 8 + len({kind.plural for kind in READ_CHILDREN})
    assert registry._changing.get_all_handlers() == []
    assert registry._spawning.get_all_handlers() == []


def test_children_and_pods_are_filtered_by_the_server() -> None:
    settings = make_settings("shoal-operator", namespaced=False)

    assert len(settings.watching.label_selectors) == 4 + len({kind.plural for kind in READ_CHILDREN})
    assert settings.posting.enabled is False


def test_an_outage_of_any_length_is_sat_out() -> None:
    settings = make_settings("shoal-operator", namespaced=False)
    waits = list(itertools.islice(settings.networking.error_backoffs, 1000))  # type: ignore[arg-type]

    assert waits[:5] == [1, 2, 4, 8, 10]
    assert waits[-1] == 10


@pytest.mark.parametrize("namespaced", [True, False])
def test_an_operator_of_some_namespaces_reads_nothing_of_the_cluster(namespaced: bool) -> None:
    assert make_settings("shoal-operator", namespaced=namespaced).scanning.disabled is namespaced
