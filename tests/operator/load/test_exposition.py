import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_operator.autoscaler.law import Load
from shoal_operator.load.exposition import Reading, read_metrics, total_load

TEXT = """\
# HELP shoal_proxy_queue_rows Rows waiting.
# TYPE shoal_proxy_queue_rows gauge
shoal_proxy_queue_rows 12.0
# TYPE shoal_proxy_in_flight_rows gauge
shoal_proxy_in_flight_rows 32.0
# TYPE shoal_proxy_rows_total counter
shoal_proxy_rows_total 1e+06
"""


def test_rows_that_wait_and_run_are_added() -> None:
    assert read_metrics(TEXT) == Reading(rows=44)


@pytest.mark.parametrize(
    ("value", "expected"), [("1.0", True), ("0.0", False), ("0", False), ("NaN", None), ("0.5", None)]
)
def test_a_proxy_says_whether_it_can_meet_its_objective(value: str, expected: bool | None) -> None:
    text = f"{TEXT}shoal_proxy_objective_attainable {value}\n"

    assert read_metrics(text) == Reading(rows=44, attainable=expected)


def test_rows_of_all_pods_are_added() -> None:
    assert total_load([Reading(rows=7), Reading(rows=7)]) == Load(14, complete=True)


def test_a_pod_that_says_nothing_makes_the_load_incomplete() -> None:
    assert total_load([Reading(rows=7), Reading(attainable=True)]) == Load(7, complete=False)


def test_without_a_pod_that_says_there_is_no_load() -> None:
    assert total_load([]) is None
    assert total_load([Reading()]) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "shoal_proxy_queue_rows 12.0\n",
        "shoal_proxy_queue_rows twelve\nshoal_proxy_in_flight_rows 1\n",
        "shoal_proxy_queue_rows NaN\nshoal_proxy_in_flight_rows 1\n",
        "shoal_proxy_queue_rows +Inf\nshoal_proxy_in_flight_rows 1\n",
        "<html>shoal_proxy_queue_rows 12</html>",
    ],
)
def test_a_text_that_does_not_say_is_no_data(text: str) -> None:
    assert read_metrics(text) == Reading()


@given(st.text(alphabet='shoal_proxyqueinflgtrw 0123456789.{}="\n#', max_size=200))
def test_no_text_raises(text: str) -> None:
    read_metrics("shoal_proxy_queue_rows" + text)
