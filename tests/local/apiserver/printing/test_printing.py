from datetime import UTC, datetime
from typing import Any

import pytest

from shoal_local.apiserver.errors import ApiError
from shoal_local.apiserver.kinds.registry import BUILTIN
from shoal_local.apiserver.printing.tables import (
    PRINTERS,
    find_all,
    human_duration,
    pod_cells,
    pod_reason,
    printer_of,
    table_wanted,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BEGUN = "2025-12-31T23:55:00Z"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (155, "2m35s"),
        (600, "10m"),
        (10799, "179m"),
        (3 * 3600 + 60, "3h1m"),
        (8 * 3600, "8h"),
        (47 * 3600, "47h"),
        (2 * 86400 + 3600, "2d1h"),
        (8 * 86400, "8d"),
        (3 * 365 * 86400, "3y"),
        (-5, "<invalid>"),
    ],
)
def test_ages(seconds: int, text: str) -> None:
    assert human_duration(seconds) == text


OBJECT: dict[str, Any] = {
    "spec": {"a.b": 1, "list": [{"n": "x", "v": 1}, {"n": "y", "v": 2}], "none": None},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (".spec.list[0].v", [1]),
        (".spec.list[-1].v", [2]),
        (".spec.list[*].n", ["x", "y"]),
        ('.spec.list[?(@.n=="y")].v', [2]),
        ('.status.conditions[?(@.type == "Ready")].status', ["True"]),
        (r".spec.a\.b", [1]),
        (".spec['a.b']", [1]),
        ("{.spec.none}", [None]),
        (".spec.nope.deeper", []),
        (".spec.list[9]", []),
    ],
)
def test_paths(path: str, values: list[Any]) -> None:
    assert find_all(OBJECT, path) == values


def container(state: dict[str, Any], *, ready: bool = False, **more: Any) -> dict[str, Any]:
    return {"name": "main", "state": state, "ready": ready, "restartCount": 0, **more}


def pod(*statuses: dict[str, Any], first: Any = (), **status: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "main"}], "initContainers": [{"name": "init"}] if first else []}
    status_ = {"containerStatuses": list(statuses), "initContainerStatuses": list(first), **status}
    return {
        "metadata": {"name": "p", "creationTimestamp": "2025-12-31T23:00:00Z"},
        "spec": spec,
        "status": status_,
    }


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (pod(phase="Pending"), "Pending"),
        (
            pod(container({"waiting": {"reason": "ImagePullBackOff"}}), phase="Pending"),
            "ImagePullBackOff",
        ),
        (pod(container({"terminated": {"exitCode": 3}}), phase="Failed"), "ExitCode:3"),
        (
            pod(container({"terminated": {"exitCode": 1, "reason": "Error"}}), phase="Failed"),
            "Error",
        ),
        (pod(container({"running": {}}, ready=True), phase="Running"), "Running"),
        (pod(first=[{"name": "init", "state": {"running": {}}}], phase="Pending"), "Init:0/1"),
        (
            pod(
                first=[{"name": "init", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
                phase="Pending",
            ),
            "Init:CrashLoopBackOff",
        ),
        (
            pod(first=[{"name": "init", "state": {"terminated": {"exitCode": 2, "reason": "Error"}}}]),
            "Init:Error",
        ),
        (
            pod(first=[{"name": "init", "state": {"terminated": {"exitCode": 0}}}], phase="Running"),
            "Running",
        ),
        (pod(phase="Failed", reason="Evicted"), "Evicted"),
    ],
)
def test_the_word_for_a_pod(given: dict[str, Any], word: str) -> None:
    assert pod_reason(given) == word


def test_a_pod_that_goes_is_terminating() -> None:
    given = pod(phase="Running")
    given["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert pod_reason(given) == "Terminating"


def test_restarts_tell_how_long_ago_the_last_was() -> None:
    ended = {"terminated": {"finishedAt": "2025-12-31T23:55:00Z"}}
    given = pod(container({"running": {}}, ready=True, lastState=ended, restartCount=2), phase="Running")
    assert pod_cells(given, NOW)[:4] == ["1/1", "Running", "2 (5m ago)", "60m"]


@pytest.mark.parametrize("resource", BUILTIN, ids=lambda r: f"{r.kind}.{r.group}")
def test_every_row_has_a_cell_for_each_column(resource: Any) -> None:
    least = {
        "metadata": {"name": "x", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"type": "ClusterIP", "containers": []},
        "roleRef": {"kind": "Role", "name": "r"},
        "addressType": "IPv4",
    }
    printer = printer_of(resource)
    assert len(printer.cells(least, NOW)) == len(printer.columns)


def conditions(*names: str) -> dict[str, Any]:
    return {"conditions": [{"type": name, "status": "True"} for name in names]}


@pytest.mark.parametrize(
    ("spec", "status", "cells"),
    [
        ({"completions": 4, "parallelism": 2}, {}, ["Running", "0/4", ""]),
        ({"parallelism": 3}, {"startTime": BEGUN, "succeeded": 1}, ["Running", "1/1 of 3", "5m"]),
        ({"parallelism": 1}, {"startTime": BEGUN}, ["Running", "0/1", "5m"]),
        (
            {"completions": 4, "parallelism": 2},
            {"startTime": BEGUN, "completionTime": "2025-12-31T23:55:06Z", "succeeded": 4, **conditions("Complete")},
            ["Complete", "4/4", "6s"],
        ),
        ({"completions": 1}, conditions("FailureTarget", "Failed"), ["Failed", "0/1", ""]),
        ({"completions": 1}, conditions("FailureTarget"), ["FailureTarget", "0/1", ""]),
        ({"completions": 1}, conditions("Suspended"), ["Suspended", "0/1", ""]),
    ],
)
def test_a_job_tells_its_state_and_how_long_it_took(spec: Any, status: Any, cells: list[str]) -> None:
    job = {"metadata": {"creationTimestamp": "2025-12-31T23:00:00Z"}, "spec": spec, "status": status}
    assert PRINTERS["batch/jobs"].cells(job, NOW) == [*cells, "60m"]


@pytest.mark.parametrize(
    ("accept", "table"),
    [
        ("", False),
        ("application/json", False),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", True),
        ("application/vnd.kubernetes.protobuf,application/json", False),
        ("*/*", False),
        ("application/json;as=Nothing,*/*", False),
    ],
)
def test_forms(accept: str, *, table: bool) -> None:
    assert table_wanted(accept) is table


def test_a_form_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(ApiError) as raised:
        table_wanted("application/vnd.kubernetes.protobuf")
    assert raised.value.code == 406
