import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from shoal_runtime import TensorSpec
from shoal_runtime.startup.deviations import Deviation, Tolerance, deviation, violation
from shoal_schema.resource.runtime import PrecisionSpec

SCORES = TensorSpec("scores", "FP32", [-1, 3])
LENGTHS = TensorSpec("lengths", "FP32", [-1])
LABELS = TensorSpec("labels", "INT64", [-1])
TEXTS = TensorSpec("texts", "BYTES", [-1])
HALVES = TensorSpec("halves", "BF16", [-1, 2])


def found(spec: TensorSpec, reference: Any, other: Any, dtype: Any = np.float32) -> Deviation:
    return deviation(spec, [(np.asarray(reference, dtype), np.asarray(other, dtype))])


def test_errors_are_absolute_and_relative_to_the_largest_value() -> None:
    each = found(SCORES, [[4, 0, -8], [1, 2, 3]], [[4, 1, -8], [1, 2, 3]])

    assert (each.max_abs_error, each.max_rel_error, each.agreement, each.non_finite) == (1, 1 / 8, 1, 0)
    assert each.mean_abs_error == pytest.approx(1 / 6)


def test_agreement_is_the_share_of_rows_with_the_same_class() -> None:
    assert found(SCORES, [[1, 2, 3], [3, 2, 1]], [[1, 3, 2], [3, 2, 1]]).agreement == 0.5
    assert found(LENGTHS, [1, 2], [2, 1]).agreement is None


def test_classes_are_counted_along_rows_wherever_the_batch_dimension_is() -> None:
    turned = TensorSpec("scores", "FP32", [3, -1], batch_dim=1)

    assert found(turned, [[1, 3], [2, 2], [3, 1]], [[1, 3], [3, 2], [2, 1]]).agreement == 0.5


def test_integers_and_texts_are_equal_or_not() -> None:
    assert found(LABELS, [1, 2, 3, 4], [1, 2, 3, 5], np.int64) == Deviation("labels", agreement=0.75)
    assert found(TEXTS, [b"a", b"b"], [b"a", b"c"], object).agreement == 0.5


def test_bits_of_bfloat16_are_compared_as_numbers() -> None:
    one, two = 0x3F80, 0x4000

    assert found(HALVES, [[one, two]], [[one, one]], np.uint16).max_abs_error == 1


def test_equal_infinities_are_no_error_and_others_are_counted() -> None:
    reference = [[math.inf, -math.inf, math.nan], [1, math.inf, 3]]
    other = [[math.inf, -math.inf, math.nan], [math.nan, -math.inf, 3]]

    each = found(SCORES, reference, other)

    assert (each.non_finite, each.max_abs_error) == (2, 0)


def test_another_shape_is_stated() -> None:
    assert found(LENGTHS, [1, 2], [1]).changed_shape == "[1] instead of [2]"


def test_an_error_beside_zeros_only_is_infinite_relative_to_them() -> None:
    assert found(LENGTHS, [0, 0], [0, 1]).max_rel_error == math.inf


@pytest.mark.parametrize("spec", [SCORES, LABELS, TEXTS])
def test_outputs_without_rows_have_no_error(spec: TensorSpec) -> None:
    empty = np.zeros((0, 3) if spec is SCORES else 0, object if spec is TEXTS else np.float32)

    assert violation([deviation(spec, [(empty, empty)])], Tolerance(0, 0, 1)) == ""


NUMBERS = arrays.arrays(
    st.sampled_from([np.float16, np.float32, np.float64]),
    st.tuples(st.integers(0, 4), st.integers(1, 4)),
    elements=st.floats(width=16),
)


@given(NUMBERS)
def test_an_output_equals_itself(numbers: Any) -> None:
    spec = TensorSpec("y", "FP32", [-1, -1])

    assert violation([deviation(spec, [(numbers, numbers)])], Tolerance(0, 0, 1)) == ""


@given(st.data())
def test_deviations_are_never_nan_and_a_non_finite_number_is_never_within_a_tolerance(data: Any) -> None:
    reference = data.draw(NUMBERS)
    other = data.draw(arrays.arrays(reference.dtype, reference.shape, elements=st.floats(width=16)))
    each = deviation(TensorSpec("y", "FP32", [-1, -1]), [(reference, other), (other, reference)])

    figures = (each.max_abs_error, each.mean_abs_error, each.max_rel_error, each.agreement or 0.0)
    assert all(figure is not None and figure >= 0 for figure in figures)
    differ = np.isfinite(other) != np.isfinite(reference)
    assert not differ.any() or violation([each], Tolerance(max_abs_error=1e30)) != ""


@pytest.mark.parametrize(
    ("spec", "other", "limits", "fragment"),
    [
        pytest.param(LENGTHS, [1, 2.5], Tolerance(max_abs_error=0.4), "error 0.5", id="absolute"),
        pytest.param(LENGTHS, [1, 2.5], Tolerance(max_abs_error=1, max_rel_error=0.2), "relative", id="relative"),
        pytest.param(LENGTHS, [1, 2.5], Tolerance(min_agreement=0.9), "no limit applies", id="nothing to agree"),
        pytest.param(LENGTHS, [1, math.nan], Tolerance(max_abs_error=9), "NaN", id="NaN"),
        pytest.param(LABELS, [1, 3], Tolerance(max_abs_error=9), "agreement 0.5", id="labels must be equal"),
        pytest.param(LABELS, [1, 3], Tolerance(min_agreement=0.5), "", id="labels may differ"),
        pytest.param(LENGTHS, [1, 2.5], Tolerance(max_abs_error=0.5, min_agreement=1), "", id="within"),
    ],
)
def test_a_violation_names_output_and_limit(spec: TensorSpec, other: Any, limits: Tolerance, fragment: str) -> None:
    reason = violation([found(spec, [1, 2], other)], limits)

    assert fragment in reason
    assert bool(reason) == bool(fragment)


def test_a_tolerance_is_read_from_texts_and_is_none_without_limits() -> None:
    assert Tolerance.of(PrecisionSpec()) is None
    assert Tolerance.of(PrecisionSpec("1e-3", None, "1")) == Tolerance(0.001, None, 1.0)
