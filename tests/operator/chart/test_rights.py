"""The chart's roles beside what the operator asks of an API server: each verb is granted, and no other."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple

import kopf
import pytest
from helm_python import Chart

from shoal_operator import trial
from shoal_operator.children.observation import Key, Observation
from shoal_operator.cluster.objects import KubernetesCluster
from shoal_operator.loop.watches import EventHandlers, make_registry, make_settings
from shoal_operator.manifests.desired import (
    DEPLOYMENT,
    ENDPOINT_SLICE,
    PEERS,
    SERVICE,
    WRITTEN_CHILDREN,
    Child,
    desired_objects,
)
from shoal_operator.manifests.job import KINDS
from shoal_operator.manifests.target import Hosting
from shoal_operator.settings import Settings
from shoal_schema.fields.declaring import Json
from shoal_schema.resource import BATCH_KIND, BATCH_PLURAL, GRAPH_KIND, GRAPH_PLURAL, KIND
from tests.operator.chart.rendering import PATH, by_kind, environment, is_hook, rendered
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


class Asked(NamedTuple):
    """A request, as RBAC sees it; of the whole cluster where no namespace is named."""

    namespace: str
    group: str
    resource: str
    name: str
    verb: str


class Right(NamedTuple):
    """The smallest part of a rule that can be taken away: one verb on one resource, by one name or by any."""

    role: str
    namespace: str
    group: str
    resource: str
    name: str
    verb: str

    def allows(self, asked: Asked) -> bool:
        here = self.namespace in ("", asked.namespace)
        named = self.name in ("", asked.name)
        return here and named and (self.group, self.resource, self.verb) == (asked.group, asked.resource, asked.verb)


def admission(namespace: str) -> set[Asked]:
    """Return what admission asks: of an owner reference that blocks; on OpenShift, of addresses in a slice."""
    return {
        Asked(namespace, "serving.shoal.dev", "inferenceservices/finalizers", "cat", "update"),
        Asked(namespace, "serving.shoal.dev", "inferencegraphs/finalizers", "cat", "update"),
        Asked(namespace, "serving.shoal.dev", "batchinferences/finalizers", "cat", "update"),
        # The same plugin requires it to write a lost owner reference again.
        Asked(namespace, "apps", "deployments", "cat", "delete"),
        Asked(namespace, "policy", "poddisruptionbudgets", "cat", "delete"),
        Asked(namespace, "batch", "jobs", "cat", "delete"),
        Asked(namespace, "ray.io", "rayjobs", "cat", "delete"),
        Asked(namespace, "discovery.k8s.io", "endpointslices/restricted", "", "create"),
    }


OF_KOPF = {
    # It looks for the Gateway API where it may look at the whole cluster.
    Asked("", "apiextensions.k8s.io", "customresourcedefinitions", "", verb)
    for verb in ("list", "watch")
}
VALUES: Mapping[str, Json] = {
    "default": {},
    "no-peers": {"peers": False},
    "no-activator": {"activator": {"enabled": False}},
    "neither": {"peers": False, "activator": {"enabled": False}},
    "namespaced": {"watchNamespaces": ["team-a", "team-b"]},
    "namespaced-beside": {"watchNamespaces": ["team-a", "shoal-system"]},
}


class Recorder:
    """An API server that holds nothing, and notes each request."""

    def __init__(self, answer: Json | None = None) -> None:
        self.asked: set[Asked] = set()
        self._answer = answer or {
            "metadata": {"generation": 1, "resourceVersion": "7"},
            "spec": {"replicas": 1},
            "items": [],
        }

    async def request(self, method: str, path: str, body: Any = None, **options: Any) -> Json:
        namespace, group, resource, name = _target(path)
        if not resource:
            return {}  # discovery needs no permission
        verb = {"POST": "create", "PUT": "update", "DELETE": "delete", "PATCH": "patch"}.get(method)
        self.asked.add(Asked(namespace, group, resource, name, verb or ("get" if name else "list")))
        if options.get("kind") == "application/apply-patch+yaml" and "/" not in resource:
            self.asked.add(Asked(namespace, group, resource, name, "create"))  # where the object is not there yet
        return self._answer


def _target(path: str) -> tuple[str, str, str, str]:
    """Return the namespace, group, resource/subresource, and the name of an object; empty where the path has none."""
    parts = path.strip("/").split("/")
    group, rest = (parts[1], parts[3:]) if parts[0] == "apis" else ("", parts[2:])
    namespace = ""
    if rest[:1] == ["namespaces"]:
        namespace, rest = rest[1], rest[2:]
    resource, name, sub = (*rest, "", "", "")[:3]
    return namespace, group, f"{resource}/{sub}" if sub else resource, name


def granted(objects: list[Json], account: str) -> set[Right]:
    """Return every right of an account, of each role that it is bound to."""
    bound = [
        (body["roleRef"]["kind"], body["roleRef"]["name"], body["metadata"].get("namespace", ""))
        for body in (*by_kind(objects, "RoleBinding"), *by_kind(objects, "ClusterRoleBinding"))
        if any(subject["name"] == account for subject in body["subjects"])
    ]
    return {
        Right(role["metadata"]["name"], namespace, *parts)
        for kind, name, namespace in bound
        for role in by_kind(objects, kind)
        if role["metadata"]["name"] == name and role["metadata"].get("namespace", "") == namespace
        for rule in role["rules"]
        for parts in itertools.product(
            rule["apiGroups"], rule["resources"], rule.get("resourceNames", [""]), rule["verbs"]
        )
    }


def refused(asked: set[Asked], rights: set[Right]) -> set[Asked]:
    return {each for each in asked if not any(right.allows(each) for right in rights)}


def spared(asked: set[Asked], rights: set[Right]) -> set[Right]:
    """Return the rights that can be taken away, one at a time, without a request being refused."""
    needed_by = [[right for right in rights if right.allows(each)] for each in asked]
    return rights - {rights_for[0] for rights_for in needed_by if len(rights_for) == 1}


def settings_of(chart: Chart, values: Json) -> Settings:
    given = {
        name: text.replace("$(POD_IP)", "10.0.0.5") for name, text in environment(rendered(chart, **values)).items()
    }
    return Settings.from_env(given | {"SHOAL_OPERATOR_NAMESPACE": LEASE.namespace})


def changes(settings: Settings) -> tuple[set[Child], set[Child]]:
    """Return the kinds that this install ever applies, and those that it may find and have to delete.

    What is there may have been made by an install with other settings, for another spec.
    """
    hostings = [Hosting(20000, ("10.0.0.9",), open=True)] if settings.process.activator_selector else []
    applied: set[Child] = set()
    always = set(WRITTEN_CHILDREN)
    for spec, hosting in itertools.product(
        (MINIMAL, EVERYTHING, DOWNLOADED, FOREIGN, BY_HPA, BY_KEDA, SECURE, OPEN), (None, *hostings)
    ):
        of_spec = target(spec, defaults=settings.process)
        object.__setattr__(of_spec, "hosting", hosting)
        wanted = set(desired_objects(of_spec))
        applied |= wanted
        always &= wanted
    # The headless Service goes wherever another InferenceService has its name.
    return applied, set(WRITTEN_CHILDREN) - always | {PEERS}


def calls(settings: Settings, key: Key = CAT) -> dict[str, Callable[[KubernetesCluster], Awaitable[Any]]]:
    """Return a use of each method of `KubernetesCluster`, by its name: all that the operator asks an API server for."""
    applied, deleted = changes(settings)
    bodies = {
        kind: {"metadata": {"namespace": key.namespace, "name": f"cat{kind.suffix}"}} for kind in WRITTEN_CHILDREN
    }
    stored = {"metadata": {"namespace": key.namespace, "name": "cat", "resourceVersion": "7"}}
    resource = service() | {"metadata": service()["metadata"] | {"namespace": key.namespace}}
    batch, jobs = Key(key.namespace, key.name, BATCH_PLURAL), tuple(KINDS.values())
    graph = Key(key.namespace, key.name, GRAPH_PLURAL)
    bodies |= {kind: {"metadata": {"namespace": key.namespace, "name": "cat"}} for kind in jobs}

    async def each(uses: Iterator[Awaitable[Any]]) -> None:
        for use in uses:
            await use

    return {
        "read_service": lambda cluster: each(cluster.read_service(each_key) for each_key in (key, graph, batch)),
        "observe_batch": lambda cluster: each(cluster.observe_batch(batch, kind) for kind in jobs),
        "observe": lambda cluster: cluster.observe(key, resource),
        "apply": lambda cluster: each(cluster.apply(kind, bodies[kind], None) for kind in (*applied, *jobs)),
        "merge": lambda cluster: each(cluster.merge(kind, stored, {}) for kind in (*applied, *jobs)),
        "annotate": lambda cluster: cluster.annotate(SERVICE, key, "uid", {}),
        "delete": lambda cluster: each(cluster.delete(kind, key, "uid") for kind in deleted),
        "apply_status": lambda cluster: each(
            cluster.apply_status({**resource, "kind": kind}, {}) for kind in (KIND, GRAPH_KIND, BATCH_KIND)
        ),
        "scale": lambda cluster: each(cluster.scale(each_key, 2, was=1) for each_key in (key, graph)),
        "set_deletion_cost": lambda cluster: cluster.set_deletion_cost(key, "uid", -1),
        "post_event": lambda cluster: cluster.post_event({"metadata": {"namespace": key.namespace}}),
        "list_services": lambda cluster: cluster.list_services(settings.process.watch_namespaces),
        "list_pods": lambda cluster: cluster.list_pods("shoal-system", "a=b"),
        "read_kinds": lambda cluster: cluster.read_kinds("gateway.networking.k8s.io/v1"),
        "read_lease": lambda cluster: cluster.read_lease(LEASE),
        "write_lease": lambda cluster: each(
            cluster.write_lease(LEASE, {"metadata": metadata}) for metadata in ({}, {"resourceVersion": "7"})
        ),
        "write_heartbeat": lambda cluster: cluster.write_heartbeat(settings.heartbeat, "2026-01-01T00:00:00Z"),
    }


def watched(settings: Settings) -> set[Asked]:
    async def login() -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(server="http://127.0.0.1")

    registry = make_registry(EventHandlers(lambda *_: None, lambda: None), login, lambda: None)
    selectors = [handler.selector for handler in registry._watching.get_all_handlers()]
    fields = make_settings(settings.heartbeat.name, namespaced=True).watching.field_selectors
    return {
        Asked(
            namespace,
            str(each.group),
            str(each.any_name),
            _named(fields.get((str(each.group), str(each.any_name)))),
            verb,
        )
        for each in selectors
        if each
        for namespace in settings.process.watch_namespaces or ("",)
        for verb in ("list", "watch")
    }


def _named(field_selector: object) -> str:
    """Return the one object that a watch is about, which RBAC then takes for the request's name."""
    return str(field_selector or "").removeprefix("metadata.name=")


def asked(settings: Settings) -> set[Asked]:
    recorder = Recorder()
    cluster = KubernetesCluster(recorder, lambda: True)  # type: ignore[arg-type]
    namespaces = settings.process.watch_namespaces or (CAT.namespace,)

    async def use_all() -> None:
        for namespace in namespaces:
            uses = calls(settings, Key(namespace, CAT.name))
            if settings.heartbeat == settings.lease:
                del uses["write_heartbeat"]
            if not settings.process.activator_selector:
                del uses["list_pods"]
            for use in uses.values():
                await use(cluster)

    asyncio.run(use_all())
    found = recorder.asked | watched(settings) | {each for name in namespaces for each in admission(name)}
    if not settings.process.activator_selector:
        found = {each for each in found if each.resource != "endpointslices/restricted"}
    return found if settings.process.watch_namespaces else found | OF_KOPF


@pytest.fixture(scope="module")
def chart() -> Iterator[Chart]:
    with Chart.load(PATH) as loaded:
        yield loaded


def test_every_cluster_method_has_a_case(chart: Chart) -> None:
    methods = {name for name in vars(KubernetesCluster) if not name.startswith("_")}

    assert methods == calls(settings_of(chart, {})).keys()


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_request_of_the_operator_is_granted(chart: Chart, values: Json) -> None:
    assert refused(asked(settings_of(chart, values)), granted(rendered(chart, **values), "shoal-operator")) == set()


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_no_part_of_any_rule_can_be_taken_away(chart: Chart, values: Json) -> None:
    assert spared(asked(settings_of(chart, values)), granted(rendered(chart, **values), "shoal-operator")) == set()


@pytest.mark.parametrize(
    ("values", "namespace"),
    [({}, "shoal-system"), (VALUES["namespaced"], "team-a"), (VALUES["namespaced-beside"], "shoal-system")],
)
def test_the_test_of_an_install_may_do_what_it_does_and_no_more(chart: Chart, values: Json, namespace: str) -> None:
    objects = rendered(chart, **values)
    [pod] = by_kind(objects, "Pod")
    recorder = Recorder(
        {"status": {"url": "http://127.0.0.1:9", "conditions": [{"type": "Ready", "status": "True", "message": ""}]}}
    )

    with pytest.raises(TimeoutError):  # nothing listens there
        asyncio.run(asyncio.wait_for(trial.run(recorder, namespace, "127.77.0.1"), 0.5))  # type: ignore[arg-type]

    assert f"--namespace={namespace}" in pod["spec"]["containers"][0]["args"]
    rights = granted(objects, pod["spec"]["serviceAccountName"])
    assert refused(recorder.asked, rights) == set()
    assert spared(recorder.asked, rights) == set()
    assert all(is_hook(body) for body in objects if body["metadata"]["name"] == "shoal-test")


def test_every_role_is_bound(chart: Chart) -> None:
    """The tests above are about two accounts; user roles are not bound, and the activator has no role."""
    for values in VALUES.values():
        objects = rendered(chart, **values)
        bound = {
            (subject["name"], subject["namespace"])
            for body in (*by_kind(objects, "RoleBinding"), *by_kind(objects, "ClusterRoleBinding"))
            for subject in body["subjects"]
        }
        assert bound == {("shoal-operator", "shoal-system"), ("shoal-test", "shoal-system")}
        roles = {body["metadata"]["name"] for body in by_kind(objects, "ClusterRole")}
        ours = "shoal-shoal-system" if "watchNamespaces" in values else "shoal"
        assert roles - {"shoal-operator"} == {f"{ours}-view", f"{ours}-edit"}


@pytest.mark.parametrize(
    ("verb_of", "verbs"),
    [
        ("shoal-view", {"get", "list", "watch"}),
        ("shoal-edit", {"create", "update", "patch", "delete", "deletecollection"}),
    ],
)
def test_people_get_services_and_nothing_else_of_their_namespace(chart: Chart, verb_of: str, verbs: set[str]) -> None:
    [role] = [body for body in by_kind(rendered(chart), "ClusterRole") if body["metadata"]["name"] == verb_of]

    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == verbs
    assert {group for rule in role["rules"] for group in rule["apiGroups"]} == {"serving.shoal.dev"}
    assert {part for rule in role["rules"] for part in rule["resources"]} <= {
        "inferenceservices",
        "inferenceservices/status",
        "inferenceservices/scale",
        "inferencegraphs",
        "inferencegraphs/status",
        "inferencegraphs/scale",
        "batchinferences",
        "batchinferences/status",
    }
    assert ("inferenceservices/status" in str(role["rules"])) is (verb_of == "shoal-view")
    aggregated = {label.rpartition("-")[2] for label in role["metadata"]["labels"] if "aggregate-to" in label}
    assert aggregated == {"view", "edit", "admin"} - ({"view"} if verb_of == "shoal-edit" else set())


def test_what_a_switch_of_the_chart_turns_off_may_be_taken_away(chart: Chart) -> None:
    for values in VALUES.values():
        rights = granted(rendered(chart, **values), "shoal-operator")
        held = {(right.resource, right.verb) for right in rights}
        assert {("services", "delete"), ("endpointslices", "delete")} <= held


def test_without_an_activator_no_address_may_be_written_into_a_slice(chart: Chart) -> None:
    rights = granted(rendered(chart, **VALUES["no-activator"]), "shoal-operator")

    verbs = {right.verb for right in rights if right.resource.startswith("endpointslices")}
    assert verbs == {"list", "watch", "delete"}


def test_reconciliation_reads_only_what_its_role_grants() -> None:
    recorder = Recorder()
    found = asyncio.run(KubernetesCluster(recorder, lambda: True).observe(CAT, service()))  # type: ignore[arg-type]

    assert isinstance(found, Observation)
    assert Asked("team-a", "apps", DEPLOYMENT.plural, "cat", "get") in recorder.asked
    assert Asked("team-a", "discovery.k8s.io", ENDPOINT_SLICE.plural, "", "list") in recorder.asked
