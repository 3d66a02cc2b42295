"""Rates between two batches."""

import pytest

from benchmarks.steady import Moment, between


def test_a_window_counts_whole_batches_and_what_they_cost() -> None:
    first = Moment(10.0, {"count": 4, "sum": 60}, {"proxy": 1.0, "runtime": 5.0})
    last = Moment(12.5, {"count": 9, "sum": 140}, {"proxy": 1.2, "runtime": 9.0})

    assert between(first, last) == pytest.approx(
        {"rows_per_s": 32, "mean_batch_rows": 16, "proxy_cpu_ms_per_row": 2.5, "runtime_cpu_ms_per_row": 50}
    )
