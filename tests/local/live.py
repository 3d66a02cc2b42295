"""Helpers for tests of a running cluster: its processes, its pods, and waiting."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal_local.cluster import Cluster
from tests.local.apiserver.kubectl import Kubectl

Object = dict[str, Any]


def processes_of(cluster: Cluster) -> dict[int, str]:
    """Return the processes that name the cluster's directory or run below one that does."""
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            line = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(cluster.directory) in line:
            found[int(directory.name)] = line
    return found


def eventually(check: Callable[[], Any], limit_s: float = 20.0) -> Any:
    """Return the check's result once it is true."""
    end_s = time.monotonic() + limit_s
    while not (found := check()):
        assert time.monotonic() < end_s, "it did not come true in time"
        time.sleep(0.05)
    return found


def apply(kubectl: Kubectl, *objects: Object) -> None:
    kubectl("apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, objects)))


def pod(name: str, script: str, container: Object | None = None, **spec: Any) -> Object:
    main = {
        "name": "main",
        "image": "python:3",
        "command": ["sh", "-c", script],
        **(container or {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 2, "containers": [main], **spec},
    }


def status_of(kubectl: Kubectl, name: str) -> Object:
    found: Object = json.loads(kubectl("get", "pod", name, "-o", "json"))["status"]
    return found


def restarts_of(kubectl: Kubectl, name: str) -> int:
    statuses = status_of(kubectl, name).get("containerStatuses") or [{}]
    return int(statuses[0].get("restartCount", 0))


def state_of(kubectl: Kubectl, name: str, part: str = "containerStatuses") -> Object:
    statuses = status_of(kubectl, name).get(part) or [{}]
    return dict(statuses[0].get("state", {}))
