"""Specs of any shape: one reconciliation reports what is wrong, and none raises."""

import asyncio
import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal_operator.children.conditions import MAX_MESSAGE_LENGTH
from shoal_operator.children.observation import Key
from shoal_operator.cluster.encoding import encoded
from shoal_operator.errors import ApiError
from shoal_operator.loop.workqueue import Outcome
from shoal_operator.manifests.desired import DEPLOYMENT
from shoal_operator.reconciliation.reconciler import Reconciler
from shoal_schema.fields.declaring import Json
from tests.operator.fakes import FakeCluster, reconciler_of
from tests.operator.samples import DOWNLOADED, EVERYTHING, FOREIGN, MINIMAL, service, with_fields

CAT = Key("default", "cat")
HOSTILE: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    2**70,
    float("inf"),
    "",
    "1e9999999",
    "9" * 5000,
    "1e-9999999",
    "0.0000000001",
    "\U0001f680.example.com",
    "\u202e\u05e9\x00\x85",
    "\ud83d",
    "x" * 40_000,
    [],
    [None],
    [[]],
    [{}],
    [1, "a"],
    {},
    {"name": None},
    {"limits": None},
    {"a": {"b": []}},
    {"cpu": "1e9999999"},
    {"\U0001f680" * 400: "x"},
]
FAILED_TO_CONVERT = (
    "failed to convert new object (default/cat; apps/v1, Child=Deployment) to proper version:"
    " cannot convert float64 to int64"
)


def reconcile(cluster: FakeCluster, reconciler: Reconciler | None = None) -> Outcome:
    return asyncio.run((reconciler or reconciler_of(cluster)).reconcile(CAT))


def world(spec: Json, **kwargs: Any) -> FakeCluster:
    cluster = FakeCluster(**kwargs)
    cluster.services[CAT] = service(spec)
    return cluster


def ready(cluster: FakeCluster) -> Json:
    conditions = cluster.services[CAT]["status"]["conditions"]
    return next(item for item in conditions if item["type"] == "Ready")


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copied = copy.copy(value)
    copied[path[0]] = replaced(value[path[0]], path[1:], new)
    return copied


@st.composite
def hostile_specs(draw: st.DrawFn) -> Any:
    """Return a spec that could work, with a few values that cannot."""
    spec = draw(st.sampled_from([MINIMAL, EVERYTHING, DOWNLOADED, FOREIGN]))
    for _ in range(draw(st.integers(1, 3))):
        spec = replaced(spec, draw(st.sampled_from(list(paths(spec)))), draw(st.sampled_from(HOSTILE)))
    return spec


@given(hostile_specs())
@example(with_fields(MINIMAL, pod__volumes=[{"name": "words", "configMap": True}]))
@settings(max_examples=1000, deadline=None)
def test_whatever_the_spec_its_status_comes_with_the_first_look_and_can_be_sent(spec: Any) -> None:
    cluster = world(spec)

    assert reconcile(cluster) is Outcome.DONE
    assert all(len(item["message"]) <= MAX_MESSAGE_LENGTH for item in cluster.services[CAT]["status"]["conditions"])
    encoded(cluster.services[CAT]["status"])
    if ready(cluster)["reason"] != "InvalidSpec":
        assert reconcile(cluster) is Outcome.DONE
        encoded(cluster.children[CAT, DEPLOYMENT])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"runtime__resources": {"limits": {"cpu": "1e9999999"}}}, "spec.runtime.resources.limits.cpu"),
        ({"runtime__resources": {"limits": {"cpu": "9" * 40}}}, "spec.runtime.resources.limits.cpu"),
        ({"runtime__resources": {"limits": {"cpu": "many"}}}, "spec.runtime.resources.limits.cpu"),
        ({"proxy__resources": {"requests": {"cpu": 1.5}}}, "spec.proxy.resources.requests.cpu"),
        ({"proxy__resources": {"claims": [{}]}}, "spec.proxy.resources.claims[0].name"),
        ({"runtime__env": [{"value": "nameless"}]}, "spec.runtime.env[0].name"),
        ({"runtime__env": [{"name": "A", "value": 1}]}, "spec.runtime.env[0].value"),
        ({"pod__labels": {"team": 5}}, "spec.pod.labels.team"),
        ({"pod__annotations": ["a"]}, "spec.pod.annotations"),
        ({"pod__tolerations": [{"tolerationSeconds": 1.5}]}, "spec.pod.tolerations[0].tolerationSeconds"),
        ({"pod__affinity": []}, "spec.pod.affinity"),
        ({"queue__fairShareHeader": "x-a", "queue__fairShareWeights": {"a": -1}}, "spec.queue.fairShareWeights.a"),
        ({"batching__padBuckets": {"ids": [0]}}, "spec.batching.padBuckets.ids[0]"),
        (
            {"route": {"httpRoute": {"parentRefs": [{"name": "g"}], "hostnames": ["\U0001f680.example.com"]}}},
            "spec.route.httpRoute.hostnames[0]",
        ),
    ],
)
def test_a_field_that_cannot_be_passed_on_is_named(spec: Json, said: str) -> None:
    cluster = world(with_fields(MINIMAL, **spec))

    assert reconcile(cluster) is Outcome.DONE
    assert ready(cluster)["reason"] == "InvalidSpec"
    assert ready(cluster)["message"].startswith(said)
    assert [event["reason"] for event in cluster.events] == ["InvalidSpec"]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (500, FAILED_TO_CONVERT),
        (500, "failed to create typed patch object (default/cat; apps/v1, Child=Deployment): .spec.nope"),
        (500, "Internal error occurred: etcdserver: request is too large"),
        (400, "error decoding YAML: yaml: found invalid Unicode character escape code"),
        (413, "Request entity too large: limit is 3145728"),
        (422, "Deployment.apps is invalid: " + "x" * 100_000),
    ],
)
def test_what_the_api_server_will_never_take_is_reported_in_its_words_within_one_look(
    status: int, message: str
) -> None:
    cluster = world(MINIMAL, refuse=lambda verb, what: refusal(status, message) if what == "Deployment" else None)

    assert reconcile(cluster) is Outcome.FAILED
    assert ready(cluster)["reason"] == "InvalidSpec"
    assert ready(cluster)["message"].startswith(f"Deployment: {message[:40]}")
    assert len(ready(cluster)["message"]) <= MAX_MESSAGE_LENGTH
    assert [event["type"] for event in cluster.events if event["reason"] == "InvalidSpec"] == ["Warning"]


def refusal(status: int, message: str) -> ApiError:
    return ApiError(status, message)


def test_a_lasting_outage_of_one_kind_is_reported_and_stops_no_other_write() -> None:
    broken = ApiError(500, "failed calling webhook: connection refused")
    cluster = world(MINIMAL, refuse=lambda verb, what: broken if what == "Service" else None)
    reconciler = reconciler_of(cluster)
    for _ in range(2):
        with pytest.raises(ApiError, match="webhook"):
            reconcile(cluster, reconciler)
        assert "status" not in cluster.services[CAT]

    assert reconcile(cluster, reconciler) is Outcome.FAILED
    assert (ready(cluster)["reason"], ready(cluster)["message"]) == ("ApplyFailed", f"Service: {broken.message}")
    assert (CAT, DEPLOYMENT) in cluster.children


def test_a_status_that_the_api_server_refuses_is_said_plainly() -> None:
    refused: list[str] = []

    def refuse(verb: str, what: str) -> Exception | None:
        if verb == "status" and len(refused) < 2:  # also without what an older definition has no field for
            refused.append(what)
            return ApiError(422, "status.conditions[0].message: \U0001f680 not today")
        return None

    cluster = world(MINIMAL, refuse=refuse)

    assert reconcile(cluster) is Outcome.FAILED
    assert ready(cluster)["reason"] == "ApplyFailed"
    assert ready(cluster)["message"].startswith("the status cannot be written: ")
    assert ready(cluster)["message"].isascii()


def test_a_condition_of_another_release_is_no_surprise() -> None:
    cluster = world(with_fields(MINIMAL, scaling={"maxReplicas": 2}, batching__latencyObjectiveMilliseconds=50))
    kinds = ("ScalingActive", "ObjectiveAttainable", "Ready", "Sparkling")
    reported = [
        {"type": kind, "status": "Perhaps", "reason": "Newer", "message": "", "observedGeneration": 1} for kind in kinds
    ]
    cluster.services[CAT]["status"] = {"conditions": reported}

    assert reconcile(cluster) is Outcome.DONE
    assert ready(cluster)["reason"] == "RollingOut"
