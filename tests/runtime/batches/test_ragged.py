"""Padding of rows of one output that differ along `unpad_axis`."""

from typing import Any

import numpy as np
import pytest

from shoal_runtime.batches.ragged import own_lengths, pad_ragged
from shoal_runtime.signature.spec import TensorSpec
from shoal_runtime.signature.tensors import Signature

MASKED = TensorSpec("ids", "INT64", [-1, -1], pad_axis=1, pad_mask="mask")
PLAIN = TensorSpec("plain", "INT64", [-1, -1], pad_axis=1)
MASK = TensorSpec("mask", "INT64", [-1, -1])
ACROSS = TensorSpec("mask", "INT64", [-1, -1], batch_dim=1)
REAL = np.array([[1, 1, 0], [1, 0, 0]])


def tags(
    source: str | None = "ids", shape: tuple[int, ...] = (-1, -1), axis: int = 1, batch_dim: int = 0
) -> TensorSpec:
    return TensorSpec("tags", "INT64", list(shape), unpad_axis=axis, unpad_input=source, batch_dim=batch_dim)


def lengths(spec: TensorSpec, declared: TensorSpec = MASK, **inputs: Any) -> list[int] | None:
    found = own_lengths(spec, inputs, Signature((MASKED, PLAIN, declared), (spec,), 8))
    return None if found is None else found.tolist()


def test_the_length_of_each_row_is_that_of_its_mask() -> None:
    assert lengths(tags(), mask=REAL) == [2, 1]
    assert lengths(tags(), ACROSS, mask=REAL.T) == [2, 1]
    assert lengths(tags(), mask=REAL * 7) == [2, 1], "whatever number marks it"


def test_without_a_mask_lengths_are_unknown() -> None:
    assert lengths(TensorSpec("tags", "INT64", [-1, -1]), mask=REAL) is None
    assert lengths(tags("plain"), mask=REAL) is None
    assert lengths(tags("mask"), mask=REAL) is None
    assert lengths(tags("strange"), mask=REAL) is None
    assert lengths(tags()) is None, "the mask was not sent"


def padded(spec: TensorSpec, rows: list[Any], own: list[int]) -> Any:
    made = pad_ragged([np.array(row) for row in rows], spec, np.array(own))
    return None if made is None else [row.tolist() for row in made]


PAIRS = [[[1, 2]], [[3, 4], [5, 6]]]
FILLED = [[[1, 2], [0, 0]], [[3, 4], [5, 6]]]


@pytest.mark.parametrize(
    ("spec", "rows", "own", "expected"),
    [
        pytest.param(tags(), [[1], [2, 3, 4]], [1, 1], [[1, 0, 0], [2, 3, 4]], id="to the longest"),
        pytest.param(tags(), [[1], [2, 3]], [1, 2], [[1, 0], [2, 3]], id="as long as what is left"),
        pytest.param(tags(), [[1], [2, 3]], [2, 2], None, id="shorter than what is left"),
        pytest.param(tags(shape=(-1, -1, 2)), PAIRS, [1, 1], FILLED, id="along the first axis"),
        pytest.param(
            tags(shape=(-1, 2, -1), axis=2),
            [[[1], [2]], [[3, 4], [5, 6]]],
            [1, 2],
            [[[1, 0], [2, 0]], [[3, 4], [5, 6]]],
            id="along the second",
        ),
        pytest.param(tags(shape=(-1, -1, 2), axis=0, batch_dim=1), PAIRS, [1, 1], FILLED, id="before the rows' own"),
        pytest.param(tags(shape=(-1, -1, -1)), [[[1, 2]], [[3], [4]]], [1, 1], None, id="they differ otherwise"),
        pytest.param(TensorSpec("tags", "INT64", [-1, -1]), [[1], [2, 3]], [1, 2], None, id="nothing is cut"),
    ],
)
def test_rows_are_padded_only_where_the_cut_removes_the_padding(
    spec: TensorSpec, rows: list[Any], own: list[int], expected: Any
) -> None:
    assert padded(spec, rows, own) == expected


def test_bytes_are_padded_with_empty_elements() -> None:
    made = pad_ragged([np.array([b"a"], object), np.array([b"b", b"c"], object)], tags(), np.array([1, 1]))

    assert made is not None
    assert [row.tolist() for row in made] == [[b"a", b""], [b"b", b"c"]]
