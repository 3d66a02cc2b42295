"""The header Prefer: which spellings request a later result (RFC 7240)."""

import pytest

from shoal_proxy.asynchronous.acceptance import prefers_later_result, queries_later_result
from tests import plain
from tests.calls import V2_PATH, row, v2_body
from tests.proxy.asynchronous.requests import asynchronous_proxy


@pytest.mark.parametrize(
    "prefer",
    [
        b"respond-async",
        b"Respond-ASYNC",
        b" \trespond-async\t ",
        b"respond-async; foo",
        b'respond-async ;foo="a,b";',
        b"respond-async;",
        b'respond-async=""',
        b'respond-async = ""; foo=bar',
        b"respond-async, wait=10",
        b"wait=10,respond-async",
        b",, respond-async ,",
        b'foo="a\\"b, c", respond-async',
        b"respond-async, respond-async=never",
    ],
)
def test_a_preference_for_a_later_result(prefer: bytes) -> None:
    assert prefers_later_result(prefer)


@pytest.mark.parametrize(
    "prefer",
    [
        b"",
        b"wait=10",
        b"respond-asynchronous",
        b"x-respond-async",
        b"respond-async=never",
        b"respond-async=never, respond-async",
        b'respond-async="a;b"',
        b"foo=respond-async",
        b"foo; respond-async",
        b'foo="a, respond-async, b"',
        b'foo="a\\", respond-async, b"',
        b'"respond-async"',
        b"respond async",
    ],
)
def test_another_preference(prefer: bytes) -> None:
    assert not prefers_later_result(prefer)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (b"async=true", True),
        (b"a=b&async=True", True),
        (b"%61sync=%74rue", True),
        (b"async=false", False),
        (b"async", False),
        (b"basync=true", False),
        (b"async=true%26", False),
        (b"%ff=%fe&async=%ff", False),
        (b"\xff&async=true", True),
        (b"", False),
    ],
)
def test_a_query_for_a_later_result(query: bytes, *, expected: bool) -> None:
    assert queries_later_result(query) == expected


@pytest.mark.parametrize(
    "values", [("respond-async", "wait=10"), ("wait=10", "respond-async; foo"), ("a", "b", "Respond-Async")]
)
def test_preferences_of_several_lines_all_count(values: tuple[str, ...]) -> None:
    with asynchronous_proxy() as running:
        headers = [("prefer", value) for value in values]
        # A second request of the same head could be read from the cache of heads.
        for _ in range(2):
            response = plain.post(running.url + V2_PATH, json=v2_body([row(1.0)]), headers=headers)
            assert response.status_code == 202, response.text
