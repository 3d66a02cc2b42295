from typing import Any

from shoal.benching.advice import advice
from shoal.benching.steps import Step


def step(offered_per_s: float, **chosen: Any) -> Step:
    parts = {"queue": 2.0, "batch": 1.0, "runtime": 10.0, "rest": 2.0} | chosen.pop("parts", {})
    known = {
        "offered_per_s": offered_per_s,
        "sent": 100,
        "answered": 100,
        "refused": 0,
        "late": 0,
        "failed": 0,
        "goodput_per_s": offered_per_s,
        "p50_ms": 14.0,
        "p95_ms": 20.0,
        "p99_ms": 25.0,
        "parts_ms": parts,
        "batch_rows": 8.0,
        "sent_late_ms": 0.1,
        "busy": 0.1,
    }
    return Step(**(known | chosen))


def said(*steps: Step, **options: Any) -> str:
    return "\n".join(advice(steps, 12.0, **({"max_batch_rows": 32} | options)))


def test_the_knee_is_told_with_what_comes_after_it() -> None:
    words = said(step(100), step(200, p95_ms=500.0, goodput_per_s=120))

    assert "The knee: 100 requests/s" in words
    assert "at 200 it is 500 ms, and 120/s are answered" in words


def test_full_batches_ask_for_larger_ones_or_replicas() -> None:
    words = said(step(100), step(200, p95_ms=500.0, batch_rows=31.0, parts={"queue": 300.0}))

    assert "Batches are full (31 of 32 rows" in words
    assert "batching.maxBatchSize" in words
    assert "scaling.maxReplicas" in words


def test_a_model_that_is_slow_with_half_a_batch_is_the_bound() -> None:
    assert "The model is the bound" in said(step(100), step(200, p95_ms=500.0, parts={"queue": 300.0}))


def test_a_host_without_time_is_not_called_the_models_fault() -> None:
    for parts in ({"rest": 400.0}, {"batch": 40.0}, {"queue": 3.0}):
        words = said(step(100), step(200, p95_ms=500.0, parts=parts))
        assert "CPU" in words
        assert "model is the bound" not in words


def test_a_load_generator_that_was_the_bound_is_said_first_and_the_server_not_blamed() -> None:
    words = said(step(100), step(200, p95_ms=500.0, busy=0.97))

    assert words.startswith("From 200 requests/s on the load generator itself was the bound (97% of a core")
    assert "maxReplicas" not in words


def test_a_server_that_never_bent_has_no_knee() -> None:
    assert "the knee is higher" in said(step(100), step(200))


def test_waiting_at_a_light_load_is_the_delays_doing() -> None:
    assert "batching.maxDelayMilliseconds" in said(step(10, parts={"queue": 50.0}))
    assert "batching.maxDelayMilliseconds" not in said(step(10))


def test_refusals_and_failures_are_named() -> None:
    words = said(step(10, refused=3, late=2, failed=1))

    assert "3 requests were refused (503)" in words
    assert "2 requests had no answer in time" in words
    assert "1 requests failed with another error" in words


def test_a_server_without_server_timing_is_not_guessed_about() -> None:
    silent = step(200, p95_ms=500.0, batch_rows=None, parts_ms={})

    assert "sends no Server-Timing" in said(step(100, parts_ms={}), silent)


def test_nothing_answered_is_nothing_measured() -> None:
    assert said(step(10, answered=0)) == "No request was answered, so nothing was measured."
