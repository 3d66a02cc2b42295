from typing import Any

import pytest

from shoal_local.kubelet.containers import (
    Exit,
    ObservedContainer,
    PodActions,
    PodTermination,
    StopAction,
    has_finished,
    next_actions,
    next_streak,
    restart_delay_s,
)

Object = dict[str, Any]
NOW = 1000.0
RUNNING = ObservedContainer(attempt=0, running_since=900.0, started=True, ready=True)


def ended(code: int = 0, at: float = NOW, streak: int = 0) -> ObservedContainer:
    return ObservedContainer(attempt=streak, exit=Exit(code, at, started_at=at - 1), streak=streak)


def started(steps: PodActions) -> list[str]:
    return list(steps.start)


@pytest.fixture
def spec() -> Object:
    return {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "initContainers": [
            {"name": "first"},
            {"name": "side", "restartPolicy": "Always"},
            {"name": "second"},
        ],
        "containers": [{"name": "a"}, {"name": "b"}],
    }


def test_containers_start_in_order_and_the_main_ones_together(spec: Object) -> None:
    assert started(next_actions(spec, {}, NOW)) == ["first"]
    seen = {"first": ObservedContainer(attempt=0, running_since=NOW)}
    assert started(next_actions(spec, seen, NOW)) == []
    seen["first"] = ended()
    assert started(next_actions(spec, seen, NOW)) == ["side"]
    seen["side"] = ObservedContainer(attempt=0, running_since=NOW)
    assert started(next_actions(spec, seen, NOW)) == []
    seen["side"] = RUNNING
    assert started(next_actions(spec, seen, NOW)) == ["second"]
    seen["second"] = ended()
    assert started(next_actions(spec, seen, NOW)) == ["a", "b"]


def test_a_sidecar_that_ends_comes_back_and_init_containers_do_not(spec: Object) -> None:
    seen = {"first": ended(), "side": ended(0), "second": ended(), "a": RUNNING, "b": RUNNING}
    assert started(next_actions(spec, seen, NOW)) == ["side"]


def test_the_first_restart_is_at_once_and_later_ones_wait_longer_and_longer(spec: Object) -> None:
    del spec["initContainers"]
    steps = next_actions(spec, {"a": ended(1), "b": ended(1, streak=2)}, NOW)
    assert started(steps) == ["a"]
    assert steps.wake_at == NOW + 20
    assert steps.held_back == ["b"]
    assert [restart_delay_s(n) for n in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]
    assert next_streak(5, ran_s=30) == 6
    assert next_streak(5, ran_s=600) == 1


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [("Always", 0, True), ("OnFailure", 0, False), ("OnFailure", 1, True), ("Never", 1, False)],
)
def test_the_restart_policy_decides_who_comes_back(policy: str, code: int, again: bool) -> None:
    spec = {"restartPolicy": policy, "containers": [{"name": "a"}]}
    assert bool(started(next_actions(spec, {"a": ended(code)}, NOW))) is again
    assert has_finished(spec, {"a": ended(code)}) is not again


def test_an_init_container_that_fails_for_good_ends_the_pod(spec: Object) -> None:
    spec["restartPolicy"] = "Never"
    assert has_finished(spec, {"first": ended(1)})
    assert next_actions(spec, {"first": ended(1)}, NOW).over


def test_an_unhealthy_container_is_stopped_once(spec: Object) -> None:
    del spec["initContainers"]
    sick = ObservedContainer(attempt=0, running_since=1.0, healthy=False)
    stopping = ObservedContainer(attempt=0, running_since=1.0, healthy=False, stopping=True)
    assert next_actions(spec, {"a": sick, "b": RUNNING}, NOW).stop == [StopAction("a", 30, "unhealthy")]
    assert next_actions(spec, {"a": stopping, "b": RUNNING}, NOW).stop == []


def test_sidecars_end_last_with_what_is_left_of_the_grace(spec: Object) -> None:
    end = PodTermination(NOW - 10, 30)
    seen = {"first": ended(), "side": RUNNING, "second": ended(), "a": RUNNING, "b": RUNNING}
    stops = next_actions(spec, seen, NOW, end).stop
    assert stops == [StopAction("a", 20, "ending"), StopAction("b", 20, "ending")]
    seen |= {"a": ended(), "b": ended()}
    assert next_actions(spec, seen, NOW + 30, end).stop == [StopAction("side", 2, "ending")]
    seen["side"] = ended()
    assert next_actions(spec, seen, NOW, end).over


def test_a_pod_that_has_done_its_work_ends_its_sidecars(spec: Object) -> None:
    spec["restartPolicy"] = "Never"
    seen = {"first": ended(), "side": RUNNING, "second": ended(), "a": ended(), "b": ended()}
    assert [stop.name for stop in next_actions(spec, seen, NOW).stop] == ["side"]


def test_what_cannot_start_is_tried_again_later(spec: Object) -> None:
    del spec["initContainers"]
    waits = ObservedContainer(waiting=("ImagePullBackOff", "no such image"), retry_at=NOW + 5)
    steps = next_actions(spec, {"a": waits, "b": RUNNING}, NOW)
    assert (started(steps), steps.wake_at, steps.held_back) == ([], NOW + 5, [])
