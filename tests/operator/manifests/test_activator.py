"""The slice that leads to the activator."""

from dataclasses import replace

import kubernetes_validate
import pytest

from shoal_operator.manifests.desired import ENDPOINT_SLICE, desired_objects
from shoal_operator.manifests.target import Hosting
from shoal_schema.fields.declaring import Json
from tests.operator.samples import SECURE, UID, target


def made(*addresses: str, opened: bool = True) -> Json | None:
    asleep = target({"model": {"uri": "file:///m"}, "scaling": {"minReplicas": 0, "maxReplicas": 2}})
    return desired_objects(replace(asleep, hosting=Hosting(20007, addresses, opened))).get(ENDPOINT_SLICE)


def test_endpoint_slice_contains_the_activators_at_the_services_port() -> None:
    body = made("10.0.0.9", "10.0.0.2")
    assert body is not None

    kubernetes_validate.validate(body, "1.37", strict=True)
    labels, (owner,) = body["metadata"]["labels"], body["metadata"]["ownerReferences"]
    assert labels["kubernetes.io/service-name"] == body["metadata"]["name"] == "cat"
    assert labels["endpointslice.kubernetes.io/managed-by"] == "shoal-operator"
    assert owner["uid"] == UID
    assert [each["addresses"] for each in body["endpoints"]] == [["10.0.0.2"], ["10.0.0.9"]]
    assert [(port["name"], port["port"]) for port in body["ports"]] == [("http", 20007)]


@pytest.mark.parametrize(
    ("addresses", "family", "count"), [(("fd00::1",), "IPv6", 1), ((), "IPv4", 0), (("10.0.0.1", "fd00::1"), "IPv4", 1)]
)
def test_a_slice_holds_addresses_of_one_family(addresses: tuple[str, ...], family: str, count: int) -> None:
    body = made(*addresses)
    assert body is not None

    assert (body["addressType"], len(body["endpoints"])) == (family, count)


def test_no_endpoint_slice_while_pods_serve() -> None:
    assert made("10.0.0.9", opened=False) is None


def test_tls_service_has_no_endpoint_slice_as_activators_lack_its_certificate() -> None:
    of_spec = replace(target(SECURE), hosting=Hosting(20000, ("10.0.0.9",), open=True))

    assert ENDPOINT_SLICE not in desired_objects(of_spec)
