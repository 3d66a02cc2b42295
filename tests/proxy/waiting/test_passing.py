"""What is passed on: the caller's bytes, with its deadline reduced; and what is the connection's own, never."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.waiting.passing import (
    alive_document,
    answer_headers,
    asked_s,
    did_not_run,
    is_answer,
    is_liveness,
    request_headers,
)


def test_headers_are_passed_on_but_for_those_of_the_connection() -> None:
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
    ("value", "asks_s"),
    [(b"500", 0.5), (b"1e300", 1e297), *[(value, None) for value in (b"0", b"-1", b"soon", b"nan", b"inf")]],
)
def test_a_time_that_makes_no_sense_is_none_and_left_to_a_pod_to_refuse(value: bytes, asks_s: float | None) -> None:
    given = [(b"x-request-timeout-ms", value)]

    assert asked_s(given) == (asks_s and pytest.approx(asks_s))
    assert asked_s([]) is None
    assert asks_s or request_headers(given, 0, 1.0) == given


def test_of_two_times_the_last_counts_as_at_a_proxy() -> None:
    assert asked_s([(b"x-request-timeout-ms", b"5000"), (b"x-request-timeout-ms", b"1")]) == 0.001


def test_what_the_connection_names_as_its_own_is_not_passed_on_but_for_the_host() -> None:
    named = (b"connection", b"x-a, HOST ,content-length")

    assert request_headers([(b"host", b"a"), named, (b"x-a", b"1"), (b"content-length", b"0")], 0, 0.0) == [
        (b"host", b"a"), (b"content-length", b"0"),
    ]  # fmt: skip
    assert answer_headers(200, [(b"Connection", b"X-A"), (b"x-a", b"1")]) == [(b"connection", b"close")]


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
def test_an_answer_has_a_status_of_http_and_no_controls(status: int, value: bytes, is_one: bool) -> None:
    assert is_answer(status, [(b"x-a", value)]) is is_one


def test_an_answer_ends_the_connection_so_that_the_next_request_goes_to_the_pods() -> None:
    answer = [(b"Content-Type", b"text/plain"), (b"Connection", b"keep-alive"), (b"Date", b"now"), (b"x-a", b"1")]

    assert answer_headers(200, answer) == [(b"content-type", b"text/plain"), (b"x-a", b"1"), (b"connection", b"close")]


def test_only_a_refusal_that_says_so_did_not_run() -> None:
    no, maybe = (b"x-shoal-executed", b"no"), (b"X-Shoal-Executed", b"maybe")

    assert did_not_run(503, [no])
    assert not did_not_run(503, [maybe])
    assert not did_not_run(503, [])
    assert not did_not_run(504, [no])


@pytest.mark.parametrize("path", ["/", "/ping", "/v2/health/live", "/v2/health/ready"])
def test_who_asks_whether_somebody_is_here_wakes_nobody(path: str) -> None:
    assert is_liveness(path)
    assert alive_document(path).startswith(b"{")


@given(st.text())
def test_all_else_wakes(path: str) -> None:
    assert not is_liveness(f"/v2/models/{path}")
