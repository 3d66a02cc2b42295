"""Ids of requests that an activator has accepted."""

from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.asynchronous.ids import RANDOM_BYTES, activator_id, may_be_held


@given(st.floats(0, 2**33), st.binary(min_size=RANDOM_BYTES, max_size=RANDOM_BYTES))
def test_a_request_may_be_held_until_its_deadline(deadline_s: float, randomness: bytes) -> None:
    job_id = activator_id(deadline_s, randomness)
    assert len(job_id) == 32
    assert may_be_held(job_id, min(deadline_s, 2**32 - 2))
    assert not may_be_held(job_id, deadline_s + 1)


def test_other_ids_are_of_replicas() -> None:
    for job_id in ("", "f" * 31, "f" * 33, "F" * 32, "g" * 32, "f" * 32 + "-12345678", "f" * 32 + "\n", "٣" * 32):
        assert not may_be_held(job_id, 0.0)
