"""What is remembered of pods' words about their rows."""

import pytest
from msgspec.structs import replace

from shoal_operator.scaling.independence import record_row_checks
from shoal_operator.scaling.reading import Reading
from shoal_schema.interfaces.load import RowsChecked
from tests.operator.loads import NOTHING


def reading(rows: RowsChecked | None) -> Reading:
    return Reading(replace(NOTHING, rows=rows))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (RowsChecked(independent=True, checked=1), {"a": True}),
        (RowsChecked(independent=False, checked=1, violations=1), {"a": False}),
        (RowsChecked(independent=True), {}),
        (RowsChecked(independent=True, checked=5, unchecked="RandomResults"), {}),
        (RowsChecked(independent=True, checked=5, unchecked="ChangingResults"), {}),
        (None, {}),
    ],
)
def test_pod_has_a_result_once_it_has_checked_rows(rows: RowsChecked | None, said: dict[str, bool]) -> None:
    assert record_row_checks(None, {"a": reading(rows)}) == said


def test_unreachable_pod_keeps_its_result_and_a_deleted_pod_has_none() -> None:
    known = record_row_checks(
        None, {"a": reading(RowsChecked(independent=False)), "b": reading(RowsChecked(independent=False))}
    )

    assert record_row_checks(known, {"a": Reading()}) == {"a": False}
