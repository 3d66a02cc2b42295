from __future__ import annotations

import pytest

from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.pending import NEVER_S, PLAIN_KEY
from shoal_proxy.batching.policy import BatchLimits, Policy
from shoal_proxy.batching.queue import QueueLimits
from shoal_proxy.explaining.report import latency_document, report
from shoal_proxy.explaining.sentences import explain


def batcher(
    policy: Policy = Policy.ADAPTIVE, *, objective_s: float = NEVER_S, delay_s: float = 0.0, known: bool = True
) -> Batcher:
    """Return a brain that knows a model of 4 ms and 1 ms a row."""
    brain = Batcher(QueueLimits(64, 10**9), BatchLimits(32, delay_s, 1, policy), objective_s=objective_s)
    if known:
        for rows in brain.tables[PLAIN_KEY].sizes * 20:
            brain.tables[PLAIN_KEY].observe(rows, 0.004 + 0.001 * rows)
    return brain


def explained(brain: Batcher, *, padding: float = 0.0, **rejected: int) -> str:
    return "\n".join(explain(report(brain, padding=padding, rejected=rejected)))


def test_before_the_first_batch_it_says_so() -> None:
    assert explained(batcher(known=False)).startswith("No batch has run yet")
    assert latency_document(batcher(known=False))["tables"] == []


@pytest.mark.parametrize(
    ("objective_s", "words"),
    [
        pytest.param(0.003, "objective of 3 ms cannot be met: a request alone takes 5 ms", id="impossible"),
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


def test_without_batches_the_rate_is_that_of_single_rows() -> None:
    assert "at most 200 rows per second, in batches of 1 row." in explained(batcher(Policy.NONE))
    assert "at most 889 rows per second, in batches of 32 rows." in explained(batcher())


def test_a_delay_that_keeps_an_idle_runtime_waiting_is_named() -> None:
    assert "waits up to 10 ms" in explained(batcher(Policy.FIXED, delay_s=0.01))


def test_refusals_and_padding_are_counted() -> None:
    text = explained(batcher(), padding=0.4, late=7, queue_bytes=2)

    assert "7 requests were refused because their answer would have come too late" in text
    assert "2 requests were refused because queue.maxBytes" in text
    assert "40% of what the model computes is padding" in text


def test_the_latency_document_has_mean_and_percentile_of_each_size() -> None:
    document = latency_document(batcher(objective_s=0.05))

    (table,) = document["tables"]
    assert [size["rows"] for size in table["sizes"]][:3] == [1, 2, 3]
    assert all(0 < size["mean_s"] <= size["p95_s"] for size in table["sizes"])
    assert (document["objective_s"], document["max_batch_size"]) == (0.05, 32)
