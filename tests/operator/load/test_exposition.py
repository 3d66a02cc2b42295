import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_operator.load.exposition import rows_held

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
    assert rows_held(TEXT) == 44


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
    assert rows_held(text) is None


@given(st.text(alphabet='shoal_proxyqueinflgtrw 0123456789.{}="\n#', max_size=200))
def test_no_text_raises(text: str) -> None:
    rows_held("shoal_proxy_queue_rows" + text)
