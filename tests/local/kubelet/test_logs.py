from datetime import UTC, datetime

import pytest

from shoal_local.kubelet.logs import LogQuery, format_lines

NOW = datetime(2026, 1, 1, 12, 0, 10, tzinfo=UTC)
LINES = [
    b"2026-01-01T12:00:00.000000001Z stdout F one two\n",
    b"2026-01-01T12:00:05.000000001Z stderr P thr\n",
    b"2026-01-01T12:00:05.000000002Z stderr F ee\n",
]


def read(**query: str) -> bytes:
    return b"".join(format_lines(LINES, LogQuery.of(query, NOW)))


def test_lines_are_shown_as_they_were_written() -> None:
    assert read() == b"one two\nthree\n"


def test_timestamps_come_first_when_asked_for() -> None:
    assert read(timestamps="true").startswith(b"2026-01-01T12:00:00.000000001Z one two\n")


@pytest.mark.parametrize("query", [{"sinceSeconds": "7"}, {"sinceTime": "2026-01-01T12:00:03Z"}])
def test_older_lines_are_left_out(query: dict[str, str]) -> None:
    assert read(**query) == b"three\n"


@pytest.mark.parametrize("query", [{"tailLines": "-1"}, {"sinceTime": "now"}, {"limitBytes": "x"}])
def test_a_query_that_means_nothing_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(query))):
        read(**query)
