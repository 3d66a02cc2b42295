"""Where a route leads."""

from shoal_operator.manifests.route import make_http_route
from shoal_schema.fields.declaring import Json
from tests.operator.samples import MINIMAL, target, with_fields


def rules(route: Json, **fields: Json) -> list[Json]:
    http_route = {"parentRefs": [{"name": "g"}], **route}
    made = target(with_fields(MINIMAL, route={"httpRoute": http_route}, **fields))
    assert made.spec.route is not None
    assert made.spec.route.http_route is not None
    found: list[Json] = make_http_route(made, made.spec.route.http_route)["spec"]["rules"]
    return found


def rule(path: str, port: int) -> Json:
    match = {"path": {"type": "PathPrefix", "value": path}}
    return {"matches": [match], "backendRefs": [{"name": "cat", "port": port}]}


def test_a_route_leads_to_the_inference_port_and_waits_as_long_as_its_gateway_does() -> None:
    assert rules({}) == [rule("/", 80)]


def test_grpc_requests_are_routed_to_the_grpc_port_if_declared() -> None:
    assert rules({}, proxy={"grpcPort": 8081}) == [rule("/", 80), rule("/inference.GRPCInferenceService", 8081)]


def test_grpc_route_does_not_capture_other_services_of_the_host() -> None:
    assert rules({"path": "/v2/models/cat"}, proxy={"grpcPort": 8081}) == [rule("/v2/models/cat", 80)]


def test_every_rule_declares_a_timeout() -> None:
    made = rules({"timeoutSeconds": 75}, proxy={"grpcPort": 8081})
    assert [each["timeouts"] for each in made] == [{"request": "75s"}] * 2
