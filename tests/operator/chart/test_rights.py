"""The chart's roles beside what the operator asks of an API server: each verb is granted, and no other."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import kopf
import pytest
from helm_python import Chart

from shoal_operator.cluster import Cluster
from shoal_operator.handlers import Inbox, make_registry
from shoal_operator.manifests.desired import (
    DEPLOYMENT,
    ENDPOINT_SLICE,
    SERVICE,
    SIBLINGS,
    WRITTEN_KINDS,
    Kind,
    desired_objects,
)
from shoal_operator.manifests.target import Hosting
from shoal_operator.planning.observation import Key, Observation
from shoal_operator.settings import Settings
from shoal_schema.declaring import Json
from tests.operator.chart.rendering import PATH, by_kind, environment, rendered
from tests.operator.samples import (
    BY_HPA,
    BY_KEDA,
    DOWNLOADED,
    EVERYTHING,
    FOREIGN,
    MINIMAL,
    OPEN,
    SECURE,
    service,
    target,
)

CAT = Key("team-a", "cat")
LEASE = Key("shoal-system", "shoal-operator")
Right = tuple[str, str, str]
"""A group, a resource with its subresource, a verb."""
NOT_ASKED_FOR: frozenset[Right] = frozenset(
    {
        # Admission asks for these: of an owner reference that blocks; on OpenShift, of addresses in a slice.
        ("serving.shoal.dev", "inferenceservices/finalizers", "update"),
        ("discovery.k8s.io", "endpointslices/restricted", "create"),
        # kopf's own: it looks for the Gateway API where it may look at the whole cluster.
        ("apiextensions.k8s.io", "customresourcedefinitions", "list"),
        ("apiextensions.k8s.io", "customresourcedefinitions", "watch"),
    }
)
VALUES: Mapping[str, Json] = {
    "default": {},
    "no-siblings": {"siblings": False},
    "no-waiting-room": {"waitingRoom": {"enabled": False}},
    "neither": {"siblings": False, "waitingRoom": {"enabled": False}},
    "namespaced": {"watchNamespaces": ["team-a"]},
}


class Recorder:
    """An API server that holds nothing, and notes which rights each request needs."""

    def __init__(self) -> None:
        self.rights: set[Right] = set()

    async def request(self, method: str, path: str, body: Any = None, **options: Any) -> Json:
        group, resource, name = _resource(path)
        if not resource:
            return {}  # discovery: everybody may
        verb = {"POST": "create", "PUT": "update", "DELETE": "delete", "PATCH": "patch"}.get(method)
        self.rights.add((group, resource, verb or ("get" if name else "list")))
        if options.get("kind") == "application/apply-patch+yaml" and "/" not in resource:
            self.rights.add((group, resource, "create"))  # where the object is not there yet
        return {"metadata": {"generation": 1, "resourceVersion": "7"}, "spec": {"replicas": 1}, "items": []}


def _resource(path: str) -> tuple[str, str, str]:
    """Return the group, resource/subresource, and the name of an object; empty where the path names none."""
    parts = path.strip("/").split("/")
    group, rest = (parts[1], parts[3:]) if parts[0] == "apis" else ("", parts[2:])
    if rest[:1] == ["namespaces"]:
        rest = rest[2:]
    resource, name, sub = (*rest, "", "", "")[:3]
    return group, f"{resource}/{sub}" if sub else resource, name


def granted(chart: Chart, values: Json) -> set[Right]:
    objects = rendered(chart, **values)
    return {
        right
        for role in (*by_kind(objects, "Role"), *by_kind(objects, "ClusterRole"))
        for rule in role["rules"]
        for right in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])
    }


def settings_of(chart: Chart, values: Json) -> Settings:
    given = {
        name: text.replace("$(POD_IP)", "10.0.0.5") for name, text in environment(rendered(chart, **values)).items()
    }
    return Settings.from_env(given | {"SHOAL_OPERATOR_NAMESPACE": LEASE.namespace})


def changes(settings: Settings) -> tuple[set[Kind], set[Kind]]:
    """Return the kinds that this install ever applies, and those that it may find and have to delete.

    What is there may have been made by an install with other settings, for another spec.
    """
    hostings = [Hosting(20000, ("10.0.0.9",), open=True)] if settings.process.waiting_selector else []
    applied: set[Kind] = set()
    always = set(WRITTEN_KINDS)
    for spec, hosting in itertools.product(
        (MINIMAL, EVERYTHING, DOWNLOADED, FOREIGN, BY_HPA, BY_KEDA, SECURE, OPEN), (None, *hostings)
    ):
        of_spec = target(spec, defaults=settings.process)
        object.__setattr__(of_spec, "hosting", hosting)
        wanted = set(desired_objects(of_spec))
        applied |= wanted
        always &= wanted
    # The headless Service goes wherever another InferenceService has its name.
    return applied, set(WRITTEN_KINDS) - always | {SIBLINGS}


def calls(settings: Settings) -> dict[str, Callable[[Cluster], Awaitable[Any]]]:
    """Return a use of each method of `Cluster`, by its name: all that the operator asks an API server for."""
    applied, deleted = changes(settings)
    bodies = {kind: {"metadata": {"namespace": "team-a", "name": f"cat{kind.suffix}"}} for kind in WRITTEN_KINDS}
    stored = {"metadata": {"namespace": "team-a", "name": "cat", "resourceVersion": "7"}}
    resource = service()

    async def each(uses: Iterator[Awaitable[Any]]) -> None:
        for use in uses:
            await use

    return {
        "read_service": lambda cluster: cluster.read_service(CAT),
        "observe": lambda cluster: cluster.observe(CAT, resource),
        "apply": lambda cluster: each(cluster.apply(kind, bodies[kind], None) for kind in applied),
        "merge": lambda cluster: each(cluster.merge(kind, stored, {}) for kind in applied),
        "annotate": lambda cluster: cluster.annotate(SERVICE, CAT, "uid", {}),
        "delete": lambda cluster: each(cluster.delete(kind, CAT, "uid") for kind in deleted),
        "apply_status": lambda cluster: cluster.apply_status(resource, {}),
        "scale": lambda cluster: cluster.scale(CAT, 2, was=1),
        "set_deletion_cost": lambda cluster: cluster.set_deletion_cost(CAT, "uid", -1),
        "announce": lambda cluster: cluster.announce({"metadata": {"namespace": "team-a"}}),
        "list_services": lambda cluster: cluster.list_services(settings.process.watch_namespaces),
        "list_pods": lambda cluster: cluster.list_pods("shoal-system", "a=b"),
        "read_kinds": lambda cluster: cluster.read_kinds("gateway.networking.k8s.io/v1"),
        "read_lease": lambda cluster: cluster.read_lease(LEASE),
        "write_lease": lambda cluster: each(
            cluster.write_lease(LEASE, {"metadata": metadata}) for metadata in ({}, {"resourceVersion": "7"})
        ),
        "beat": lambda cluster: cluster.beat(settings.heartbeat, "2026-01-01T00:00:00Z"),
    }


def watched() -> set[Right]:
    async def login() -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server="http://127.0.0.1")

    registry = make_registry(Inbox(lambda key, delay_s: None, lambda: None), login, lambda: None)
    selectors = [handler.selector for handler in registry._watching.get_all_handlers()]
    return {(str(each.group), str(each.any_name), verb) for each in selectors if each for verb in ("list", "watch")}


def asked(settings: Settings) -> set[Right]:
    recorder = Recorder()
    cluster = Cluster(recorder, lambda: True)  # type: ignore[arg-type]
    uses = calls(settings)
    if settings.heartbeat == settings.lease:
        del uses["beat"]

    async def use_all() -> None:
        for use in uses.values():
            await use(cluster)

    asyncio.run(use_all())
    return recorder.rights | watched()


@pytest.fixture(scope="module")
def chart() -> Iterator[Chart]:
    with Chart.load(PATH) as loaded:
        yield loaded


def test_each_way_in_which_the_operator_asks_an_api_server_is_among_those_tried_here(chart: Chart) -> None:
    methods = {name for name in vars(Cluster) if not name.startswith("_")}

    assert methods == calls(settings_of(chart, {})).keys()


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_verb_that_the_operator_may_use_is_granted(chart: Chart, values: Json) -> None:
    assert asked(settings_of(chart, values)) - granted(chart, values) == set()


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_no_verb_is_granted_that_the_operator_does_not_use(chart: Chart, values: Json) -> None:
    assert granted(chart, values) - asked(settings_of(chart, values)) - NOT_ASKED_FOR == set()


def test_what_a_switch_of_the_chart_turns_off_may_be_taken_away(chart: Chart) -> None:
    for values in VALUES.values():
        assert {("", "services", "delete"), ("discovery.k8s.io", "endpointslices", "delete")} <= granted(chart, values)


def test_without_a_waiting_room_no_address_may_be_written_into_a_slice(chart: Chart) -> None:
    rights = granted(chart, VALUES["no-waiting-room"])

    verbs = {verb for _, resource, verb in rights if resource.startswith("endpointslices")}
    assert verbs == {"list", "watch", "delete"}


def test_a_look_reads_no_more_than_what_it_has_rights_for(chart: Chart) -> None:
    recorder = Recorder()
    found = asyncio.run(Cluster(recorder, lambda: True).observe(CAT, service()))  # type: ignore[arg-type]

    assert isinstance(found, Observation)
    assert ("apps", DEPLOYMENT.plural, "get") in recorder.rights
    assert ("discovery.k8s.io", ENDPOINT_SLICE.plural, "list") in recorder.rights
