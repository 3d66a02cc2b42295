import hypothesis.strategies as st
import pytest
from hypothesis import given
from prometheus_client.parser import text_string_to_metric_families

from shoal_proxy.access.control import AccessControl
from shoal_proxy.access.limits import ClientLimits
from shoal_proxy.batching.pending import Delivery, Outcome, PendingRequest, RequestResult
from shoal_proxy.errors import Draining, ModelFailed, RowsFailed
from shoal_proxy.observe.metrics import ROWS, SECONDS, Histogram, Metrics
from shoal_schema.interfaces.metrics import (
    ALL,
    COALESCED_ROWS,
    ROW_CHECK_SECONDS,
    ROW_VIOLATIONS,
    ROWS_CHECKED,
    ROWS_SUSPECTED,
    RUNTIME_LOSSES,
    MetricKind,
    RejectionReason,
)
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.row_errors import RowError

ROLLOUT = [metric for metric in ALL if metric.family.startswith("shoal_proxy_rollout_")]
READ = (COALESCED_ROWS, RUNTIME_LOSSES, ROWS_CHECKED, ROWS_SUSPECTED, ROW_VIOLATIONS, ROW_CHECK_SECONDS)
"""Counters that their owners keep."""


def busy() -> Metrics:
    metrics = Metrics()
    metrics.requests["v2", 200] += 3
    metrics.rejections["queue_rows"] += 2
    metrics.batch_rows.observe(5)
    metrics.rows = 5
    metrics.access_control = AccessControl(ClientLimits({}, {}))
    metrics.step_seconds["first"].observe(0.1)
    metrics.step_failures["first"] += 1
    metrics.read_rollout = lambda: {metric: {("stable",): 1} for metric in ROLLOUT}
    metrics.read = {metric: lambda: 7 for metric in ALL if metric.kind is MetricKind.GAUGE or metric in READ}
    return metrics


def families(metrics: Metrics) -> dict[str, str]:
    """Return names as they are scraped, with their types."""
    parsed = text_string_to_metric_families(metrics.text().decode())
    return {
        name: family.type
        for family in parsed
        for name in [f"{family.name}_total" if family.type == "counter" else family.name]
    }


def test_what_is_exposed_is_what_is_declared() -> None:
    assert families(busy()) == {metric.name: metric.kind for metric in ALL}


def test_every_reason_of_a_rejection_is_there_from_the_start_so_that_the_first_one_is_an_increase() -> None:
    families = {family.name: family for family in text_string_to_metric_families(Metrics().text().decode())}

    shown = {sample.labels["reason"]: sample.value for sample in families["shoal_proxy_rejections"].samples}
    assert shown == dict.fromkeys(RejectionReason, 0)


def delivery(outcome: Outcome, *, rows: int = 1, arrived_s: float = 10.0, soft_deadline_s: float = 11.0) -> Delivery:
    inputs: dict[str, Array] = {}
    pending = PendingRequest(
        inputs=inputs,
        rows=rows,
        size_bytes=0,
        arrived_s=arrived_s,
        deadline_s=99,
        soft_deadline_s=soft_deadline_s,
        deliver=print,
    )
    return pending, outcome


def test_a_response_counts_with_its_time_and_a_late_one_as_late() -> None:
    metrics, answer = Metrics(), RequestResult({}, {})

    metrics.returned([delivery(answer), delivery(answer, soft_deadline_s=10.1)], now_s=10.2)

    assert metrics.request_seconds.total == pytest.approx(0.4)
    assert metrics.late_answers == 1
    assert metrics.failed_rows == 0


def test_only_rows_that_the_model_failed_are_counted() -> None:
    metrics = Metrics()
    some = RowsFailed([RowError(0, 500, "division by zero"), RowError(1, 400, "not a picture")])

    metrics.returned(
        [delivery(some, rows=3), delivery(ModelFailed("it raised"), rows=4), delivery(Draining("going"), rows=8)], 12.0
    )

    assert metrics.failed_rows == 1 + 4
    assert sum(metrics.request_seconds.counts) == 0


def test_values_and_labels_come_through() -> None:
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(busy().text().decode())
        for sample in family.samples
    }

    assert samples["shoal_proxy_requests_total", "v2", "200"] == 3
    assert samples["shoal_proxy_rejections_total", "queue_rows"] == 2
    assert samples["shoal_proxy_queue_rows",] == 7
    assert samples["shoal_proxy_rows_total",] == 5
    assert samples["shoal_proxy_batch_rows_bucket", "4.0"] == 0
    assert samples["shoal_proxy_batch_rows_bucket", "8.0"] == 1
    assert samples["shoal_proxy_batch_rows_sum",] == 5


@pytest.mark.parametrize("bounds", [SECONDS, ROWS], ids=["seconds", "rows"])
@given(values=st.lists(st.floats(0, 5000) | st.integers(0, 2000), max_size=30))
def test_buckets_are_cumulative_and_inclusive(bounds: tuple[float, ...], values: list[float]) -> None:
    histogram = Histogram(bounds)
    for value in values:
        histogram.observe(value)

    samples = {(s.name, s.labels.get("le")): s.value for s in histogram.family("h", "A histogram.").samples}

    for bound in bounds:
        assert samples["h_bucket", str(float(bound))] == sum(value <= bound for value in values)
    assert samples["h_bucket", "+Inf"] == samples["h_count", None] == len(values)
    assert samples["h_sum", None] == pytest.approx(sum(values))
