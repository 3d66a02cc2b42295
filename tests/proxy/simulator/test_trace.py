import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_proxy.simulator.trace import HEADER, TraceEntry, TraceError, read_trace

entries = st.builds(
    TraceEntry,
    st.integers(0, 10**9).map(lambda microseconds: microseconds / 1_000_000),
    st.integers(1, 1000),
    st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=8),
    st.none() | st.integers(1, 10_000).map(float),
)


@given(st.lists(entries, min_size=1))
def test_what_is_written_is_read_again(written: list[TraceEntry]) -> None:
    lines = [HEADER, *(entry.line() for entry in written)]

    assert read_trace(lines) == sorted(written, key=lambda entry: entry.arrived_s)


def test_only_the_time_of_arrival_has_to_be_there() -> None:
    assert read_trace(["arrived_s", "0.5", "0.25", ""]) == [TraceEntry(0.25), TraceEntry(0.5)]


def test_columns_may_come_in_any_order() -> None:
    assert read_trace(["rows,deadline_ms,arrived_s", "3,,1", "1,20.5,2"]) == [
        TraceEntry(1.0, 3),
        TraceEntry(2.0, 1, "", 20.5),
    ]


def test_a_deadline_of_its_own_counts_for_a_request() -> None:
    own, service = TraceEntry(1.0, deadline_ms=20.0).request(0.05), TraceEntry(1.0).request(0.05)

    assert own.soft_deadline_s == pytest.approx(1.02)
    assert own.own
    assert service.soft_deadline_s == pytest.approx(1.05)
    assert not service.own


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        pytest.param([], "line 1 must name the columns", id="empty"),
        pytest.param(["0.1,1"], "line 1: .*'0.1'", id="no header"),
        pytest.param(["arrived_s,rows,rows"], "column rows .*twice", id="twice"),
        pytest.param(["rows,shape", "1,"], "line 1 .*arrived_s", id="no times"),
        pytest.param([HEADER], "no arrivals", id="no lines"),
        pytest.param(["arrived_s,rows", "0.1"], "line 2 has 1 cells", id="short line"),
        pytest.param(["arrived_s", "soon"], "line 2, column arrived_s: 'soon' is not a number", id="no time"),
        pytest.param(["arrived_s", "nan"], "line 2, column arrived_s", id="not a number"),
        pytest.param(["arrived_s", "inf"], "line 2, column arrived_s", id="never"),
        pytest.param(["arrived_s,rows", "0,1", "1,0"], "line 3, column rows: '0'", id="no rows"),
        pytest.param(["arrived_s,rows", "0,262145"], "'262145' .*262144", id="many rows"),
        pytest.param(["arrived_s,rows", "0,1.5"], "line 2, column rows", id="half a row"),
        pytest.param(["arrived_s,deadline_ms", "0,-5"], "line 2, column deadline_ms", id="due before it came"),
        pytest.param(["arrived_s", '"0'], "is not CSV", id="open quote"),
    ],
)
def test_a_malformed_trace_is_rejected_by_line_and_column(lines: list[str], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read_trace(lines)
