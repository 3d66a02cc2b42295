import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from shoal_local.apiserver.server import Running, running_server
from tests.local.apiserver.cluster import (
    DEFINITIONS,
    Cluster,
    Object,
    new_cluster,
    widget_definition,
)
from tests.local.apiserver.kubectl import Kubectl


@pytest.fixture
def definitions() -> Mapping[str, Mapping[str, Any]]:
    return DEFINITIONS()


@pytest.fixture
def cluster() -> Cluster:
    return new_cluster()


@pytest.fixture
def deployment() -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "main", "image": "web:1"}]},
            },
        },
    }


@pytest.fixture
def pod() -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "one", "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "image": "web:1"}]},
    }


@pytest.fixture
def crd() -> Object:
    return widget_definition()


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """A real server on a free port; each test uses its own namespace."""
    with running_server() as running:
        yield running


@pytest.fixture
def kubectl(server: Running, tmp_path: Path) -> Kubectl:
    """An unmodified kubectl, in a namespace of its own."""
    config = tmp_path / "kubeconfig"
    config.write_text(server.kubeconfig)
    found = Kubectl(config, tmp_path / "cache", f"test-{uuid.uuid4().hex[:8]}")
    found(
        "create",
        "-f",
        "-",
        stdin=f"{{apiVersion: v1, kind: Namespace, metadata: {{name: {found.namespace}}}}}",
    )
    return found
