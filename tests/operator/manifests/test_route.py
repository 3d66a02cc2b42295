"""Where a route leads."""

from shoal_operator.manifests.route import make_http_route
from shoal_schema.declaring import Json
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


def test_calls_of_grpc_go_to_their_port_where_there_is_one() -> None:
    assert rules({}, proxy={"grpcPort": 8081}) == [rule("/", 80), rule("/inference.GRPCInferenceService", 8081)]


def test_where_services_share_a_host_calls_of_grpc_are_not_taken_from_the_others() -> None:
    assert rules({"path": "/v2/models/cat"}, proxy={"grpcPort": 8081}) == [rule("/v2/models/cat", 80)]


def test_a_time_out_is_said_in_every_rule() -> None:
    made = rules({"timeoutSeconds": 75}, proxy={"grpcPort": 8081})
    assert [each["timeouts"] for each in made] == [{"request": "75s"}] * 2
