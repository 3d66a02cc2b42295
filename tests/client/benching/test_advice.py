from typing import Any

from shoal.benching.advice import advice
from shoal.benching.steps import Step
from shoal_schema.bounds import Bound


def step(offered_per_s: float, **chosen: Any) -> Step:
    parts = {"queue": 2.0, "batch": 1.0, "runtime": 10.0, "rest": 2.0} | chosen.pop("parts", {})
    known = {
        "offered_per_s": offered_per_s,
        "runs": 2,
        "sent": 100,
        "in_time": 100,
        "answered": 100,
        "refused": 0,
        "late": 0,
        "failed": 0,
        "bad_stretches": 0.0,
        "backlog": 0.0,
        "answered_per_s": offered_per_s,
        "p50_ms": 14.0,
        "p95_ms": 20.0,
        "p99_ms": 25.0,
        "parts_ms": parts,
        "batch_rows": 8.0,
        "sent_late_ms": 0.1,
        "busy": 0.1,
    }
    return Step(**(known | chosen))


def bent(offered_per_s: float, **chosen: Any) -> Step:
    return step(offered_per_s, **({"in_time": 20, "bad_stretches": 0.9, "p95_ms": 500.0} | chosen))


def said(*steps: Step, **options: Any) -> str:
    given: dict[str, Any] = {"alone_ms": 12.0, "max_batch_rows": 32, "bound": Bound.MODEL} | options
    return "\n".join(advice(steps, 60.0, **given))


def test_the_knee_is_told_with_what_comes_after_it() -> None:
    words = said(step(100, in_time=98), bent(110, answered_per_s=90))

    assert "The knee: about 100 requests/s. 98% of 100 requests were answered within 60 ms there" in words
    assert "at 110/s 20%, and 90/s were answered at all" in words


def test_a_knee_that_is_not_close_is_a_range() -> None:
    words = said(step(100), bent(200))

    assert "The knee lies between 100 and 200 requests/s; closer it was not found" in words
    assert "100% of 100 requests were answered within 60 ms at the lower rate, 20% at the higher one" in words


def test_a_handful_of_requests_names_no_knee_but_what_it_would_take() -> None:
    words = said(step(3, sent=9, in_time=9), bent(6.0, sent=18, in_time=3), alone_ms=330.0)

    assert "The knee was not found: it is below 6 requests/s, of which only 16.7% were answered" in words
    assert "Of 3 requests/s only 9 fitted into the time, too few to tell (50 are needed): --seconds 50" in words
    assert "The knee:" not in words


def test_lateness_in_short_moments_is_not_called_a_knee() -> None:
    words = said(step(100), step(150, in_time=90, bad_stretches=0.1), bent(200))

    assert "between 100 and 200" in words
    assert "At 150 requests/s 90% were in time, but the late ones came in a few short moments" in words
    once = said(step(100), step(150, in_time=90, bad_stretches=0.8, runs=1), bent(200))
    assert "but the late ones were seen in one run only" in once


def test_a_server_that_is_late_while_idle_is_not_bent_by_the_rate() -> None:
    words = said(bent(5.0))

    assert "at 5 requests/s the server is nearly idle" in words
    assert "--objective-ms" in words
    assert "scaling.maxReplicas" not in words


def test_full_batches_ask_for_larger_ones_or_replicas() -> None:
    words = said(step(100), bent(200, batch_rows=31.0, parts={"queue": 300.0}))

    assert "The model is the bound, and batches are full (31 of 32 rows" in words
    assert "batching.maxBatchSize" in words
    assert "scaling.maxReplicas" in words
    assert "are full" not in said(step(100), bent(200, batch_rows=26.0, parts={"queue": 300.0})), "82% is not"


def test_a_model_that_is_slow_with_half_a_batch_is_the_bound() -> None:
    assert "The model is the bound" in said(step(100), bent(200, parts={"queue": 300.0}))


def test_a_host_without_time_is_not_called_the_models_fault() -> None:
    for parts in ({"rest": 400.0}, {"batch": 40.0}):
        words = said(step(100), bent(200, parts=parts), bound=Bound.UNKNOWN)
        assert "CPU" in words
        assert "model is the bound" not in words
        assert "cannot tell" not in words, "of what lies outside the runtime nothing else is concluded"


def test_where_the_server_cannot_tell_nothing_is_told_of_the_host_either() -> None:
    words = said(step(100), bent(200, parts={"queue": 3.0}), bound=Bound.UNKNOWN)

    assert "it is the time of a batch in the runtime (10 ms) that makes answers late" in words
    assert words.count("cannot tell yet whether the model or the host's work around it takes longer") == 1
    assert "short of processor time" not in words
    assert "runtime.resources" not in words
    assert "cannot tell" in said(step(100), bound=Bound.UNKNOWN)


def test_where_the_server_concludes_that_the_host_is_its_bound_nothing_else_is_concluded() -> None:
    for batch_rows in (8.0, 31.0):
        words = said(step(100), bent(200, batch_rows=batch_rows, parts={"queue": 300.0}), bound=Bound.HOST)
        assert "The bound is the host's work around a batch" in words
        assert "in a cluster runtime.resources, on one machine less beside it" in words
        assert "maxBatchSize" not in words
    assert "The bound is the proxy's core" in said(step(100), bent(200), bound=Bound.PROXY)


def test_without_the_servers_own_conclusion_the_model_is_not_blamed_and_what_is_not_known_is_said() -> None:
    words = said(step(100), bent(200, batch_rows=31.0, parts={"queue": 300.0}), bound=None)

    assert "The runtime is the bound, and batches are full" in words
    assert "model's or the host's work around it only the server can say, at its admin port" in words
    assert "--admin URL" in words
    assert "--admin" not in said(step(100), bent(200))
    assert "The server itself cannot tell yet" in said(step(100), bent(200), bound=Bound.UNKNOWN)


def test_a_knee_that_is_not_found_still_says_what_is_known_of_the_bound() -> None:
    assert "what will be used up first is the host's work around a batch" in said(step(100), bound=Bound.HOST)
    assert "what will be used up first is the model" in said(step(100))
    assert "What bounds the server was not seen" in said(step(100), bound=None)


def test_a_load_generator_that_was_the_bound_is_said_first_and_the_server_not_blamed() -> None:
    words = said(step(100), bent(200, busy=0.97))

    assert words.startswith("From 200 requests/s on the load generator itself was the bound (97% of a core)")
    assert "maxReplicas" not in words


def test_a_machine_too_busy_for_the_generator_is_named_and_the_server_not_blamed() -> None:
    words = said(step(100), bent(200, sent_late_ms=400.0))

    assert words.startswith("At 200 requests/s the load generator sent 400 ms late, though it took only 10% of a core")
    assert "kept up with 100 requests/s" in words
    assert "maxReplicas" not in words


def test_a_server_that_never_bent_has_no_knee() -> None:
    words = said(step(100), step(200))

    assert "The knee was not found: the server kept up with 200 requests/s" in words
    assert "--seconds gives more time" in words


def test_waiting_at_a_light_load_is_the_delays_doing() -> None:
    assert "batching.maxDelayMilliseconds" in said(step(10, parts={"queue": 50.0}))
    assert "batching.maxDelayMilliseconds" not in said(step(10))


def test_refusals_and_failures_are_named() -> None:
    words = said(step(10, refused=3, late=2, failed=1))

    assert "3 requests were refused (503)" in words
    assert "2 requests were given up" in words
    assert "1 requests failed with another error" in words


def test_a_server_without_server_timing_is_not_guessed_about() -> None:
    silent = bent(200, batch_rows=None, parts_ms={})

    assert "sends no Server-Timing" in said(step(100, parts_ms={}), silent)


def test_nothing_answered_is_nothing_measured() -> None:
    assert said(step(10, answered=0)) == "No request was answered, so nothing was measured."
