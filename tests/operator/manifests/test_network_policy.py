"""Who reaches a service's pods: its policy as a network that enforces policies reads it (an own, small reading)."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from helm_python import Chart
from msgspec import structs

from shoal_operator.manifests.desired import DEPLOYMENT, NETWORK_POLICY, PEERS, SERVICE, desired_objects
from shoal_operator.settings import Settings
from shoal_schema.fields.declaring import Json
from tests.operator.chart.rendering import PATH, environment, rendered
from tests.operator.samples import MINIMAL, OPEN, SECURE, target, with_fields

HTTP, GRPC, ADMIN, OTHER = 8080, 8081, 9090, 8265


@dataclass(frozen=True, eq=False)
class Pod:
    """Who connects."""

    namespace: str = "default"
    labels: Mapping[str, str] = field(default_factory=dict)
    ip: str = "10.0.0.9"
    namespace_labels: Mapping[str, str] = field(default_factory=dict)


CAT: Mapping[str, str] = {"serving.shoal.dev/inferenceservice": "cat"}
OPERATOR = Pod("shoal-system", {"app.kubernetes.io/component": "operator"})
ROOM = Pod("shoal-system", {"app.kubernetes.io/component": "activator", "app.kubernetes.io/instance": "shoal"})
PROMETHEUS = Pod("monitoring", {"app": "prometheus"})
PEER = Pod("default", CAT)
SHOP = Pod("default", {"app": "shop"})
INGRESS = Pod("traefik", {"app": "traefik"}, namespace_labels={"team": "platform"})
STRANGER = Pod("elsewhere", {"app": "shop"})
OTHER_SERVICE = Pod("default", {"serving.shoal.dev/inferenceservice": "dog"})
NAMED = (OPERATOR, ROOM, PROMETHEUS, PEER, SHOP, INGRESS, STRANGER, OTHER_SERVICE)


def selects(selector: Json, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector picks these labels."""
    for rule in selector.get("matchExpressions", ()):
        assert rule["operator"] == "In"
        if labels.get(rule["key"]) not in rule["values"]:
            return False
    return all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())


def is_peer(peer: Json, home: str, pod: Pod) -> bool:
    """Return whether a peer of a policy in the namespace ``home`` is this pod."""
    assert peer
    if block := peer.get("ipBlock"):
        address = ipaddress.ip_address(pod.ip)
        excepted = any(address in ipaddress.ip_network(each) for each in block.get("except", ()))
        return address in ipaddress.ip_network(block["cidr"]) and not excepted
    named = {**pod.namespace_labels, "kubernetes.io/metadata.name": pod.namespace}
    here = selects(peer["namespaceSelector"], named) if "namespaceSelector" in peer else pod.namespace == home
    return here and selects(peer.get("podSelector", {}), pod.labels)


def lets_in(policy: Json | None, pod: Pod, port: int) -> bool:
    """Return whether the service's pods take a connection; without a policy that selects them they take any."""
    if policy is None:
        return True
    assert selects(policy["spec"]["podSelector"], CAT)
    assert policy["spec"]["policyTypes"] == ["Ingress"]  # what pods ask for is not restricted
    home = policy["metadata"]["namespace"]
    return any(
        any(each["port"] == port for each in rule["ports"])
        and ("from" not in rule or not rule["from"] or any(is_peer(peer, home, pod) for peer in rule["from"]))
        for rule in policy["spec"]["ingress"]
    )


@pytest.fixture(scope="module")
def settings() -> Settings:
    """Return an operator's settings, as the chart gives them."""
    objects = rendered(Chart.load(str(PATH)), metricsNamespaces=["monitoring"])
    given = {name: text.replace("$(POD_IP)", "10.0.0.5") for name, text in environment(objects).items()}
    return Settings.from_env({**given, "SHOAL_OPERATOR_NAMESPACE": "shoal-system"})


def let_in(settings: Settings, spec: Json, port: int) -> set[Pod]:
    policy = desired_objects(target(spec, defaults=settings.process)).get(NETWORK_POLICY)
    return {pod for pod in NAMED if lets_in(policy, pod, port)}


def test_by_default_all_clients_are_admitted_and_the_admin_port_is_restricted(settings: Settings) -> None:
    spec = with_fields(MINIMAL, proxy={"grpcPort": GRPC})
    assert let_in(settings, spec, HTTP) == let_in(settings, spec, GRPC) == set(NAMED)
    assert let_in(settings, spec, ADMIN) == {OPERATOR, ROOM, PROMETHEUS}
    assert let_in(settings, spec, OTHER) == set()
    assert let_in(settings, MINIMAL, GRPC) == set()  # no server listens there


@pytest.mark.parametrize(
    ("peer", "named"),
    [
        ({"podSelector": {"matchLabels": {"app": "shop"}}}, {SHOP}),
        ({"podSelector": {}}, {SHOP, OTHER_SERVICE}),
        ({"namespaceSelector": {"matchLabels": {"team": "platform"}}}, {INGRESS}),
        ({"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "shop"}}}, {SHOP, STRANGER}),
        ({"ipBlock": {"cidr": "192.0.2.0/24"}}, set()),
    ],
)
def test_clients_named_in_the_spec_are_admitted_beside_peers_and_activator(
    settings: Settings, peer: Json, named: set[Pod]
) -> None:
    spec = with_fields(SECURE, networkPolicy={"from": [peer]})
    assert let_in(settings, spec, HTTP) == let_in(settings, spec, GRPC) == named | {PEER, ROOM}
    assert let_in(settings, spec, ADMIN) == {OPERATOR, ROOM, PROMETHEUS}


def test_policy_without_an_activator_admits_none(settings: Settings) -> None:
    process = structs.replace(settings.process, activator_selector="")
    policy = desired_objects(target(SECURE, defaults=process))[NETWORK_POLICY]
    assert {pod for pod in NAMED if lets_in(policy, pod, HTTP)} == {SHOP, PEER}


def test_a_service_may_have_no_policy_at_all(settings: Settings) -> None:
    assert let_in(settings, OPEN, OTHER) == set(NAMED)


@pytest.mark.parametrize("spec", [MINIMAL, SECURE, OPEN])
def test_no_service_leads_to_the_admin_port(spec: Json) -> None:
    objects = desired_objects(target(spec))
    pod = objects[DEPLOYMENT]["spec"]["template"]["spec"]
    (proxy,) = (each for each in pod["containers"] if each["name"] == "proxy")
    numbers = {port["name"]: port["containerPort"] for port in proxy["ports"]}
    assert numbers["admin"] == ADMIN
    assert not any("hostPort" in port for container in pod["containers"] for port in container.get("ports", ()))
    for kind in (SERVICE, PEERS):
        led_to = {numbers.get(port["targetPort"], port["targetPort"]) for port in objects[kind]["spec"]["ports"]}
        assert led_to <= {HTTP, GRPC}
