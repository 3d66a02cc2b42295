from typing import Any

from shoal.benching.advice import advice
from shoal.benching.steps import LoadStep
from shoal.discovery import POD_ADMIN_PORT
from shoal_schema.interfaces.bounds import ADVICE, Bound


def step(offered_per_s: float, **chosen: Any) -> LoadStep:
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
    return LoadStep(**(known | chosen))


def bent(offered_per_s: float, **chosen: Any) -> LoadStep:
    return step(offered_per_s, **({"in_time": 20, "bad_stretches": 0.9, "p95_ms": 500.0} | chosen))


def advised(*steps: LoadStep, **options: Any) -> str:
    given: dict[str, Any] = {"alone_ms": 12.0, "max_batch_rows": 32, "bound": Bound.MODEL} | options
    return "\n".join(advice(steps, 60.0, **given))


def test_the_knee_is_reported_with_the_next_rate() -> None:
    text = advised(step(100, in_time=98), bent(110, answered_per_s=90))

    assert "knee is at about 100 requests/s: 98% of 100" in text
    assert "110 requests/s 20%" in text


def test_a_knee_that_is_not_close_is_a_range() -> None:
    text = advised(step(100), bent(200))

    assert "between 100 and 200 requests/s" in text
    assert "100% of 100" in text
    assert "20%" in text


def test_too_few_requests_name_no_knee_but_the_time_needed() -> None:
    text = advised(step(3, sent=9, in_time=9), bent(6.0, sent=18, in_time=3), alone_ms=330.0)

    assert "below 6 requests/s, where only 16.7%" in text
    assert "--seconds 50" in text
    assert "knee is at" not in text


def test_late_responses_in_short_bursts_are_not_a_knee() -> None:
    text = advised(step(100), step(150, in_time=90, bad_stretches=0.1), bent(200))

    assert "between 100 and 200" in text
    assert "At 150 requests/s 90%" in text
    assert "in short bursts" in text
    once = advised(step(100), step(150, in_time=90, bad_stretches=0.8, runs=1), bent(200))
    assert "in one run only" in once


def test_the_cause_of_noise_is_stated_once() -> None:
    noisy = [step(rate, in_time=90, bad_stretches=0.1) for rate in (150, 170)]
    text = advised(step(100), *noisy, step(180, in_time=90, bad_stretches=0.8, runs=1), bent(200))

    assert "At 150 requests/s 90%, at 170 requests/s 90%, at 180 requests/s 90% were in time" in text
    assert "in short bursts or in one run only" in text
    assert text.count("other load on the machine") == 1
    busy = advised(step(100), *noisy, bent(200, sent_late_ms=400.0))
    assert "machine is too busy" in busy
    assert "other load on the machine" not in busy


def test_requests_that_wait_a_good_part_of_their_time_do_not_hardly_wait() -> None:
    hardly = advised(step(100), bent(200, parts={"queue": 1.0}), bound=None)
    assert "Requests hardly wait (1 of 14 ms)" in hardly

    assert "hardly wait" not in advised(step(100), bent(200, parts={"queue": 8.0}), bound=None)


def test_a_server_that_is_late_while_idle_is_not_bent_by_the_rate() -> None:
    text = advised(bent(5.0))

    assert "nearly idle" in text
    assert "--objective-ms" in text
    assert "scaling.maxReplicas" not in text


def test_full_batches_need_larger_ones_or_replicas() -> None:
    text = advised(step(100), bent(200, batch_rows=31.0, parts={"queue": 300.0}))

    assert "The model is the bottleneck" in text
    assert "31 of 32 rows" in text
    assert "batching.maxBatchSize" in text
    assert "scaling.maxReplicas" in text
    assert "are full" not in advised(step(100), bent(200, batch_rows=26.0, parts={"queue": 300.0})), "82% is not"


def test_a_model_that_is_slow_with_half_a_batch_is_the_bound() -> None:
    assert "The model is the bottleneck" in advised(step(100), bent(200, parts={"queue": 300.0}))


def test_a_host_without_cpu_time_is_not_attributed_to_the_model() -> None:
    for parts in ({"rest": 400.0}, {"batch": 40.0}):
        text = advised(step(100), bent(200, parts=parts), bound=Bound.UNKNOWN)
        assert "CPU" in text
        assert "model is the bottleneck" not in text
        assert ADVICE[Bound.UNKNOWN].cause not in text, "outside the runtime nothing else is concluded"


def test_an_unknown_bound_is_attributed_to_neither_model_nor_host() -> None:
    text = advised(step(100), bent(200, parts={"queue": 1.0}), bound=Bound.UNKNOWN)

    assert "in the runtime (10 ms)" in text
    assert text.count(ADVICE[Bound.UNKNOWN].cause) == 1
    assert "runtime.resources" not in text
    assert ADVICE[Bound.UNKNOWN].cause in advised(step(100), bound=Bound.UNKNOWN)
    assert ADVICE[Bound.UNKNOWN].cause in advised(step(100), bent(200), bound=Bound.UNKNOWN)


def test_the_servers_own_bound_excludes_any_other() -> None:
    for batch_rows in (8.0, 31.0):
        text = advised(step(100), bent(200, batch_rows=batch_rows, parts={"queue": 300.0}), bound=Bound.HOST)
        assert ADVICE[Bound.HOST].cause in text
        assert ADVICE[Bound.HOST].remedy in text
        assert "maxBatchSize" not in text
    assert ADVICE[Bound.PROXY].cause in advised(step(100), bent(200), bound=Bound.PROXY)


def test_without_the_servers_conclusion_the_bound_is_the_runtime() -> None:
    text = advised(step(100), bent(200, batch_rows=31.0, parts={"queue": 300.0}), bound=None)

    assert "The runtime is the bottleneck" in text
    assert "--admin URL" in text
    assert f"port-forward POD {POD_ADMIN_PORT}" in text
    assert "--admin" not in advised(step(100), bent(200))


def test_a_knee_that_is_not_found_still_names_the_bound() -> None:
    assert ADVICE[Bound.HOST].cause in advised(step(100), bound=Bound.HOST)
    assert ADVICE[Bound.MODEL].cause in advised(step(100))
    assert "No rate reached the server's limit." in advised(step(100), bound=None)


def test_a_load_generator_that_was_the_bound_is_reported_first() -> None:
    text = advised(step(100), bent(200, busy=0.97))

    assert text.startswith("The load generator was the bottleneck from 200 requests/s on (97%")
    assert "maxReplicas" not in text.partition("\n")[0]


def test_a_machine_too_busy_for_the_generator_is_reported_first() -> None:
    text = advised(step(100), bent(200, sent_late_ms=400.0))

    assert text.startswith("The load generator sent requests 400 ms late at 200 requests/s, with 10%")
    assert "kept up with 100 requests/s" in text


def test_a_server_that_never_bent_has_no_knee() -> None:
    text = advised(step(100), step(200))

    assert "kept up with 200 requests/s" in text
    assert "--seconds" in text


def test_waiting_at_a_light_load_is_the_configured_delay() -> None:
    assert "batching.maxDelayMilliseconds" in advised(step(10, parts={"queue": 50.0}))
    assert "batching.maxDelayMilliseconds" not in advised(step(10))


def test_rejections_and_failures_are_counted() -> None:
    text = advised(step(10, refused=3, late=2, failed=1))

    assert "3 requests were rejected" in text
    assert "2 requests were abandoned" in text
    assert "1 requests failed" in text


def test_without_server_timing_the_latency_is_not_split() -> None:
    silent = bent(200, batch_rows=None, parts_ms={})

    assert "no Server-Timing" in advised(step(100, parts_ms={}), silent)


def test_without_responses_nothing_is_measured() -> None:
    assert "nothing was measured" in advised(step(10, answered=0))
