import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_runtime.startup.deviations import Deviation, Tolerance
from shoal_runtime.startup.precision_choice import (
    MARGIN,
    MAX_TURNS,
    Choice,
    Measurement,
    choose,
    more_turns,
)
from shoal_schema.resource.runtime import Precision

LIMITS = Tolerance(max_abs_error=0.1)


def measured(precision: Precision, speed: float, error: float = 0.0) -> Measurement:
    return Measurement(
        precision, seconds=[1.0, 1.0, 9.0], reference_seconds=[speed] * 3, deviations=[Deviation("y", error, error, 0)]
    )


def choice(*measurements: Measurement) -> Choice:
    return choose(measurements, LIMITS)


def test_the_fastest_within_the_tolerance_is_chosen() -> None:
    found = choice(measured(Precision.BFLOAT16, 2.0), measured(Precision.FLOAT16, 3.0), measured(Precision.INT8, 9, 1))

    assert (found.precision, found.speed) == (Precision.FLOAT16, 3.0)
    assert found.rejected.keys() == {Precision.BFLOAT16, Precision.INT8}


@pytest.mark.parametrize("speed", [0.5, 1.0, 1.09])
def test_a_speed_within_the_margin_changes_nothing(speed: float) -> None:
    assert choice(measured(Precision.BFLOAT16, speed)).precision is Precision.FLOAT32
    both = choice(measured(Precision.FLOAT16, 2 * speed), measured(Precision.BFLOAT16, 2.0))
    assert both.precision is Precision.BFLOAT16


def test_a_failure_is_rejected_with_its_reason() -> None:
    assert choice(Measurement(Precision.INT8, "no torchao")).rejected == {Precision.INT8: "no torchao"}


def test_without_measurements_it_is_float32() -> None:
    assert choice() == Choice(Precision.FLOAT32, 1.0, {})


@given(
    st.dictionaries(st.sampled_from(list(Precision)), st.tuples(st.floats(0.01, 100), st.sampled_from([0.0, 0.1, 0.2])))
)
def test_a_choice_is_within_the_tolerance_and_every_other_has_a_reason(
    speeds: dict[Precision, tuple[float, float]],
) -> None:
    found = choice(*(measured(precision, *each) for precision, each in speeds.items()))

    assert found.rejected.keys() | {found.precision, Precision.FLOAT32} == speeds.keys() | {Precision.FLOAT32}
    assert found.precision not in found.rejected
    if found.precision is not Precision.FLOAT32:
        assert found.speed >= MARGIN
        assert speeds[found.precision][1] <= 0.1


def test_every_batch_is_timed_and_turns_end() -> None:
    assert more_turns(7, 8, 1e9, 2.0)
    assert not more_turns(8, 8, 2.0, 2.0)
    assert more_turns(8, 8, 1.0, 2.0)
    assert not more_turns(MAX_TURNS, 1, 0.0, 2.0)
