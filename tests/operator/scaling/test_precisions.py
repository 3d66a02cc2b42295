"""The precisions that pods report."""

from msgspec.structs import replace

from shoal_operator.scaling.precisions import record_precisions
from shoal_operator.scaling.reading import Reading
from tests.operator.loads import NOTHING


def reading(precision: str) -> Reading:
    return Reading(replace(NOTHING, precision=precision))


def test_pods_without_a_choice_are_left_out() -> None:
    assert record_precisions(None, {"a": reading("TF32"), "b": reading("")}) == {"a": "TF32"}


def test_a_silent_pod_keeps_its_precision_and_a_removed_one_does_not() -> None:
    assert record_precisions({"a": "TF32", "b": "TF32"}, {"a": Reading()}) == {"a": "TF32"}


def test_the_last_report_of_a_pod_counts() -> None:
    assert record_precisions({"a": "TF32"}, {"a": reading("Float16")}) == {"a": "Float16"}
