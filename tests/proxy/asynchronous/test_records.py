"""Stored forms of requests and results, and leases of replicas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.asynchronous.jobs import Job, JobRequest
from shoal_proxy.asynchronous.leases import LEASE_S, Leases
from shoal_proxy.asynchronous.records import (
    DELETED,
    UnreadableRecord,
    decode_request,
    decode_result,
    encode_request,
    encode_result,
)
from shoal_proxy.codecs.base import HttpResponse

HEADERS = st.dictionaries(st.binary(min_size=1, max_size=9), st.binary(max_size=9), max_size=3)


@given(HEADERS, st.binary(max_size=99), st.text(max_size=9), st.floats(0, 1e9), st.integers(0, 9))
def test_a_request_is_read_as_it_was_written(
    headers: dict[bytes, bytes], body: bytes, owner: str, now_s: float, level: int
) -> None:
    request = JobRequest("v2", headers, body, "https://example.com/")
    job = Job("id", request, rows=3, accepted_s=now_s, deadline_s=now_s + 60, level=level, owner=owner)
    # Another process, whose monotonic clock began 1000 s later.
    read = decode_request("id", encode_request(job, 5e8), 5e8 + 1000)
    assert read.request is not None
    assert (read.request.headers, read.request.body) == (headers, body)
    assert (read.request.protocol, read.request.callback) == ("v2", "https://example.com/")
    assert (read.owner, read.rows, read.level) == (owner, 3, level)
    assert read.deadline_s == pytest.approx(now_s + 60 - 1000, abs=1e-3)


@given(st.text(max_size=9), st.integers(100, 599), st.lists(st.binary(max_size=99)), st.binary(max_size=99))
def test_a_result_is_read_as_it_was_written(owner: str, status: int, body: list[bytes], lines: bytes) -> None:
    read = decode_result(encode_result(owner, HttpResponse(status, body, b"text/plain", lines)))
    assert read.owner == owner
    assert (read.response.status, b"".join(read.response.body)) == (status, b"".join(body))
    assert (read.response.content_type, read.response.lines) == (b"text/plain", lines)
    assert not read.is_deleted


def test_a_deleted_result_is_recognized() -> None:
    assert decode_result(encode_result("", HttpResponse(DELETED, ()))).is_deleted


@pytest.mark.parametrize(
    "record", [b"", b"\n", b"{}\n", b'{"owner": 1}\nbody', b"\xff\n", encode_result("", HttpResponse(200, ()))[:-1]]
)
def test_another_object_is_no_record(record: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        decode_result(record)


def test_a_lease_ends_when_it_has_not_changed_for_its_time() -> None:
    leases = Leases("pod-1.new")
    leases.observe({"pod-2.a": "1", "pod-1.new": "1"}, 0.0)
    assert leases.is_alive("pod-2.a", LEASE_S - 1)
    leases.observe({"pod-2.a": "2"}, LEASE_S - 1)
    assert leases.is_alive("pod-2.a", LEASE_S + 1)
    leases.observe({"pod-2.a": "2"}, 2 * LEASE_S)
    assert not leases.is_alive("pod-2.a", 2 * LEASE_S)
    leases.observe({}, 2 * LEASE_S)
    assert not leases.is_alive("pod-2.a", 0.0)


def test_this_process_is_alive_and_earlier_ones_of_its_replica_are_not() -> None:
    leases = Leases("pod-1.new")
    leases.observe({"pod-1.old": "1", "pod-1.x.old": "1"}, 0.0)
    assert leases.is_alive("pod-1.new", 1e9)
    assert not leases.is_alive("pod-1.old", 0.0)
    assert leases.is_alive("pod-1.x.old", 0.0)
