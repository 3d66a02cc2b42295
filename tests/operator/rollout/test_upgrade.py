"""Whose pods are replaced when the operator is another one, and when."""

import datetime
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_operator.children.observation import Key
from shoal_operator.manifests.deployment import make_deployment
from shoal_operator.manifests.labels import SPEC_HASH_ANNOTATION
from shoal_operator.rollout.upgrade import Phase, UpgradeState, is_pending, next_services
from shoal_operator.rollout.window import Window
from shoal_schema.fields.declaring import Json
from tests.operator.samples import EVERYTHING, MINIMAL, service, target, with_fields

SATURDAY = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)
WEEKEND = "Sat,Sun 02:00-05:00 UTC"


def at(days: int, hours: int, minutes: int = 0) -> float:
    """Return the time so long after the beginning of a Saturday."""
    return (SATURDAY + datetime.timedelta(days=days, hours=hours, minutes=minutes)).timestamp()


@pytest.mark.parametrize(
    ("window", "now_s", "opens_in_s"),
    [
        ("", at(0, 13), 0),
        (WEEKEND, at(0, 2), 0),
        (WEEKEND, at(1, 4, 59), 0),
        (WEEKEND, at(0, 1, 30), 1800),
        (WEEKEND, at(0, 5), 21 * 3600),
        (WEEKEND, at(1, 5), (5 * 24 + 21) * 3600),
        ("22:00-04:00", at(3, 3, 59), 0),
        ("22:00-04:00 UTC", at(3, 4), 18 * 3600),
        ("Fri 22:00-04:00", at(0, 3), 0),  # of Friday's night
        ("Fri 22:00-04:00", at(1, 3), (5 * 24 + 19) * 3600),
        ("Wed 00:00-00:00", at(4, 23, 59), 0),
        ("Wed 00:00-00:00", at(5, 0), 6 * 24 * 3600),
    ],
)
def test_window_is_open_or_returns_when_it_opens(window: str, now_s: float, opens_in_s: float) -> None:
    assert Window.parse(window).opens_in_s(now_s) == pytest.approx(opens_in_s)


@given(
    days=st.sets(st.sampled_from(("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"))),
    start=st.integers(0, 1439),
    end=st.integers(0, 1439),
    now_s=st.integers(0, 2**33),
)
def test_a_window_that_is_closed_is_open_as_soon_as_it_says_and_not_before(
    days: set[str], start: int, end: int, now_s: int
) -> None:
    hours = f"{start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02}"
    window = Window.parse(f"{','.join(days)} {hours}" if days else hours)
    opens_in_s = window.opens_in_s(now_s)

    assert 0 <= opens_in_s <= 7 * 24 * 3600
    assert window.opens_in_s(now_s + opens_in_s + 1e-3) == 0
    if opens_in_s > 1:
        assert window.opens_in_s(now_s + opens_in_s - 1) == pytest.approx(1, abs=1e-3)


def standing(day: int, phase: Phase | None = Phase.PENDING, *, ready: bool = True) -> UpgradeState:
    return UpgradeState(f"2026-01-{day:02}T00:00:00Z", "True" if ready else "False", "", phase)


def named(**states: UpgradeState) -> dict[Key, UpgradeState]:
    return {Key("default", name): each for name, each in states.items()}


@pytest.mark.parametrize(
    ("states", "most", "expected"),
    [
        (named(b=standing(2), a=standing(3), c=standing(1)), 1, ["c"]),
        (named(b=standing(2), a=standing(3), c=standing(1)), 2, ["c", "b"]),
        (named(b=standing(2), a=standing(2)), 1, ["a"]),
        (named(a=standing(1), b=standing(2)), 0, []),
        (named(a=standing(1, ready=False), b=standing(2)), 1, ["b"]),
        (named(a=standing(1, ready=False)), 1, ["a"]),
        (named(a=standing(1, None), b=standing(2)), 1, ["b"]),
        (named(a=standing(1, Phase.RUNNING), b=standing(2)), 1, []),
        (named(a=standing(1, Phase.RUNNING), b=standing(2), c=standing(3)), 2, ["b"]),
        (named(a=standing(1, Phase.FAILED), b=standing(2)), 9, []),
        ({}, 1, []),
    ],
)  # fmt: skip
def test_the_oldest_that_are_ready_come_first_and_none_after_a_failure(
    states: dict[Key, UpgradeState], most: int, expected: list[str]
) -> None:
    assert [key.name for key in next_services(states, most)] == expected


@given(most=st.integers(1, 20), count=st.integers(1, 60), seed=st.randoms(use_true_random=False))
def test_all_get_there_and_never_more_at_a_time_than_may_be(most: int, count: int, seed: random.Random) -> None:
    states = named(**{f"s{day}": standing(day) for day in range(1, count + 1)})
    while due := next_services(states, most):
        states |= {key: replace(states[key], phase=Phase.RUNNING) for key in due}
        running = [key for key, each in states.items() if each.phase is Phase.RUNNING]
        assert len(running) == min(most, sum(each.phase is not None for each in states.values()))
        done = seed.choice(running)
        states[done] = replace(states[done], phase=None)

    assert sum(each.phase is not None for each in states.values()) < most


APART = {"replicas": 7, "scaling": {"minReplicas": 1, "maxReplicas": 9}, "route": {"ingress": {"host": "b.example"}}}


@pytest.mark.parametrize("spec", [MINIMAL, EVERYTHING], ids=["minimal", "everything"])
def test_replicas_scaling_and_routes_are_no_other_spec_and_make_no_other_pods(spec: Json) -> None:
    before, after = (make_deployment(target(each)) for each in (spec, {**spec, **APART}))

    assert after["spec"]["template"] == before["spec"]["template"]
    name = SPEC_HASH_ANNOTATION
    assert after["metadata"]["annotations"][name] == before["metadata"]["annotations"][name]


def made_by_another(spec: Json | None = None) -> Json:
    """Return the Deployment that an operator with other images made."""
    live = make_deployment(target(spec))
    live["spec"]["template"]["metadata"]["annotations"]["serving.shoal.dev/template-hash"] = "another"
    return live


def test_pods_of_another_operator_wait_and_those_of_another_spec_do_not() -> None:
    body = make_deployment(target())

    assert is_pending(body, made_by_another(), service())
    assert not is_pending(body, make_deployment(target()), service())
    assert not is_pending(body, made_by_another(with_fields(MINIMAL, batching__maxBatchSize=4)), service())


@pytest.mark.parametrize(("observed", "pending"), [(3, True), (2, False)])
def test_without_a_spec_hash_the_observed_generation_decides(observed: int, pending: bool) -> None:
    live = made_by_another()
    del live["metadata"]["annotations"][SPEC_HASH_ANNOTATION]
    resource = {**service(generation=3), "status": {"observedGeneration": observed}}

    assert is_pending(make_deployment(target()), live, resource) is pending
