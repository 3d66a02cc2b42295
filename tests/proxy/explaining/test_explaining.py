from random import Random

import pytest

from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.pending import NEVER_S, PLAIN_KEY, BatchKey
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.batching.queue import QueueLimits
from shoal_proxy.batching.row_checks import RowChecks
from shoal_proxy.batching.throughput import Busiest
from shoal_proxy.explaining.bound import bound
from shoal_proxy.explaining.report import latency_document, report
from shoal_proxy.explaining.sentences import explain, number
from shoal_schema.bounds import Bound
from shoal_schema.resource.traffic import BatchingPolicy


def batcher(
    policy: BatchingPolicy = BatchingPolicy.ADAPTIVE,
    *,
    objective_s: float = NEVER_S,
    delay_s: float = 0.0,
    known: bool = True,
) -> Batcher:
    """Return a brain that knows a model of 4 ms and 1 ms a row."""
    brain = Batcher(QueueLimits(64, 10**9), BatchLimits(32, delay_s, 1, policy), objective_s=objective_s)
    if known:
        for rows in brain.tables[PLAIN_KEY].sizes * 20:
            brain.tables[PLAIN_KEY].observe(rows, 0.004 + 0.001 * rows)
    return brain


def explained(brain: Batcher, busiest: Busiest | None = None, *, padding: float = 0.0, **rejected: int) -> str:
    return "\n".join(explain(report(brain, busiest, model="cat", padding=padding, rejected=rejected)))


def test_before_the_first_batch_it_says_so() -> None:
    assert explained(batcher(known=False)).startswith("Model cat.\nNo batch has run yet")
    assert latency_document(batcher(known=False), None)["tables"] == []


@pytest.mark.parametrize(
    ("objective_s", "words"),
    [
        pytest.param(0.003, "objective of 3 ms cannot be met: a request alone takes about 5.0 ms", id="impossible"),
        pytest.param(0.0401, "bounds batches to 16 rows", id="tight"),
        pytest.param(1.0, "leaves room for full batches of 32 rows", id="loose"),
    ],
)
def test_it_says_what_the_objective_does(objective_s: float, words: str) -> None:
    assert words in explained(batcher(objective_s=objective_s))


def test_a_memory_that_is_too_small_is_named_and_not_the_objective() -> None:
    brain = batcher(objective_s=1.0)
    brain.tables.ran_out_of_memory(PLAIN_KEY, 16)

    text = explained(brain)

    assert "ran out of memory with more than 8 rows" in text
    assert "room for full batches of 8 rows" in text
    assert "bounds batches" not in text


def test_before_the_first_request_the_models_time_is_a_bound_and_no_promise() -> None:
    for policy, most in (
        (BatchingPolicy.NONE, "200 at most, in batches of 1 row"),
        (BatchingPolicy.ADAPTIVE, "890 at most, in batch"),
    ):
        text = explained(batcher(policy))
        assert "rows per second one replica serves is not known before the first requests" in text
        assert f"The model's own time allows about {most}" in text
        assert "the host's work comes on top" in text


def test_what_was_served_is_told_as_such_and_the_models_time_beside_it() -> None:
    text = explained(batcher(), Busiest(rows_per_s=128.4, batch_rows=2.1, runtime_busy=0.4, proxy_busy=0.1))

    assert "The most that this replica has served lately is 130 rows per second" in text
    assert "2.1 rows on average, one of them at the runtime for 40% of the time" in text
    assert "Whether it can serve more is not known" in text
    assert "The model's own time allows about 890 at most" in text


def test_a_capacity_is_named_where_full_batches_followed_one_another() -> None:
    text = explained(batcher(), Busiest(rows_per_s=712.0, batch_rows=31.0, runtime_busy=0.97, proxy_busy=0.1))

    assert "One replica serves about 710 rows per second: so many in its busiest second" in text
    assert "not known" not in text
    assert "at most" not in text


def test_a_runtime_that_is_always_busy_with_small_batches_is_not_at_its_end() -> None:
    text = explained(batcher(), Busiest(rows_per_s=180.0, batch_rows=1.0, runtime_busy=0.99, proxy_busy=0.2))

    assert "Whether it can serve more is not known" in text


def test_a_proxy_that_uses_all_of_its_core_is_the_bound() -> None:
    text = explained(batcher(), Busiest(rows_per_s=780.0, batch_rows=5.0, runtime_busy=0.6, proxy_busy=0.96))

    assert "One replica serves about 780 rows per second of such requests" in text
    assert "used 96% of a core" in text


def test_where_the_host_takes_longer_no_bound_is_told_of_the_model() -> None:
    brain = batcher(known=False)
    for rows in brain.tables[PLAIN_KEY].sizes * 20:
        brain.tables[PLAIN_KEY].observe(rows, 0.00003 + 0.000003 * rows)
    brain.pace.observe(0.0027)

    text = explained(brain, Busiest(rows_per_s=640.0, batch_rows=2.5, runtime_busy=0.5, proxy_busy=0.6))

    assert "has served lately is 640 rows per second" in text
    assert "The model is not the bound" in text
    assert "in a cluster runtime.resources, on one machine less beside it" in text
    assert "00,000" not in text
    full = Busiest(rows_per_s=5200.0, batch_rows=31.0, runtime_busy=0.97, proxy_busy=0.6)
    assert "The model is not the bound" in explained(brain, full), "at its end, too"


def test_a_delay_that_keeps_an_idle_runtime_waiting_is_named() -> None:
    assert "waits up to 10 ms" in explained(batcher(BatchingPolicy.FIXED, delay_s=0.01))


def test_refusals_and_padding_are_counted() -> None:
    text = explained(batcher(), padding=0.4, late=7, queue_bytes=2)

    assert "7 requests were refused because their answer would have come too late" in text
    assert "2 requests were refused because queue.maxBytes" in text
    assert "40% of what the model computes is padding" in text


def test_the_latency_document_has_mean_and_percentile_of_each_size() -> None:
    document = latency_document(batcher(objective_s=0.05), None)

    (table,) = document["tables"]
    assert [size["rows"] for size in table["sizes"]][:3] == [1, 2, 3]
    assert all(0 < size["mean_s"] <= size["p95_s"] for size in table["sizes"])
    assert (document["objective_s"], document["max_batch_size"]) == (0.05, 32)
    assert all(size["measured"] for size in table["sizes"])


def seen(*sizes: int, objective_s: float = NEVER_S) -> Batcher:
    """Return a brain that has seen ten batches of each of these sizes, of 15 ms and next to nothing a row."""
    brain = batcher(objective_s=objective_s, known=False)
    for rows in sizes * 10:
        brain.tables[PLAIN_KEY].observe(rows, 0.015 + 0.00001 * rows)
    return brain


def test_ten_single_requests_say_nothing_of_full_batches() -> None:
    text = explained(seen(1))

    assert "A request alone on an idle runtime takes about 15 ms, by what 10 batches showed: too little" in text
    assert "How long a full batch of 32 rows takes is not known: none of more than 1 row has been measured" in text
    assert "at most" not in text
    sizes = latency_document(seen(1), None)["tables"][0]["sizes"]
    assert [size["rows"] for size in sizes if size["measured"]] == [1]


def test_how_sure_a_time_is_is_said_by_how_many_batches_have_run() -> None:
    measured = batcher(known=False)
    measured.serve(None, measured=((1, 0.005), (32, 0.04)))

    assert "by what warm-up showed" in explained(measured)
    measured.tables[PLAIN_KEY].observe(1, 0.005)
    assert "by what 1 batch showed: too little to say" in explained(measured)
    for _ in range(19):
        measured.tables[PLAIN_KEY].observe(1, 0.005)
    assert (
        "in most cases no more, from when it was read until its answer leaves (callers wait for the network, too)"
        in (explained(measured))
    )
    assert "19 times in 20" not in explained(measured), "callers see more than the proxy does"


def test_two_requests_are_not_a_rate() -> None:
    text = explained(seen(1), Busiest(rows_per_s=2.0, batch_rows=1.0, runtime_busy=0.004, proxy_busy=0.01))

    assert "is not known: so far it has hardly had to work (at most 2 rows in a second)" in text
    assert "0%" not in text
    assert text.count("measured") == 1, "of full batches, and only once"


def test_of_several_shapes_it_says_of_which_one_it_speaks() -> None:
    brain = batcher(known=False)
    for length, rows in ((3, 2), (5, 1)):
        brain.tables[BatchKey((("x", (length,)),))].observe(rows, 0.01)
    assert brain.tables[BatchKey((("x", (7,)),))].known is False, "one that waits for its first batch"

    text = explained(brain)

    assert text.startswith("Model cat. Batches of 2 shapes of input have run; ")
    assert "the one that came last, x [5]" in text
    assert "is not known: none of more than 1 row of this shape has been measured" in text


def test_a_request_alone_and_a_full_batch_are_told_in_the_same_means() -> None:
    brain = batcher()
    brain.pace.observe(0.0024)

    text = explained(brain)

    assert "on average about 5.0 ms for the model and 2.4 ms for the host's work around it" in text
    assert "A full batch of 32 rows takes the model about 36 ms on average" in text


def test_what_lies_between_measured_sizes_is_a_range() -> None:
    brain = batcher(known=False, objective_s=0.05)
    for rows in (1, 32) * 10:
        brain.tables[PLAIN_KEY].observe(rows, 0.004 + 0.001 * rows)

    text = explained(brain)

    assert "The model's own time allows 3,400 at most, in batches of 17 rows" in text


def test_an_objective_is_not_said_to_leave_room_for_what_was_never_measured() -> None:
    text = explained(seen(1, objective_s=1.0))

    assert "is not known: none of more than 1 row has been measured" in text
    assert "does not bound throughput" not in text


def test_before_the_first_request_nothing_is_said_of_the_host() -> None:
    assert "without the host's work around the model, which the first requests will show" in explained(seen(1, 32))


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
def test_what_bounds_a_replica_is_one_rule(
    model_ms: tuple[float, float], host_ms: float, proxy_busy: float, expected: Bound
) -> None:
    busiest = Busiest(rows_per_s=100.0, batch_rows=31.0, runtime_busy=0.97, proxy_busy=proxy_busy)

    assert bound(busiest, batches=20, model_ms=model_ms, host_ms=host_ms) is expected
    few = bound(busiest, batches=19, model_ms=model_ms, host_ms=host_ms)
    assert few is (Bound.PROXY if expected is Bound.PROXY else Bound.UNKNOWN), "a core in use was seen, times were not"


def test_a_handful_of_batches_does_not_clear_the_model() -> None:
    brain = batcher(known=False)
    brain.pace.observe(0.0027)
    brain.tables[PLAIN_KEY].observe(32, 0.0001)
    brain.tables[PLAIN_KEY].observe(32, 0.0001)
    two = Busiest(rows_per_s=2.0, batch_rows=1.0, runtime_busy=0.5, proxy_busy=0.1)

    assert "The model is not the bound" not in explained(brain, two)
    assert report(brain, two, model="cat", padding=0.0, rejected={}).bound is Bound.UNKNOWN
    for _ in range(18):
        brain.tables[PLAIN_KEY].observe(32, 0.0001)
    assert "The model is not the bound" in explained(brain, two)


def test_results_that_vary_are_told_and_random_ones_as_not_checked() -> None:
    brain, checks = batcher(), RowChecks(Random(1).randrange)
    checks.unchecked = ""

    def told() -> str:
        return "\n".join(explain(report(brain, None, model="cat", padding=0.0, rejected={}, checks=checks)))

    assert "Results vary" not in told()
    checks.checked_rows, checks.evidence.foreign = 900, 5
    assert "of 900 rows run again, 5 had another result" in told()
    for reason in ("RandomResults", "ChangingResults"):
        checks.unchecked = reason
        assert f"not checked ({reason})" in told()
        assert "Results vary" not in told()
