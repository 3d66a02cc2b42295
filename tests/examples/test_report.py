import pytest

from examples.report import Answer, bars, batch_counts, label_table, percentile

METRICS = """\
# HELP shoal_proxy_batch_rows Rows per batch.
# TYPE shoal_proxy_batch_rows histogram
shoal_proxy_batch_rows_bucket{le="1.0"} 0.0
shoal_proxy_batch_rows_bucket{le="2.0"} 2.0
shoal_proxy_batch_rows_bucket{le="4.0"} 2.0
shoal_proxy_batch_rows_bucket{le="8.0"} 3.0
shoal_proxy_batch_rows_bucket{le="16.0"} 3.0
shoal_proxy_batch_rows_bucket{le="+Inf"} 4.0
shoal_proxy_batch_rows_count 4.0
shoal_proxy_batch_rows_sum 50.0
"""


def answer(picture: str, label: str = "tabby", probability: float = 0.5) -> Answer:
    return Answer(picture, label, probability, latency_s=0.01)


def test_batches_are_counted_per_bucket() -> None:
    assert batch_counts(METRICS) == {"2": 2, "3-4": 0, "5-8": 1, "9-16": 0, ">16": 1}


@pytest.mark.parametrize("metrics", ["", METRICS.replace("batch_rows", "other")])
def test_a_proxy_without_batches_gives_none(metrics: str) -> None:
    assert batch_counts(metrics) == {}
    assert bars({}) == []


def test_the_longest_bar_is_full_and_one_batch_is_still_seen() -> None:
    small, none, large = bars({"1": 1, "2": 0, "3-4": 1000})

    assert small.count("#") == 1
    assert none.count("#") == 0
    assert large.count("#") == 40
    assert large.endswith(" 1000")


def test_the_table_has_a_line_per_picture_in_the_order_sent() -> None:
    table = label_table([answer("cat", probability=0.391), answer("cup", "espresso"), answer("cat")])

    assert [line.split() for line in table[1:]] == [
        ["cat", "2", "tabby", "39%"],
        ["cup", "1", "espresso", "50%"],
    ]


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100)])
def test_percentiles_are_values_that_were_measured(share: float, expected: float) -> None:
    assert percentile(list(range(100, 0, -1)), share) == expected
