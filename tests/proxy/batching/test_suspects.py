from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as arrays

from shoal_proxy.batching.pending import PendingRequest
from shoal_proxy.batching.recovery import ALONE_S, OFFENCES, SuspectPayloads, payload_digest
from tests.proxy.signatures import request


def floats(*values: float) -> PendingRequest:
    return request({"x": np.array([values], np.float32)})


def words(*values: bytes) -> PendingRequest:
    return request({"x": np.array(values, object)})


def offender(pending: PendingRequest, at_s: float = 0.0) -> SuspectPayloads:
    known = SuspectPayloads()
    for _ in range(OFFENCES):
        known.failed(pending, at_s)
    return known


@pytest.mark.parametrize("make", [lambda: floats(1, 2, 3), lambda: words(b"a", b"bc" * 1000)])
def test_a_payload_that_failed_twice_runs_alone_until_its_time_is_over(make: Callable[[], PendingRequest]) -> None:
    known = SuspectPayloads()
    known.failed(make(), 0.0)
    assert not known.must_run_alone(make(), 0.0), "once may be an accident"

    known.failed(make(), 10.0)

    assert known.must_run_alone(make(), 309.9)
    assert not known.must_run_alone(make(), 310.0)


@pytest.mark.parametrize(
    ("offence", "innocent"),
    [
        pytest.param(floats(*range(100)), floats(*range(99), 0.5), id="the last value differs"),
        pytest.param(words(b"x" * 99 + b"y"), words(b"x" * 100), id="the last byte differs"),
        pytest.param(words(b"ab", b"c"), words(b"a", b"bc"), id="the same bytes, cut elsewhere"),
        pytest.param(floats(1, 2), request({"z": np.array([[1, 2]], np.float32)}), id="another name"),
        pytest.param(floats(1, 2), request({"x": np.array([[1, 2]], np.float32).view(np.int32)}), id="another type"),
    ],
)
def test_similar_payloads_still_share_batches(offence: PendingRequest, innocent: PendingRequest) -> None:
    assert not offender(offence).must_run_alone(innocent, 1.0)


@given(arrays.arrays(np.int16, st.tuples(st.integers(1, 3), st.integers(0, 3)), elements=st.integers(0, 2)), st.data())
def test_equal_payloads_have_equal_digests_and_others_do_not(x: np.ndarray, data: st.DataObject) -> None:
    other = data.draw(arrays.arrays(np.int16, x.shape, elements=st.integers(0, 2)))

    assert payload_digest(request({"x": x})) == payload_digest(request({"x": x.copy()}))
    assert (payload_digest(request({"x": x})) == payload_digest(request({"x": other}))) == (x == other).all()


def test_rows_padded_by_the_proxy_differ_from_rows_that_hold_the_padding_value() -> None:
    ragged, full = floats(1, 2, 0), floats(1, 2, 0)
    ragged.lengths, full.lengths = {"x": [2]}, {"x": [3]}

    assert payload_digest(ragged) != payload_digest(full)


def test_only_so_many_are_remembered_and_the_oldest_are_forgotten_first() -> None:
    known = SuspectPayloads()
    for number in range(5000):
        for _ in range(OFFENCES):
            known.failed(floats(number), float(number) / 100)

    assert len(known._failed) == len(known._traits) <= 2000
    assert not known.must_run_alone(floats(0), 51.0)
    assert known.must_run_alone(floats(4999), 51.0)


def test_nothing_is_left_of_those_whose_time_is_over() -> None:
    known = SuspectPayloads()
    for number in range(10):
        known.failed(floats(number), float(number))

    known.forget_old(ALONE_S + 4)
    assert len(known._failed) == len(known._traits) == 5
    known.forget_old(2 * ALONE_S)
    assert (len(known._failed), len(known._traits)) == (0, 0)


def test_offending_again_starts_the_time_anew() -> None:
    known = offender(floats(1))
    known.failed(floats(2), 1.0)
    known.failed(floats(1), 100.0)

    known.forget_old(ALONE_S + 50)

    assert known.must_run_alone(floats(1), ALONE_S + 50)
