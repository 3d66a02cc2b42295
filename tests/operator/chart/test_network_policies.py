"""Who may connect to whom by the chart's NetworkPolicies: every connection that Shoal makes, and no other."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from helm_python import Chart

from shoal_operator.manifests.environment import ADMIN_PORT, HTTP_PORT
from shoal_operator.manifests.labels import object_labels
from shoal_schema.fields.declaring import Json
from tests.operator.chart.rendering import PATH, by_kind, container_of, rendered
from tests.operator.samples import target


class Peer(NamedTuple):
    """A pod, or (without a namespace) what is outside the cluster."""

    namespace: str
    labels: Json


SERVICE = Peer("team-a", object_labels(target()))
PROMETHEUS = Peer("monitoring", {"app": "prometheus"})
STRANGER = Peer("team-a", {"app": "curl"})
OUTSIDE = Peer("", {})
DNS = Peer("kube-system", {"k8s-app": "kube-dns"})
VALUES: Json = {"metricsNamespaces": ["monitoring"]}


@pytest.fixture(scope="module")
def chart() -> Iterator[Chart]:
    with Chart.load(PATH) as loaded:
        yield loaded


def peer_of(objects: list[Json], name: str) -> Peer:
    made = next(each for each in by_kind(objects, "Deployment") if each["metadata"]["name"] == f"shoal-{name}")
    return Peer("shoal-system", made["spec"]["template"]["metadata"]["labels"])


def allows(objects: list[Json], source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
    """Return whether the policies of both ends let a connection through."""
    goes = _lets(objects, "Egress", source, target, (protocol, port))
    return goes and _lets(objects, "Ingress", target, source, (protocol, port))


def _lets(objects: list[Json], direction: str, guarded: Peer, other: Peer, at: tuple[str, int]) -> bool:
    key = {"Egress": "to", "Ingress": "from"}[direction]
    policies = [
        each["spec"]
        for each in by_kind(objects, "NetworkPolicy")
        if each["metadata"]["namespace"] == guarded.namespace
        and _selects(each["spec"]["podSelector"], guarded.labels)
        and direction in each["spec"]["policyTypes"]
    ]
    rules = [rule for policy in policies for rule in policy.get(direction.lower(), ())]
    return not policies or any(
        _names_port(objects, rule["ports"], *at)
        and (key not in rule or any(_names_peer(each, guarded.namespace, other) for each in rule[key]))
        for rule in rules
    )


def _names_port(objects: list[Json], ports: list[Json], protocol: str, port: int) -> bool:
    numbers = {each["name"]: each["containerPort"] for each in container_of(objects)["ports"]}
    first_and_last = [
        (numbers.get(each["port"]) or each["port"], each.get("endPort"))
        for each in ports
        if each["protocol"] == protocol
    ]
    return any(first <= port <= (last or first) for first, last in first_and_last)


def _names_peer(peer: Json, own_namespace: str, other: Peer) -> bool:
    if not other.namespace:
        return False
    namespace = {"kubernetes.io/metadata.name": other.namespace}
    here = _selects(peer["namespaceSelector"], namespace) if "namespaceSelector" in peer else None
    return (here if here is not None else other.namespace == own_namespace) and _selects(
        peer.get("podSelector", {}), other.labels
    )


def _selects(selector: Json, labels: Json) -> bool:
    expressions = selector.get("matchExpressions", [])
    assert all(each["operator"] == "In" for each in expressions)
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in expressions
    )


def connections(objects: list[Json]) -> dict[str, tuple[Peer, Peer, int, str]]:
    operator, activator = peer_of(objects, "operator"), peer_of(objects, "activator")
    return {
        "operator-names": (operator, DNS, 53, "UDP"),
        "operator-names-in-openshift": (operator, DNS, 5353, "UDP"),
        "operator-api-server": (operator, OUTSIDE, 6443, "TCP"),
        "operator-registry": (operator, OUTSIDE, 443, "TCP"),
        "operator-proxy": (operator, SERVICE, ADMIN_PORT, "TCP"),
        "operator-activator": (operator, activator, 9090, "TCP"),
        "activator-names": (activator, DNS, 53, "UDP"),
        "activator-operator": (activator, operator, 8082, "TCP"),
        "activator-activator": (activator, activator, 20000, "TCP"),
        "activator-pod": (activator, SERVICE, HTTP_PORT, "TCP"),
        "prometheus-operator": (PROMETHEUS, operator, 8082, "TCP"),
        "prometheus-activator": (PROMETHEUS, activator, 9090, "TCP"),
        "caller-activator": (STRANGER, activator, 20999, "TCP"),
        "caller-from-outside": (OUTSIDE, activator, 20000, "TCP"),
    }


def test_every_connection_that_shoal_makes_is_let_through(chart: Chart) -> None:
    objects = rendered(chart, **VALUES)

    assert {name for name, each in connections(objects).items() if not allows(objects, *each)} == set()


def test_no_other_is(chart: Chart) -> None:
    objects = rendered(chart, **VALUES)
    operator, activator = peer_of(objects, "operator"), peer_of(objects, "activator")
    others = {
        "a stranger reads the operator's metrics": (STRANGER, operator, 8082),
        "a stranger reads the room's metrics": (STRANGER, activator, 9090),
        "a service asks the operator": (SERVICE, operator, 8082),
        "Prometheus requests the operator's health": (PROMETHEUS, operator, 8081),
        "the operator calls a model": (operator, SERVICE, HTTP_PORT),
        "the operator asks a stranger": (operator, STRANGER, ADMIN_PORT),
        "the operator goes elsewhere": (operator, OUTSIDE, 5000),
        "the room goes out": (activator, OUTSIDE, 443),
        "the room asks a proxy's admin port": (activator, SERVICE, ADMIN_PORT),
        "the room calls a stranger": (activator, STRANGER, HTTP_PORT),
        "a caller at a port that no service has": (STRANGER, activator, 21000),
    }

    assert {name for name, each in others.items() if allows(objects, *each)} == set()


def test_no_rule_can_be_taken_away(chart: Chart) -> None:
    """Each is there for a connection above."""
    whole = rendered(chart, **VALUES)
    for policy in by_kind(whole, "NetworkPolicy"):
        for direction in ("ingress", "egress"):
            rules = policy["spec"][direction]
            for at in range(len(rules)):
                policy["spec"][direction] = rules[:at] + rules[at + 1 :]
                assert not all(allows(whole, *each) for each in connections(whole).values()), rules[at]
            policy["spec"][direction] = rules


def test_an_operator_of_some_namespaces_reaches_proxies_there_only(chart: Chart) -> None:
    objects = rendered(chart, watchNamespaces=["team-a"])
    operator = peer_of(objects, "operator")

    assert allows(objects, operator, SERVICE, ADMIN_PORT)
    assert not allows(objects, operator, Peer("team-b", SERVICE.labels), ADMIN_PORT)


def test_more_can_be_let_through_and_callers_can_be_named(chart: Chart) -> None:
    mlflow: Json = {"ports": [{"protocol": "TCP", "port": 5000}]}
    objects = rendered(
        chart,
        networkPolicies={
            "operator": {"egress": [mlflow]},
            "activator": {"from": [{"podSelector": {"matchLabels": {"app": "gateway"}}}]},
        },
    )
    activator = peer_of(objects, "activator")

    assert allows(objects, peer_of(objects, "operator"), OUTSIDE, 5000)
    assert not allows(objects, STRANGER, activator, 20000)
    assert allows(objects, Peer("shoal-system", {"app": "gateway"}), activator, 20000)
    assert allows(objects, activator, activator, 20000)


def test_without_policies_nothing_is_refused(chart: Chart) -> None:
    assert by_kind(rendered(chart, networkPolicies={"enabled": False}), "NetworkPolicy") == []
