import pytest

from benchmarks.peers.outcomes import BROKEN, TIMED_OUT, Outcome, summary


def outcomes(*pairs: tuple[int, float]) -> list[Outcome]:
    return [Outcome(status, latency_s, lag_s=0.001) for status, latency_s in pairs]


def test_each_outcome_is_counted_once() -> None:
    sent = outcomes(
        (200, 0.05), (200, 0.1), (200, 0.11), (503, 0.01), (429, 0.02), (500, 0.01), (BROKEN, 0.1), (TIMED_OUT, 10)
    )

    counted = summary(sent, objective_s=0.1, duration_s=2)

    rates = {name.removesuffix("_per_s"): value for name, value in counted.items() if name.endswith("_per_s")}
    assert rates == {"offered": 4, "in_time": 1, "late": 0.5, "refused": 1, "errors": 1, "timed_out": 0.5}


def test_how_fast_refusals_came_is_told_apart_from_answers() -> None:
    counted = summary(outcomes((200, 0.08), (503, 0.004), (503, 0.005)), objective_s=0.1, duration_s=1)

    assert counted["answer_p50_ms"] == pytest.approx(80)
    assert counted["refusal_p99_ms"] == pytest.approx(5)
    assert counted["lag_p99_ms"] == pytest.approx(1)


def test_without_refusals_their_time_is_zero() -> None:
    assert summary(outcomes((200, 0.08)), objective_s=0.1, duration_s=1)["refusal_p99_ms"] == 0
