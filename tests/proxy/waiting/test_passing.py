"""What is passed on: the caller's bytes, with its deadline reduced; and what is the connection's own, never."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.waiting.passing import (
    alive_document,
    answer_headers,
    did_not_run,
    is_liveness,
    request_headers,
    timeout_s,
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
    ("value", "waits_s"),
    [(b"500", 0.5), (b"0", 60), (b"-1", 60), (b"soon", 60), (b"nan", 60), (b"1e300", 3600), (b"inf", 3600)],
)
def test_who_names_no_time_that_makes_sense_waits_as_long_as_the_service_says(value: bytes, waits_s: float) -> None:
    assert timeout_s([(b"x-request-timeout-ms", value)], 60) == waits_s
    assert timeout_s([], 60) == 60


def test_an_answer_ends_the_connection_so_that_the_next_request_goes_to_the_pods() -> None:
    answer = [(b"Content-Type", b"text/plain"), (b"Connection", b"keep-alive"), (b"Date", b"now"), (b"x-a", b"1")]

    assert answer_headers(answer) == [(b"content-type", b"text/plain"), (b"x-a", b"1"), (b"connection", b"close")]


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
