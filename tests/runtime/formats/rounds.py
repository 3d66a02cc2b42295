"""Comparison of a model's results with those of its library, at all batch sizes."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.runtime.fakes import Bench

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

ROWS = 64
SIZES = (1, 2, 3, 7, 8, 16, 31, 32, 33, 63, ROWS)


def assert_answers_as(
    model: "Model", inputs: Mapping[str, Any], predict: Callable[[int], Mapping[str, Any]], *, tolerance: float = 1e-6
) -> None:
    """Run batches of up to 64 rows, and compare each result with the library's for the same rows.

    Then compare what each row is answered alone and among others: equal to ``tolerance``, as the order of additions
    may differ.

    Args:
        model: loaded, with batches of up to 64.
        inputs: 64 rows, as they come over the wire.
        predict: the library's outputs for so many of the first rows.
        tolerance: relative.
    """
    with Bench.around(model) as bench:
        for rows in SIZES:
            outputs = bench.run({name: array[:rows] for name, array in inputs.items()}).outputs
            for name, expected in predict(rows).items():
                wanted = np.asarray(expected)
                if wanted.dtype.kind in "OU":
                    assert [each.decode() for each in outputs[name]] == wanted.tolist()
                else:
                    np.testing.assert_array_equal(outputs[name], wanted)
        together = outputs
        for row in range(0, ROWS, 3):
            alone = bench.run({name: array[row : row + 1] for name, array in inputs.items()}).outputs
            for name, array in alone.items():
                _assert_close(array, together[name][row : row + 1], tolerance)


def _assert_close(alone: Any, among: Any, tolerance: float) -> None:
    if alone.dtype.kind == "f":
        np.testing.assert_allclose(alone, among, rtol=tolerance, atol=tolerance)
    else:
        assert alone.tolist() == among.tolist()
