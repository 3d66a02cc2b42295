"""The precision in the status, and the condition ``SamePrecision``."""

import pytest

from shoal_operator.children.conditions import find
from shoal_operator.status.events import transitions
from shoal_operator.status.evidence import Evidence
from shoal_operator.status.status import make_status
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import ConditionType, Reason, Status
from tests.operator.samples import MINIMAL, with_fields
from tests.operator.worlds import evidence, healthy, pod

NOW, LATER = "2026-01-01T00:00:00Z", "2026-02-02T00:00:00Z"
PODS = ("pod-1", "pod-2", "pod-3")


def seen(precisions: dict[str, str] | None, *, stored: Json | None = None) -> Evidence:
    pods = [pod(MINIMAL, uid=uid) for uid in PODS]
    return evidence(MINIMAL, *pods, deployment=healthy(3), stored=stored, precisions=precisions)


def condition(status: Json, kind: ConditionType = ConditionType.SAME_PRECISION) -> tuple[str, str] | None:
    found = find(status["conditions"], kind)
    return None if found is None else (found["status"], found["reason"])


@pytest.mark.parametrize(
    ("precisions", "shown", "expected"),
    [
        (dict.fromkeys(PODS, "TF32"), "TF32", (Status.TRUE, Reason.PRECISION_CHOSEN)),
        ({"pod-1": "TF32", "pod-2": "Int8", "pod-3": "Int8"}, "Int8, TF32", (Status.FALSE, Reason.PRECISIONS_DIFFER)),
        ({}, None, None),
        (None, None, None),
    ],
)
def test_the_status_has_the_precision_of_the_pods(
    precisions: dict[str, str] | None, shown: str | None, expected: tuple[Status, Reason] | None
) -> None:
    status = make_status(seen(precisions), NOW)

    assert status.get("precision") == shown
    assert condition(status) == expected
    assert condition(status, ConditionType.READY) == (Status.TRUE, Reason.READY)


def test_a_choice_is_announced_and_a_difference_is_a_warning() -> None:
    none, same = make_status(seen({}), NOW), make_status(seen(dict.fromkeys(PODS, "TF32")), LATER)
    differ = make_status(seen({"pod-1": "TF32", "pod-2": "Int8"}), LATER)

    found = [
        *transitions(none["conditions"], same["conditions"]),
        *transitions(same["conditions"], differ["conditions"]),
    ]

    assert [(each.warning, each.reason) for each in found] == [
        (False, Reason.PRECISION_CHOSEN),
        (True, Reason.PRECISIONS_DIFFER),
    ]
    assert "runtime.dtype" in found[1].message


@pytest.mark.parametrize("precisions", [{"pod-1": "TF32"}, {"pod-1": "TF32", "pod-2": "Int8"}])
def test_a_restarted_operator_keeps_the_precision(precisions: dict[str, str]) -> None:
    before = make_status(seen(precisions), NOW)

    assert make_status(seen(None, stored=before), LATER) == before


def test_a_pod_of_an_older_spec_does_not_count() -> None:
    old = pod(with_fields(MINIMAL, batching__maxBatchSize=8), uid="pod-1")
    found = evidence(MINIMAL, old, pod(MINIMAL, uid="pod-2"), deployment=healthy(2), precisions={"pod-1": "TF32"})

    assert make_status(found, NOW).get("precision") is None
