"""The condition ``ObjectiveAttainable``: which reports count, and what stays without any."""

import pytest

from shoal_operator.children.conditions import find
from shoal_operator.status.conditions import evaluate_conditions
from shoal_operator.status.evidence import Evidence
from shoal_operator.status.status import make_status
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import ConditionType, Reason, Status
from tests.operator.samples import MINIMAL, with_fields
from tests.operator.worlds import evidence, healthy, pod

NOW, LATER = "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z"
SPEC = with_fields(MINIMAL, batching__latencyObjectiveMilliseconds=50)
POD, OTHER = "pod-1", "pod-2"
ATTAINABLE = (Status.TRUE, Reason.OBJECTIVE_ATTAINABLE)
UNATTAINABLE = (Status.FALSE, Reason.OBJECTIVE_UNATTAINABLE)
UNKNOWN = (Status.UNKNOWN, Reason.NO_LATENCY_DATA)


def seen(attainable: dict[str, bool] | None, *, stored: Json | None = None, spec: Json = SPEC) -> Evidence:
    pods = (pod(spec), pod(spec, uid=OTHER))
    return evidence(spec, *pods, deployment=healthy(2), stored=stored, attainable=attainable)


def verdict(found: Evidence, kind: ConditionType = ConditionType.OBJECTIVE_ATTAINABLE) -> tuple[Status, Reason] | None:
    return next(((item.status, item.reason) for item in evaluate_conditions(found) if item.type is kind), None)


def message(found: Evidence) -> str:
    return next(item.message for item in evaluate_conditions(found) if item.type is ConditionType.OBJECTIVE_ATTAINABLE)


@pytest.mark.parametrize(
    ("attainable", "expected"),
    [
        ({POD: True, OTHER: True}, ATTAINABLE),
        ({POD: True}, ATTAINABLE),
        ({POD: True, OTHER: False}, UNATTAINABLE),
        ({OTHER: False}, UNATTAINABLE),
        ({}, UNKNOWN),
        (None, UNKNOWN),
    ],
)
def test_objective_follows_the_pods_reports_and_ready_does_not(
    attainable: dict[str, bool] | None, expected: tuple[Status, Reason]
) -> None:
    assert verdict(seen(attainable)) == expected
    assert verdict(seen(attainable), ConditionType.READY) == (Status.TRUE, Reason.READY)


def test_a_service_without_an_objective_has_no_such_condition() -> None:
    assert verdict(seen({POD: False}, spec=MINIMAL)) is None


def test_what_cannot_be_met_is_named_with_what_to_do() -> None:
    text = message(seen({POD: False}))

    assert "batching.latencyObjectiveMilliseconds (50)" in text
    assert "use a faster device or model" in text
    assert "kubectl port-forward" in text
    assert "/v1/explain" in text


def test_a_pod_of_an_older_spec_says_nothing_about_this_one() -> None:
    old = pod(with_fields(SPEC, batching__latencyObjectiveMilliseconds=5))
    found = evidence(SPEC, old, pod(SPEC, uid=OTHER), deployment=healthy(2), attainable={POD: False})

    assert verdict(found) == UNKNOWN


def test_the_message_stays_when_more_pods_say_the_same() -> None:
    assert message(seen({POD: False})) == message(seen({POD: True, OTHER: False}))
    assert message(seen({POD: True})) == message(seen({POD: True, OTHER: True}))


@pytest.mark.parametrize("attainable", [{POD: True}, {POD: False}, {}])
def test_a_restarted_operator_keeps_what_was_said(attainable: dict[str, bool]) -> None:
    before = make_status(seen(attainable), NOW)

    assert make_status(seen(None, stored=before), LATER) == before


def test_what_was_said_of_an_older_spec_is_not_kept() -> None:
    stored = make_status(seen({POD: False}), NOW)
    reported = find(stored["conditions"], ConditionType.OBJECTIVE_ATTAINABLE)
    assert reported is not None
    reported["observedGeneration"] = 0

    assert verdict(seen(None, stored=stored)) == UNKNOWN
