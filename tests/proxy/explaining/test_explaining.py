from random import Random

import pytest

from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.pending import NEVER_S, PLAIN_KEY, BatchKey
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.batching.queue import QueueLimits
from shoal_proxy.batching.rates import BusiestSecond
from shoal_proxy.batching.row_checks.checks import RowChecks
from shoal_proxy.explaining.bound import bound
from shoal_proxy.explaining.report import latency_document, report
from shoal_proxy.explaining.sentences import explain, number
from shoal_schema.interfaces.bounds import ADVICE, Bound
from shoal_schema.resource.traffic import BatchingPolicy


def batcher(
    policy: BatchingPolicy = BatchingPolicy.ADAPTIVE,
    *,
    objective_s: float = NEVER_S,
    delay_s: float = 0.0,
    known: bool = True,
    in_flight: int = 1,
) -> Batcher:
    """Return a batcher that has measured a model of 4 ms and 1 ms per row."""
    made = Batcher(QueueLimits(64, 10**9), BatchLimits(32, delay_s, in_flight, policy), objective_s=objective_s)
    if known:
        for rows in made.tables[PLAIN_KEY].sizes * 20:
            made.tables[PLAIN_KEY].observe(rows, 0.004 + 0.001 * rows)
    return made


def explained(batcher: Batcher, busiest: BusiestSecond | None = None, *, padding: float = 0.0, **rejected: int) -> str:
    return "\n".join(explain(report(batcher, busiest, model="cat", padding=padding, rejected=rejected)))


def test_a_precision_chosen_by_measurement_is_stated() -> None:
    now = report(batcher(), None, model="cat", padding=0.0, rejected={}, precision="BFloat16")

    assert "precision BFloat16" in explain(now)[0]


def test_batches_that_run_at_a_time_count_each() -> None:
    one, four = (
        report(batcher(in_flight=count), None, model="cat", padding=0.0, rejected={}).model_rows_per_s
        for count in (1, 4)
    )

    assert one is not None
    assert four is not None
    assert four.low == pytest.approx(4 * one.low)
    assert latency_document(batcher(in_flight=4), None)["in_flight"] == 4


def test_before_the_first_batch_the_speed_is_unknown() -> None:
    assert explained(batcher(known=False)).startswith("Model cat.\nNo batch has run yet")
    assert latency_document(batcher(known=False), None)["tables"] == []


@pytest.mark.parametrize(
    ("objective_s", "words"),
    [
        pytest.param(0.003, "3 ms cannot be met", id="impossible"),
        pytest.param(0.0401, "limits batches to 16 rows", id="tight"),
        pytest.param(1.0, "leaves room for full batches of 32 rows", id="loose"),
    ],
)
def test_the_effect_of_the_objective_is_stated(objective_s: float, words: str) -> None:
    assert words in explained(batcher(objective_s=objective_s))


def test_a_memory_bound_is_reported_instead_of_the_objective() -> None:
    measured = batcher(objective_s=1.0)
    measured.tables.ran_out_of_memory(PLAIN_KEY, 16)

    text = explained(measured)

    assert "ran out of memory with more than 8 rows" in text
    assert "room for full batches of 8 rows" in text
    assert "bounds batches" not in text


def test_before_the_first_request_the_models_time_is_an_upper_bound() -> None:
    for policy, most in (
        (BatchingPolicy.NONE, "200 rows per second at most, in batches of 1 row"),
        (BatchingPolicy.ADAPTIVE, "890 rows per second at most"),
    ):
        text = explained(batcher(policy))
        assert "unknown before the first requests" in text
        assert f"about {most}" in text


def test_the_served_rate_is_reported_beside_the_models_time() -> None:
    text = explained(batcher(), BusiestSecond(rows_per_s=128.4, batch_rows=2.1, runtime_busy=0.4, proxy_busy=0.1))

    for figure in ("130 rows", "batches of 2.1 rows", "40% of the time", "about 890 rows per second at most"):
        assert figure in text
    assert "more is unknown" in text


def test_full_batches_without_a_pause_are_the_capacity() -> None:
    text = explained(batcher(), BusiestSecond(rows_per_s=712.0, batch_rows=31.0, runtime_busy=0.97, proxy_busy=0.1))

    assert "about 710 rows per second" in text
    assert "unknown" not in text
    assert "at most" not in text


def test_a_runtime_that_is_always_busy_with_small_batches_is_not_at_its_end() -> None:
    text = explained(batcher(), BusiestSecond(rows_per_s=180.0, batch_rows=1.0, runtime_busy=0.99, proxy_busy=0.2))

    assert "more is unknown" in text


def test_a_proxy_that_uses_all_of_its_core_is_the_bound() -> None:
    text = explained(batcher(), BusiestSecond(rows_per_s=780.0, batch_rows=5.0, runtime_busy=0.6, proxy_busy=0.96))

    assert "about 780 rows per second" in text
    assert "96% of a core" in text
    assert ADVICE[Bound.PROXY].remedy in text


def test_where_the_host_takes_longer_it_is_the_bound() -> None:
    measured = batcher(known=False)
    for rows in measured.tables[PLAIN_KEY].sizes * 20:
        measured.tables[PLAIN_KEY].observe(rows, 0.00003 + 0.000003 * rows)
    measured.pace.observe(0.0027)

    text = explained(measured, BusiestSecond(rows_per_s=640.0, batch_rows=2.5, runtime_busy=0.5, proxy_busy=0.6))

    assert "640 rows" in text
    assert ADVICE[Bound.HOST].remedy in text
    assert "00,000" not in text
    full = BusiestSecond(rows_per_s=5200.0, batch_rows=31.0, runtime_busy=0.97, proxy_busy=0.6)
    assert ADVICE[Bound.HOST].remedy in explained(measured, full), "at its capacity too"


def test_a_delay_of_an_idle_runtime_is_reported() -> None:
    assert "waits up to 10 ms" in explained(batcher(BatchingPolicy.FIXED, delay_s=0.01))


def test_rejections_and_padding_are_counted() -> None:
    text = explained(batcher(), padding=0.4, late=7, queue_bytes=2)

    assert "7 requests were rejected" in text
    assert "2 requests were rejected because queue.maxBytes" in text
    assert "40% " in text


def test_the_latency_document_has_mean_and_percentile_of_each_size() -> None:
    document = latency_document(batcher(objective_s=0.05), None)

    (table,) = document["tables"]
    assert [size["rows"] for size in table["sizes"]][:3] == [1, 2, 3]
    assert all(0 < size["mean_s"] <= size["p95_s"] for size in table["sizes"])
    assert (document["objective_s"], document["max_batch_size"]) == (0.05, 32)
    assert all(size["measured"] for size in table["sizes"])


def seen(*sizes: int, objective_s: float = NEVER_S) -> Batcher:
    """Return a batcher with ten batches of each of these sizes, of 15 ms and next to nothing per row."""
    measured = batcher(objective_s=objective_s, known=False)
    for rows in sizes * 10:
        measured.tables[PLAIN_KEY].observe(rows, 0.015 + 0.00001 * rows)
    return measured


def test_ten_single_requests_do_not_measure_full_batches() -> None:
    text = explained(seen(1))

    assert "about 15 ms (by 10 batches" in text
    assert "no batch of more than 1 row has been measured" in text
    assert "at most" not in text
    sizes = latency_document(seen(1), None)["tables"][0]["sizes"]
    assert [size["rows"] for size in sizes if size["measured"]] == [1]


def test_the_number_of_batches_states_how_reliable_a_time_is() -> None:
    measured = batcher(known=False)
    measured.set_model(None, measured=((1, 0.005), (32, 0.04)))

    assert "by warm-up" in explained(measured)
    measured.tables[PLAIN_KEY].observe(1, 0.005)
    assert "by 1 batch:" in explained(measured)
    for _ in range(19):
        measured.tables[PLAIN_KEY].observe(1, 0.005)
    assert "without the network" in explained(measured)


def test_two_requests_are_no_capacity() -> None:
    text = explained(seen(1), BusiestSecond(rows_per_s=2.0, batch_rows=1.0, runtime_busy=0.004, proxy_busy=0.01))

    assert "at most 2 rows per second" in text
    assert "0%" not in text
    assert text.count("measured") == 1, "of full batches, and only once"


def test_of_several_shapes_the_one_used_last_is_reported() -> None:
    measured = batcher(known=False)
    for length, rows in ((3, 2), (5, 1)):
        measured.tables[BatchKey((("x", (length,)),))].observe(rows, 0.01)
    assert measured.tables[BatchKey((("x", (7,)),))].known is False, "it waits for its first batch"

    text = explained(measured)

    assert text.startswith("Model cat. Inputs of 2 shapes")
    assert "most recent shape, x [5]" in text
    assert "more than 1 row of this shape" in text


def test_a_request_alone_and_a_full_batch_have_mean_times() -> None:
    measured = batcher()
    measured.pace.observe(0.0024)

    text = explained(measured)

    assert "about 5.0 ms for the model and 2.4 ms for the host" in text
    assert "32 rows takes the model about 36 ms" in text


def test_a_rate_between_measured_sizes_is_an_upper_bound() -> None:
    measured = batcher(known=False, objective_s=0.05)
    for rows in (1, 32) * 10:
        measured.tables[PLAIN_KEY].observe(rows, 0.004 + 0.001 * rows)

    text = explained(measured)

    assert "3,400 rows per second at most, in batches of 17 rows" in text


def test_an_objective_makes_no_statement_about_unmeasured_batches() -> None:
    text = explained(seen(1, objective_s=1.0))

    assert "no batch of more than 1 row has been measured" in text
    assert "does not limit throughput" not in text


def test_before_the_first_request_the_hosts_work_is_not_included() -> None:
    assert "is not included" in explained(seen(1, 32))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.0042, "0.0042"), (5.0, "5.0"), (14.96, "15"), (573.4, "570"), (12345.0, "12,000")],
)
def test_figures_are_plain_and_of_two_digits(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("model_ms", "host_ms", "proxy_busy", "expected"),
    [
        pytest.param((36.0, 36.0), 2.4, 0.2, Bound.MODEL, id="model"),
        pytest.param((0.2, 0.3), 2.8, 0.2, Bound.HOST, id="host"),
        pytest.param((36.0, 36.0), 2.4, 0.9, Bound.PROXY, id="core"),
        pytest.param((0.2, float("inf")), 2.8, 0.2, Bound.UNKNOWN, id="not measured"),
        pytest.param((36.0, 36.0), 0.0, 0.2, Bound.UNKNOWN, id="foreign runtime"),
    ],
)
def test_the_bound_is_one_rule(
    model_ms: tuple[float, float], host_ms: float, proxy_busy: float, expected: Bound
) -> None:
    busiest = BusiestSecond(rows_per_s=100.0, batch_rows=31.0, runtime_busy=0.97, proxy_busy=proxy_busy)

    assert bound(busiest, batches=20, model_ms=model_ms, host_ms=host_ms) is expected
    few = bound(busiest, batches=19, model_ms=model_ms, host_ms=host_ms)
    assert few is (Bound.PROXY if expected is Bound.PROXY else Bound.UNKNOWN), "a core in use was seen, times were not"


def test_a_few_batches_do_not_rule_out_the_model() -> None:
    measured = batcher(known=False)
    measured.pace.observe(0.0027)
    measured.tables[PLAIN_KEY].observe(32, 0.0001)
    measured.tables[PLAIN_KEY].observe(32, 0.0001)
    two = BusiestSecond(rows_per_s=2.0, batch_rows=1.0, runtime_busy=0.5, proxy_busy=0.1)

    assert ADVICE[Bound.HOST].remedy not in explained(measured, two)
    assert report(measured, two, model="cat", padding=0.0, rejected={}).bound is Bound.UNKNOWN
    for _ in range(18):
        measured.tables[PLAIN_KEY].observe(32, 0.0001)
    assert ADVICE[Bound.HOST].remedy in explained(measured, two)


def test_varying_results_are_reported_and_random_ones_are_not_checked() -> None:
    measured, checks = batcher(), RowChecks(Random(1).randrange)
    checks.unchecked = ""

    def text() -> str:
        return "\n".join(explain(report(measured, None, model="cat", padding=0.0, rejected={}, checks=checks)))

    assert "Results vary" not in text()
    checks.checked_rows, checks.evidence.foreign = 900, 5
    assert "of 900 rows run again, 5 had another result" in text()
    for reason in ("RandomResults", "ChangingResults"):
        checks.unchecked = reason
        assert f"not checked ({reason})" in text()
        assert "Results vary" not in text()
