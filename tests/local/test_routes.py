from ipaddress import IPv4Network
from typing import Any

from shoal_local.services.forwarding import make_routes

Object = dict[str, Any]


def service(address: str) -> Object:
    ports = [{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]
    meta = {"name": "web", "namespace": "default"}
    return {"metadata": meta, "spec": {"clusterIP": address, "ports": ports}}


def endpoints(*conditions: Object) -> Object:
    labels = {"kubernetes.io/service-name": "web"}
    return {
        "metadata": {"namespace": "default", "labels": labels},
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": [{"addresses": [f"127.0.1.{n}"], "conditions": c} for n, c in enumerate(conditions)],
    }


def test_a_service_leads_to_its_ready_pods() -> None:
    slices = [endpoints({"ready": True}, {"ready": False}, {"ready": True})]
    routes = make_routes([service("127.9.0.1")], slices)
    assert list(routes) == [("127.9.0.1", 80)]
    assert routes["127.9.0.1", 80].backends == (("127.0.1.0", 8080), ("127.0.1.2", 8080))


def test_pods_that_end_answer_only_when_no_other_does() -> None:
    ending = {"ready": False, "serving": True, "terminating": True}
    for conditions, expected in (([ending], 1), ([ending, {"ready": True}], 1)):
        routes = make_routes([service("127.9.0.1")], [endpoints(*conditions)])
        assert len(routes["127.9.0.1", 80].backends) == expected


def test_a_service_whose_address_is_not_of_this_machine_is_nobodys() -> None:
    assert make_routes([service("None"), service("10.96.0.2")], []) == {}


def test_services_of_a_given_network_are_listened_for() -> None:
    services = [service("10.96.0.2"), service("10.97.0.2"), service("127.9.0.1")]
    assert list(make_routes(services, [], IPv4Network("10.96.0.0/16"))) == [("10.96.0.2", 80)]
