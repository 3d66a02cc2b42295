"""The slice that leads to the activator."""

from dataclasses import replace

import kubernetes_validate
import pytest

from shoal_operator.manifests.desired import ENDPOINT_SLICE, desired_objects
from shoal_operator.manifests.target import Hosting
from shoal_schema.declaring import Json
from tests.operator.samples import SECURE, UID, target


def made(*rooms: str, opened: bool = True) -> Json | None:
    asleep = target({"model": {"uri": "file:///m"}, "scaling": {"minReplicas": 0, "maxReplicas": 2}})
    return desired_objects(replace(asleep, hosting=Hosting(20007, rooms, opened))).get(ENDPOINT_SLICE)


def test_a_slice_of_the_operators_own_leads_to_the_rooms_at_the_services_port() -> None:
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
    ("rooms", "family", "count"), [(("fd00::1",), "IPv6", 1), ((), "IPv4", 0), (("10.0.0.1", "fd00::1"), "IPv4", 1)]
)
def test_a_slice_holds_addresses_of_one_family(rooms: tuple[str, ...], family: str, count: int) -> None:
    body = made(*rooms)
    assert body is not None

    assert (body["addressType"], len(body["endpoints"])) == (family, count)


def test_while_the_pods_answer_there_is_no_such_slice() -> None:
    assert made("10.0.0.9", opened=False) is None


def test_a_service_that_speaks_tls_has_no_such_slice_as_rooms_have_no_certificate_of_it() -> None:
    of_spec = replace(target(SECURE), hosting=Hosting(20000, ("10.0.0.9",), open=True))

    assert ENDPOINT_SLICE not in desired_objects(of_spec)
