"""The condition ``RowsIndependent``: whose word counts, and that ``Ready`` does not follow it."""

import pytest

from shoal_operator.children.conditions import find
from shoal_operator.status.conditions import evaluate_conditions
from shoal_operator.status.events import transitions
from shoal_operator.status.evidence import Evidence
from shoal_operator.status.status import make_status
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import ConditionType, Reason, Status
from tests.operator.samples import MINIMAL, with_fields
from tests.operator.worlds import evidence, healthy, pod

NOW, LATER = "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z"
POD, OTHER = "pod-1", "pod-2"
INDEPENDENT = (Status.TRUE, Reason.ROWS_INDEPENDENT)
MIXED = (Status.FALSE, Reason.ROWS_MIXED)
UNKNOWN = (Status.UNKNOWN, Reason.ROWS_NOT_CHECKED)


def seen(said: dict[str, bool] | None, *, stored: Json | None = None) -> Evidence:
    pods = (pod(MINIMAL), pod(MINIMAL, uid=OTHER))
    return evidence(MINIMAL, *pods, deployment=healthy(2), stored=stored, independent=said)


def verdict(found: Evidence, kind: ConditionType = ConditionType.ROWS_INDEPENDENT) -> tuple[Status, Reason] | None:
    return next(((item.status, item.reason) for item in evaluate_conditions(found) if item.type is kind), None)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({POD: True, OTHER: True}, INDEPENDENT),
        ({POD: True}, INDEPENDENT),
        ({POD: True, OTHER: False}, MIXED),
        ({OTHER: False}, MIXED),
        ({}, None),
        (None, None),
    ],
)
def test_one_pod_that_mixed_rows_is_enough_and_ready_is_not_touched(
    said: dict[str, bool] | None, expected: tuple[Status, Reason] | None
) -> None:
    assert verdict(seen(said)) == expected
    assert verdict(seen(said), ConditionType.READY) == (Status.TRUE, Reason.READY)


def test_a_violation_names_the_fields_that_help_and_is_announced_as_a_warning() -> None:
    before, after = make_status(seen({POD: True}), NOW), make_status(seen({POD: False}), LATER)
    reported = find(after["conditions"], ConditionType.ROWS_INDEPENDENT)

    assert reported is not None
    assert "batching.policy: None" in reported["message"]
    assert "batching.rowChecks: Off" in reported["message"]
    said = transitions(before["conditions"], after["conditions"])
    assert [(each.warning, each.reason) for each in said] == [(True, Reason.ROWS_MIXED)]


@pytest.mark.parametrize("said", [{POD: True}, {POD: False}])
def test_a_restarted_operator_keeps_what_was_said(said: dict[str, bool]) -> None:
    before = make_status(seen(said), NOW)

    assert make_status(seen(None, stored=before), LATER) == before


def test_of_replaced_pods_nothing_is_known_until_they_have_checked() -> None:
    before = make_status(seen({POD: False}), NOW)

    assert verdict(seen({}, stored=before)) == UNKNOWN


def test_a_pod_of_an_older_spec_says_nothing_about_this_one() -> None:
    old = pod(with_fields(MINIMAL, batching__maxBatchSize=8))
    found = evidence(MINIMAL, old, pod(MINIMAL, uid=OTHER), deployment=healthy(2), independent={POD: False})

    assert verdict(found) is None
