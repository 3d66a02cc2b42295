"""Values that move from space to space take no more room than there is."""

import numpy as np
import pytest

from shoal_proxy.graph.values import TEXT_BYTES, SpaceRows, SpaceValues, open_rows
from shoal_schema.graphs.tensors import Tensor

ITEMS = SpaceRows(np.array([0, 0, 0, 1]), np.array([0, 1, 2, 0]), None)


def texts(*values: bytes) -> SpaceValues:
    """Return a text a row."""
    array = np.empty(len(values), object)
    array[:] = values
    return SpaceValues(array)


def test_what_each_item_is_given_is_counted_before_it_is_copied() -> None:
    numbers = SpaceValues(np.zeros((2, 100), np.float32))
    assert len(ITEMS.repeat(numbers, 1600).array) == 4
    with pytest.raises(ValueError, match="4 items would take 1600 bytes"):
        ITEMS.repeat(numbers, 1599)
    said = texts(b"x" * 1000, b"")
    most = 3000 + 4 * TEXT_BYTES
    assert ITEMS.repeat(said, most).array.tolist() == [b"x" * 1000] * 3 + [b""]
    with pytest.raises(ValueError, match=f"would take {most} bytes"):
        ITEMS.repeat(said, most - 1)
    few = SpaceValues(np.zeros((1, 100), np.float32), np.array([1]))
    found = ITEMS.repeat(few, 400)
    assert found.rows is not None
    assert (found.rows.tolist(), found.array.shape) == ([3], (1, 100))


def test_texts_of_lists_count_more_than_what_points_to_them() -> None:
    said = texts(b"a", b"b", b"c", b"d")
    tensor = Tensor("BYTES", (), {})
    assert ITEMS.gather(said, 2, tensor, 6 * TEXT_BYTES).array.tolist() == [[b"a", b"b", b"c"], [b"d", b"", b""]]
    with pytest.raises(ValueError, match="lists of up to 3 items for 2 rows"):
        ITEMS.gather(said, 2, tensor, 6 * TEXT_BYTES - 1)


def test_a_row_without_a_list_of_items_has_no_list_of_what_they_became() -> None:
    numbers = Tensor("INT64", (), {})
    rows = SpaceRows(np.array([1, 1, 3]), np.array([0, 1, 0]), np.array([1, 2, 3]))
    found = rows.gather(SpaceValues(np.array([5, 6, 7])), 4, numbers, 1 << 20)
    assert found.rows is not None
    assert found.rows.tolist() == [1, 2, 3]
    assert found.array.tolist() == [[5, 6], [0, 0], [7, 0]]


@pytest.mark.parametrize("shape", [(1, 0), (2, 0), (2, 0, 3), (2, 3, 0), (0, 4)])
def test_lists_of_texts_without_an_item_open_no_rows(shape: tuple[int, ...]) -> None:
    rows, _ = open_rows(SpaceValues(np.empty(shape, object)), None)
    assert rows.count == 0
