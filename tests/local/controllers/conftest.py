from collections.abc import Callable
from typing import Any

import pytest

Object = dict[str, Any]


@pytest.fixture
def deployment() -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "web",
            "namespace": "default",
            "uid": "d",
            "generation": 1,
            "resourceVersion": "1",
        },
        "spec": {
            "replicas": 3,
            "progressDeadlineSeconds": 60,
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "main", "image": "web:1"}]},
            },
        },
    }


@pytest.fixture
def make_pod() -> Callable[..., Object]:
    def make(name: str = "one", **more: Any) -> Object:
        ready = more.pop("ready", True)
        status = {
            "phase": "Running",
            "podIP": f"127.0.1.{more.pop('number', 1)}",
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True" if ready else "False",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
        }
        meta = {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "labels": {"app": "web"},
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **more.pop("metadata", {}),
        }
        container = {
            "name": "main",
            "image": "web:1",
            "ports": [{"name": "http", "containerPort": 8080}],
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta,
            "spec": {"nodeName": "node", "containers": [container], **more.pop("spec", {})},
            "status": {**status, **more.pop("status", {})},
        }

    return make
