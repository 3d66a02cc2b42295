from typing import Any

import pytest

from shoal_local.kubelet.containers import Exit, ObservedContainer
from shoal_local.kubelet.status import StatusContext, pod_status

Object = dict[str, Any]
NOW = 1_767_225_600.0
RUNNING = ObservedContainer(attempt=0, running_since=NOW, started=True, ready=True)


def status(spec: Object, *, ending: bool = False, **containers: ObservedContainer) -> Object:
    meta = {"name": "web", "namespace": "default", "uid": "u"}
    pod = {"metadata": meta, "spec": spec}
    return pod_status(StatusContext(pod, NOW, ending=ending), containers, pod_ip="127.1.0.2", host_ip="127.0.0.1")


def condition(status: Object, kind: str) -> str:
    return str(next(c["status"] for c in status["conditions"] if c["type"] == kind))


@pytest.fixture
def spec() -> Object:
    return {"restartPolicy": "Always", "containers": [{"name": "a", "image": "web:1"}]}


def test_a_pod_that_runs_and_is_ready_says_so(spec: Object) -> None:
    found = status(spec, a=RUNNING)
    assert found["phase"] == "Running"
    assert condition(found, "Ready") == condition(found, "Initialized") == "True"
    assert found["podIP"] == "127.1.0.2"


def test_a_container_that_keeps_ending_is_in_crash_loop_back_off(spec: Object) -> None:
    ended = Exit(3, NOW, message="boom")
    found = status(spec, a=ObservedContainer(attempt=1, exit=ended, streak=1))["containerStatuses"][0]
    assert found["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert "back-off 10s restarting failed container=a" in found["state"]["waiting"]["message"]
    assert found["lastState"]["terminated"]["exitCode"] == 3
    assert found["lastState"]["terminated"]["message"] == "boom"
    assert found["restartCount"] == 1


def test_reason_why_a_container_cannot_start_is_reported(spec: Object) -> None:
    found = status(spec, a=ObservedContainer(waiting=("ErrImagePull", "no such image")))
    waiting = found["containerStatuses"][0]["state"]["waiting"]
    assert (found["phase"], waiting["reason"]) == ("Pending", "ErrImagePull")


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (1, "Failed")])
def test_a_pod_that_has_ended_tells_how(spec: Object, code: int, phase: str) -> None:
    spec["restartPolicy"] = "Never"
    found = status(spec, a=ObservedContainer(attempt=0, exit=Exit(code, NOW)))
    assert found["phase"] == phase
    assert condition(found, "Ready") == "False"
    assert "terminated" in found["containerStatuses"][0]["state"]


def test_a_pod_whose_init_containers_run_is_not_initialized(spec: Object) -> None:
    spec["initContainers"] = [{"name": "first", "image": "web:1"}]
    found = status(spec, first=ObservedContainer(attempt=0, running_since=NOW))
    assert (found["phase"], condition(found, "Initialized")) == ("Pending", "False")
    assert found["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}


def test_a_condition_that_has_become_true_takes_back_why_it_was_not(spec: Object) -> None:
    unready = status(spec, a=ObservedContainer(attempt=0, running_since=NOW, started=True))
    before = next(c for c in unready["conditions"] if c["type"] == "Ready")
    pod = {"metadata": {"name": "web", "namespace": "default", "uid": "u"}, "spec": spec, "status": unready}
    found = pod_status(StatusContext(pod, NOW), {"a": RUNNING}, pod_ip="127.1.0.2", host_ip="127.0.0.1")
    after = next(c for c in found["conditions"] if c["type"] == "Ready")

    assert before["reason"] == "ContainersNotReady"
    # A merge patch keeps fields that it does not contain.
    assert (after["status"], after["reason"], after["message"]) == ("True", None, None)
    again = pod_status(
        StatusContext({**pod, "status": found}, NOW), {"a": RUNNING}, pod_ip="127.1.0.2", host_ip="127.0.0.1"
    )
    assert next(c for c in again["conditions"] if c["type"] == "Ready")["reason"] is None
