"""Which rows travel together, and which do not travel."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.wire.datatypes import object_array
from shoal.wire.parts import parts_of
from shoal.wire.signature import Signature, Tensor

VECTORS = Signature("m", ("1",), (Tensor("x", "FP32", (-1, 2)),), ())
LISTS = Signature("m", ("1",), (Tensor("x", "INT64", (-1, -1), batch_dim=1),), ())
ONES = Signature("m", ("1",), (Tensor("x", "FP32", (-1, 1)),), ())
TEXTS = Signature("m", ("1",), (Tensor("x", "BYTES", (-1,)),), ())


def test_rows_that_fit_are_one_part_and_are_cut() -> None:
    [part], failed = parts_of({"x": np.arange(10.0).reshape(5, 2)}, 5, VECTORS)
    cut = list(part.cut(2, VECTORS))
    assert failed == {}
    assert part.tensors["x"].dtype == np.float32
    assert [list(each.rows) for each in cut] == [[0, 1], [2, 3], [4]]
    assert cut[1].tensors["x"].tolist() == [[4, 5], [6, 7]]


def test_a_part_that_is_too_heavy_goes_in_lighter_ones_down_to_a_row() -> None:
    elements = object_array(["a", "bb", "c" * 100, "d"], (4,))
    [part], _ = parts_of({"x": elements}, 4, TEXTS)
    assert [list(each.rows) for each in part.lighter(200, TEXTS)] == [[0, 1, 2, 3]]
    assert [list(each.rows) for each in part.lighter(50, TEXTS)] == [[0, 1], [2], [3]]


def test_rows_as_lists_or_arrays_of_one_shape_are_one_part_too() -> None:
    [part], failed = parts_of({"x": object_array([[1, 2], np.array([3, 4])], (2,))}, 2, VECTORS)
    assert (part.tensors["x"].tolist(), failed) == ([[1, 2], [3, 4]], {})


def test_what_does_not_fit_stays_behind_with_its_reason() -> None:
    rows = [[1, 2], None, [1, 2, 3], "text", [[1, 2]], [3, 4]]
    [part], failed = parts_of({"x": object_array(rows, (6,))}, 6, VECTORS)
    assert list(part.rows) == [0, 5]
    assert failed[1] == "input 'x' does not accept null"
    assert failed[2] == "input x takes rows of shape [2], not [3]"
    assert sorted(failed) == [1, 2, 3, 4]


def test_a_column_of_another_shape_fails_in_every_row() -> None:
    parts, failed = parts_of({"x": np.ones((3, 5))}, 3, VECTORS)
    assert (parts, set(failed.values())) == ([], {"input x takes rows of shape [2], not [5]"})
    parts, failed = parts_of({"x": np.ones(3)}, 3, VECTORS)
    assert (parts, sorted(failed)) == ([], [0, 1, 2])


def test_a_number_is_a_row_of_one_where_the_input_takes_such_rows() -> None:
    [part], _ = parts_of({"x": np.array([1.5, 2.5])}, 2, ONES)
    assert part.tensors["x"].tolist() == [[1.5], [2.5]]
    [part], failed = parts_of({"x": object_array([1.5, None], (2,))}, 2, ONES)
    assert (part.tensors["x"].tolist(), list(failed)) == ([[1.5]], [1])


def test_texts_and_pictures_are_elements() -> None:
    [part], _ = parts_of({"x": object_array(["a", b"b"], (2,))}, 2, TEXTS)
    assert part.tensors["x"].tolist() == [b"a", b"b"]
    [part], _ = parts_of({"x": np.zeros((2, 3, 4, 3), np.uint8)}, 2, TEXTS)
    assert [each[:4] for each in part.tensors["x"]] == [b"\x89PNG"] * 2


@given(st.lists(st.none() | st.lists(st.integers(0, 9), max_size=3), max_size=12), st.integers(1, 5))
def test_each_row_travels_once_beside_rows_of_its_length_or_fails(rows: list[list[int] | None], most: int) -> None:
    parts, failed = parts_of({"x": object_array(rows, (len(rows),))}, len(rows), LISTS) if rows else ([], {})
    sent = [each for part in parts for each in part.cut(most, LISTS)]
    assert sorted([row for part in sent for row in part.rows] + list(failed)) == list(range(len(rows)))
    assert sorted(failed) == [number for number, row in enumerate(rows) if row is None]
    for part in sent:
        assert 1 <= len(part.rows) <= most
        assert part.tensors["x"].T.tolist() == [rows[row] for row in part.rows] or part.tensors["x"].size == 0
