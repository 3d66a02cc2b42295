"""Problems of pods, in words a user can act on."""

from typing import Any

import pytest

from shoal_operator.children.pods import find_problem
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import Reason
from tests.operator.samples import DOWNLOADED, FOREIGN
from tests.operator.worlds import pod, running, unschedulable, waiting


def failing(**status: Any) -> Json:
    return pod(DOWNLOADED, ready=False, **status)


@pytest.mark.parametrize(
    ("broken", "reason", "words"),
    [
        (
            failing(containerStatuses=[waiting("runtime", "ImagePullBackOff", "no such tag")]),
            Reason.IMAGE_PULL_FAILED,
            ["runtime:1", "cannot be pulled", "no such tag"],
        ),
        (
            failing(
                containerStatuses=[
                    waiting(
                        "runtime", "ImagePullBackOff", 'Back-off pulling image "runtime:1": ErrImagePull: no such tag'
                    )
                ]
            ),
            Reason.IMAGE_PULL_FAILED,
            ["the image runtime:1 of container runtime cannot be pulled: no such tag"],
        ),
        (
            failing(containerStatuses=[waiting("runtime", "ImagePullBackOff", 'Back-off pulling image "runtime:1"')]),
            Reason.IMAGE_PULL_FAILED,
            ['cannot be pulled: Back-off pulling image "runtime:1"'],
        ),
        (
            failing(containerStatuses=[waiting("proxy", "CreateContainerConfigError", 'secret "x" not found')]),
            Reason.CONTAINER_CONFIG_INVALID,
            ["container proxy cannot be created", 'secret "x" not found'],
        ),
        (
            failing(
                initContainerStatuses=[
                    waiting("model", "CrashLoopBackOff", exitCode=1, message="fetching\n404 Not Found")
                ]
            ),
            Reason.MODEL_DOWNLOAD_FAILED,
            ["the model cannot be downloaded: 404 Not Found"],
        ),
        (
            failing(
                containerStatuses=[running("proxy"), waiting("audit", "CrashLoopBackOff", exitCode=1, message="no")]
            ),
            Reason.CONTAINER_CRASHED,
            ["container audit ended (exit code 1): no"],
        ),
        (
            failing(initContainerStatuses=[waiting("tunnel", "CrashLoopBackOff", exitCode=2, message="a\nb")]),
            Reason.CONTAINER_CRASHED,
            ["container tunnel ended (exit code 2): b"],
        ),
        (
            failing(containerStatuses=[waiting("runtime", "CrashLoopBackOff", exitCode=3, message="no such file")]),
            Reason.RUNTIME_CRASHED,
            ["could not load the model (exit code 3): no such file"],
        ),
        (
            failing(
                containerStatuses=[
                    waiting("runtime", "CrashLoopBackOff", exitCode=3, message="the model cannot be loaded: no weights")
                ]
            ),
            Reason.RUNTIME_CRASHED,
            ["the runtime could not load the model (exit code 3): no weights"],
        ),
        (
            failing(
                initContainerStatuses=[
                    waiting("model", "CrashLoopBackOff", exitCode=3, message="http://a/b cannot be downloaded: 404")
                ]
            ),
            Reason.MODEL_DOWNLOAD_FAILED,
            ["the model cannot be downloaded: http://a/b: 404"],
        ),
        (
            failing(containerStatuses=[running("runtime", exitCode=4, message="CUDA error")]),
            Reason.RUNTIME_CRASHED,
            ["lost its device", "runtime.forwardTimeoutSeconds", "CUDA error"],
        ),
        (
            failing(containerStatuses=[waiting("runtime", "CrashLoopBackOff", exitCode=137, reason="OOMKilled")]),
            Reason.RUNTIME_CRASHED,
            ["exceeded its memory limit", "runtime.resources.limits.memory"],
        ),
        (
            failing(containerStatuses=[waiting("proxy", "CrashLoopBackOff", exitCode=1)]),
            Reason.PROXY_CRASHED,
            ["proxy crashed (exit code 1)", "no message"],
        ),
        (
            failing(containerStatuses=[waiting("proxy", "CrashLoopBackOff", exitCode=3, message="no port")]),
            Reason.PROXY_CRASHED,
            ["proxy crashed (exit code 3): no port"],
        ),
        (
            failing(
                containerStatuses=[
                    waiting(
                        "proxy",
                        "CrashLoopBackOff",
                        exitCode=2,
                        message="shoal-proxy: /etc/shoal/tls/tls.crt: No such file",
                    )
                ]
            ),
            Reason.PROXY_CRASHED,
            ["tls.crt: No such file. The files come from the Secret of tls.secretName"],
        ),
        (
            failing(containerStatuses=[waiting("proxy", "CrashLoopBackOff", exitCode=143, reason="Error")]),
            Reason.PROXY_CRASHED,
            [
                "proxy did not respond to its startup or liveness probe",
                "proxy.resources",
            ],
        ),
        (
            failing(containerStatuses=[running("proxy", exitCode=143, message="listening\nwaiting for the runtime")]),
            Reason.PROXY_CRASHED,
            ["did not respond", "Its last line: waiting for the runtime"],
        ),
        (
            pod(FOREIGN, ready=False, containerStatuses=[running("runtime", exitCode=143, reason="Error")]),
            Reason.RUNTIME_CRASHED,
            ["was stopped (exit code 143)", "probe", "rollout.progressDeadlineSeconds"],
        ),
        (
            failing(containerStatuses=[running("runtime", exitCode=143, reason="Error")]),  # it has no probe
            Reason.RUNTIME_CRASHED,
            ["runtime crashed (exit code 143)"],
        ),
        (
            failing(containerStatuses=[waiting("runtime", "CrashLoopBackOff", exitCode=1, reason="Error")]),
            Reason.RUNTIME_CRASHED,
            ["runtime crashed (exit code 1): Error"],
        ),
        (
            failing(containerStatuses=[{"name": "runtime", "state": {"terminated": {"message": "gone"}}}]),
            Reason.RUNTIME_CRASHED,
            ["runtime crashed (exit code 0): gone"],
        ),
        (
            failing(conditions=unschedulable("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.")),
            Reason.INSUFFICIENT_GPU,
            ["no node has a free nvidia.com/gpu", "0/3 nodes", "rollout.maxSurge 0"],
        ),
        (
            failing(conditions=unschedulable("0/3 nodes are available: 3 Insufficient cpu.")),
            Reason.UNSCHEDULABLE,
            ["no node fits the pod", "Insufficient cpu"],
        ),
    ],
    ids=lambda value: value if isinstance(value, Reason) else "",
)
def test_a_pod_that_does_not_serve_says_why(broken: Json, reason: Reason, words: list[str]) -> None:
    problem = find_problem([broken])

    assert problem is not None
    assert problem.reason is reason
    for word in words:
        assert word in problem.message


def test_a_ready_pod_has_no_problem_whatever_happened_before() -> None:
    recovered = pod(containerStatuses=[running("runtime", exitCode=4, message="CUDA error")])

    assert find_problem([recovered]) is None


def test_stopping_pod_has_no_problem() -> None:
    leaving = failing(containerStatuses=[running("runtime", exitCode=137)])
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"

    assert find_problem([leaving]) is None


def test_a_clean_end_of_the_init_container_is_no_problem() -> None:
    loading = failing(initContainerStatuses=[{"name": "model", "state": {"terminated": {"exitCode": 0}}}])

    assert find_problem([loading]) is None


def test_of_what_a_container_wrote_the_last_line_is_reported_without_the_time_of_this_crash() -> None:
    wrote = (
        "2026-11-22T01:00:00.001Z INFO shoal_runtime.serving event=listening address=unix:/run/shoal/runtime.sock\n"
        "2026-11-22T01:00:01.002Z CRITICAL shoal_runtime.serving the model cannot be loaded: no such file\n"
    )
    problem = find_problem(
        [failing(containerStatuses=[waiting("runtime", "CrashLoopBackOff", exitCode=3, message=wrote)])]
    )

    assert problem is not None
    assert problem.message == ("the runtime could not load the model (exit code 3): no such file")


def test_a_setting_in_the_message_is_named_by_its_field_first() -> None:
    wrote = "m.joblib is a pickle. Set SHOAL_MODEL_ALLOW_PICKLE=true (model.allowPickle) if you trust it"
    problem = find_problem(
        [failing(containerStatuses=[waiting("runtime", "CrashLoopBackOff", exitCode=3, message=wrote)])]
    )

    assert problem is not None
    assert "Set model.allowPickle=true (SHOAL_MODEL_ALLOW_PICKLE)" in problem.message


def test_a_crash_is_reported_before_a_missing_node() -> None:
    crashed = failing(containerStatuses=[waiting("runtime", "CrashLoopBackOff", exitCode=1)])
    pending = failing(conditions=unschedulable("3 Insufficient nvidia.com/gpu"))

    problem = find_problem([pending, crashed])

    assert problem is not None
    assert problem.reason is Reason.RUNTIME_CRASHED


def test_a_job_that_gets_no_gpu_is_reported_nothing_of_rollouts() -> None:
    pending = failing(conditions=unschedulable("3 Insufficient nvidia.com/gpu"))
    pending["spec"]["containers"] = [each for each in pending["spec"]["containers"] if each["name"] == "runtime"]
    pending["spec"]["containers"][0]["name"] = "batch"
    pending["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": 1}}

    problem = find_problem([pending])

    assert problem is not None
    assert problem.reason is Reason.INSUFFICIENT_GPU
    assert problem.message.endswith("Add a node, or request less.")


def test_a_message_names_no_pod_so_that_a_restart_writes_no_status() -> None:
    problem = find_problem([failing(containerStatuses=[waiting("proxy", "CrashLoopBackOff", exitCode=1)])])

    assert problem is not None
    assert "cat-1" not in problem.message


def test_a_very_long_last_message_is_cut_at_its_front() -> None:
    long = "x" * 5000 + " the end"
    problem = find_problem(
        [failing(containerStatuses=[waiting("runtime", "CrashLoopBackOff", exitCode=1, message=long)])]
    )

    assert problem is not None
    assert problem.message.endswith("the end")
    assert len(problem.message) < 1200
