"""Forwarded headers: the client's with the deadline reduced, without hop-by-hop headers."""

import pytest

from shoal_proxy.activator.headers import (
    did_not_run,
    is_response,
    request_headers,
    requested_timeout_s,
    response_headers,
)


def test_all_headers_but_hop_by_hop_ones_are_forwarded() -> None:
    given_headers = [
        (b"host", b"adder.example"), (b"connection", b"keep-alive"), (b"expect", b"100-continue"), (b"x-tenant", b"a"),
        (b"x-tenant", b"b"), (b"transfer-encoding", b"chunked"), (b"content-type", b"application/json"),
    ]  # fmt: skip

    assert request_headers(given_headers, 7, 0.0) == [
        (b"host", b"adder.example"), (b"x-tenant", b"a"), (b"x-tenant", b"b"), (b"content-type", b"application/json"),
        (b"content-length", b"7"),
    ]  # fmt: skip


def test_a_request_without_a_body_gets_no_length() -> None:
    assert request_headers([(b"host", b"a")], 0, 0.0) == [(b"host", b"a")]
    assert request_headers([(b"content-length", b"0")], 0, 0.0) == [(b"content-length", b"0")]


@pytest.mark.parametrize(
    ("value", "waited_s", "left"),
    [(b"5000", 1.5, b"3500"), (b"5000", 9, b"1"), (b"2.5e3", 1, b"1500"), (b"soon", 1, b"soon"), (b"nan", 1, b"nan")],
)
def test_the_deadline_is_reduced_by_the_time_that_has_passed(value: bytes, waited_s: float, left: bytes) -> None:
    assert request_headers([(b"x-request-timeout-ms", value)], 0, waited_s) == [(b"x-request-timeout-ms", left)]


@pytest.mark.parametrize(
    ("value", "requests_s"),
    [(b"500", 0.5), (b"1e300", 1e297), *[(value, None) for value in (b"0", b"-1", b"soon", b"nan", b"inf")]],
)
def test_a_time_that_makes_no_sense_is_none_and_left_to_a_pod_to_reject(value: bytes, requests_s: float | None) -> None:
    given = [(b"x-request-timeout-ms", value)]

    assert requested_timeout_s(given) == (requests_s and pytest.approx(requests_s))
    assert requested_timeout_s([]) is None
    assert requests_s or request_headers(given, 0, 1.0) == given


def test_of_two_times_the_last_counts_as_at_a_proxy() -> None:
    assert requested_timeout_s([(b"x-request-timeout-ms", b"5000"), (b"x-request-timeout-ms", b"1")]) == 0.001


def test_headers_named_by_connection_are_not_forwarded_but_the_host_is() -> None:
    named = (b"connection", b"x-a, HOST ,content-length")

    assert request_headers([(b"host", b"a"), named, (b"x-a", b"1"), (b"content-length", b"0")], 0, 0.0) == [
        (b"host", b"a"), (b"content-length", b"0"),
    ]  # fmt: skip
    assert response_headers(200, [(b"Connection", b"X-A"), (b"x-a", b"1")]) == [(b"connection", b"close")]


@pytest.mark.parametrize(
    ("status", "value", "is_one"),
    [
        (200, b"a\t\xff", True),
        (599, b"", True),
        (101, b"", False),
        (600, b"", False),
        (999, b"", False),
        (200, b"\x01", False),
    ],
)
def test_a_response_has_a_valid_status_and_no_control_characters(status: int, value: bytes, is_one: bool) -> None:
    assert is_response(status, [(b"x-a", value)]) is is_one


def test_a_response_closes_the_connection() -> None:
    answer = [(b"Content-Type", b"text/plain"), (b"Connection", b"keep-alive"), (b"Date", b"now"), (b"x-a", b"1")]

    assert response_headers(200, answer) == [
        (b"content-type", b"text/plain"),
        (b"x-a", b"1"),
        (b"connection", b"close"),
    ]


def test_only_a_503_marked_as_not_executed_did_not_run() -> None:
    no, maybe = (b"x-shoal-executed", b"no"), (b"X-Shoal-Executed", b"maybe")

    assert did_not_run(503, [no])
    assert not did_not_run(503, [maybe])
    assert not did_not_run(503, [])
    assert not did_not_run(504, [no])
