"""Jobs: every index ends well once, whatever is killed; kubectl sees them as in any cluster."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually

SUM = """
echo "index $JOB_COMPLETION_INDEX on $HOSTNAME"
echo $JOB_COMPLETION_INDEX >> /out/begun
if [ $JOB_COMPLETION_INDEX = 1 ] && mkdir /out/failed; then exit 3; fi
until test -e /out/go; do sleep .1; done
echo $JOB_COMPLETION_INDEX >> /out/ended
"""
LIMIT_S = 120
"""An index that failed is tried again after ten seconds."""


def apply(namespace: Cluster, folder: Path, script: str = SUM, policy: str = "Never", **spec: Any) -> None:
    """Apply a Job of four indexes, two at a time, whose containers write into the folder."""
    container = {
        "name": "sum",
        "image": "python",
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "out", "mountPath": "/out"}, {"name": "own", "mountPath": "/own"}],
    }
    volumes = [{"name": "out", "hostPath": {"path": str(folder)}}, {"name": "own", "emptyDir": {}}]
    pod = {"restartPolicy": policy, "terminationGracePeriodSeconds": 1, "containers": [container], "volumes": volumes}
    body = {"completionMode": "Indexed", "completions": 4, "parallelism": 2, **spec, "template": {"spec": pod}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "sums"}, "spec": body}
    namespace.kubectl("apply", "--filename", "-", text=yaml.safe_dump(job))


def wait(namespace: Cluster, condition: str = "complete") -> None:
    namespace.kubectl("wait", f"--for=condition={condition}", "job/sums", f"--timeout={LIMIT_S}s")


def explain(namespace: Cluster) -> str:
    return namespace.kubectl("describe", "jobs,pods", check=False).stdout


def lines(file: Path) -> list[str]:
    return sorted(file.read_text().split()) if file.exists() else []


def status(namespace: Cluster) -> dict[str, Any]:
    """Return the Job's status without times."""
    found: dict[str, Any] = namespace.get("job", "sums")["status"]
    return {key: value for key, value in found.items() if key not in ("startTime", "completionTime", "conditions")}


def reasons(namespace: Cluster) -> list[tuple[str, str]]:
    return [(each["type"], each["reason"]) for each in namespace.get("job", "sums")["status"]["conditions"]]


def test_an_indexed_job_runs_to_its_end_and_is_seen_by_kubectl(namespace: Cluster, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    apply(namespace, tmp_path)
    wait(namespace)

    assert lines(tmp_path / "ended") == ["0", "1", "2", "3"]
    assert lines(tmp_path / "begun") == ["0", "1", "1", "2", "3"]
    result = {"succeeded": 4, "failed": 1, "completedIndexes": "0-3", "ready": 0, "terminating": 0}
    assert status(namespace) == {**result, "uncountedTerminatedPods": {}}
    assert reasons(namespace) == [("SuccessCriteriaMet", "CompletionsReached"), ("Complete", "CompletionsReached")]
    head, row = namespace.kubectl("get", "jobs").stdout.splitlines()
    assert head.split() == ["NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"]
    assert row.split()[:3] == ["sums", "Complete", "4/4"]

    states = sorted(line.split()[2] for line in namespace.kubectl("get", "pods", "--no-headers").stdout.splitlines())
    assert states == ["Completed", "Completed", "Completed", "Completed", "Error"]
    (third,) = namespace.get("pods", selector="job-name=sums,batch.kubernetes.io/job-completion-index=3")
    assert third["metadata"]["name"].startswith("sums-3-")
    assert third["spec"]["hostname"] == "sums-3"
    assert namespace.kubectl("logs", third["metadata"]["name"]).stdout == "index 3 on sums-3\n"
    events = namespace.kubectl("get", "events", "--output=jsonpath={.items[*].reason}").stdout.split()
    assert events.count("Completed") == 1
    assert events.count("SuccessfulCreate") == 5

    namespace.kubectl("delete", "job", "sums")
    eventually(lambda: not namespace.get("pods"), lambda: explain(namespace))


@pytest.mark.parametrize("part", ["controllers", "kubelet"])
def test_each_index_ends_once_whatever_is_killed(namespace: Cluster, tmp_path: Path, part: str) -> None:
    apply(namespace, tmp_path)
    eventually(lambda: lines(tmp_path / "begun")[:3] == ["0", "1", "1"], lambda: explain(namespace))
    namespace.kill(part)
    (tmp_path / "go").touch()
    eventually(lambda: len(lines(tmp_path / "ended")) >= 2, lambda: explain(namespace))
    namespace.parts.start()
    wait(namespace)

    assert lines(tmp_path / "ended") == ["0", "1", "2", "3"]
    assert lines(tmp_path / "begun") == ["0", "1", "1", "2", "3"]
    assert (status(namespace)["succeeded"], status(namespace)["failed"]) == (4, 1)
    namespace.kubectl("delete", "job", "sums")


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_a_job_that_is_deleted_takes_its_running_pods_along(namespace: Cluster, tmp_path: Path, cascade: str) -> None:
    apply(namespace, tmp_path)
    eventually(lambda: lines(tmp_path / "begun")[:2] == ["0", "1"], lambda: explain(namespace))
    namespace.kubectl("delete", "job", "sums", f"--cascade={cascade}", "--timeout=60s")
    eventually(lambda: not namespace.get("pods"), lambda: explain(namespace))
    assert not (tmp_path / "ended").exists()


def test_pods_whose_job_is_deleted_alone_are_let_go(namespace: Cluster, tmp_path: Path) -> None:
    apply(namespace, tmp_path)
    eventually(lambda: lines(tmp_path / "begun")[:2] == ["0", "1"], lambda: explain(namespace))
    before = {pod["metadata"]["uid"] for pod in namespace.get("pods")}
    namespace.kubectl("delete", "job", "sums", "--cascade=orphan")

    def free() -> bool:
        return not any({"finalizers", "ownerReferences"} & set(pod["metadata"]) for pod in namespace.get("pods"))

    eventually(free, lambda: explain(namespace))
    assert before <= {pod["metadata"]["uid"] for pod in namespace.get("pods")}
    namespace.kubectl("delete", "pods", "--all")


def test_a_suspended_job_goes_on_when_it_is_resumed(namespace: Cluster, tmp_path: Path) -> None:
    apply(namespace, tmp_path, suspend=True)
    wait(namespace, "suspended")
    assert not namespace.get("pods")
    namespace.kubectl("patch", "job", "sums", "--type=merge", "--patch", '{"spec": {"suspend": false}}')
    eventually(lambda: len(lines(tmp_path / "begun")) >= 2, lambda: explain(namespace))
    namespace.kubectl("patch", "job", "sums", "--type=merge", "--patch", '{"spec": {"suspend": true}}')
    eventually(lambda: not namespace.get("pods") or status(namespace).get("active", 0) == 0)
    (tmp_path / "go").touch()
    namespace.kubectl("patch", "job", "sums", "--type=merge", "--patch", '{"spec": {"suspend": false}}')
    wait(namespace)
    assert status(namespace)["completedIndexes"] == "0-3"
    namespace.kubectl("delete", "job", "sums")


def test_a_container_that_fails_runs_again_in_its_pod_and_finds_its_files(namespace: Cluster, tmp_path: Path) -> None:
    script = "echo $HOSTNAME >> /own/runs; test $(wc -l < /own/runs) = 2 && cat /own/runs >> /out/ended"
    apply(namespace, tmp_path, script, policy="OnFailure", completions=2)
    wait(namespace)
    assert lines(tmp_path / "ended") == ["sums-0", "sums-0", "sums-1", "sums-1"]
    restarts = [pod["status"]["containerStatuses"][0]["restartCount"] for pod in namespace.get("pods")]
    assert restarts == [1, 1]
    assert status(namespace).get("failed", 0) == 0
    namespace.kubectl("delete", "job", "sums")


def test_indexes_that_fail_for_good_fail_the_job_and_not_the_others(namespace: Cluster, tmp_path: Path) -> None:
    script = "test $((JOB_COMPLETION_INDEX % 2)) = 1"
    apply(namespace, tmp_path, script, backoffLimitPerIndex=0)
    wait(namespace, "failed")
    result = status(namespace)
    assert (result["completedIndexes"], result["failedIndexes"]) == ("1,3", "0,2")
    assert (result["succeeded"], result["failed"]) == (2, 2)
    assert reasons(namespace) == [("FailureTarget", "FailedIndexes"), ("Failed", "FailedIndexes")]
    namespace.kubectl("delete", "job", "sums")
