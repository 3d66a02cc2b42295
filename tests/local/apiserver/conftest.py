import itertools
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from shoal_local.apiserver.definitions import load_definitions
from shoal_local.apiserver.server import Running, running_server
from shoal_local.apiserver.storage.store import Store
from shoal_local.apiserver.verbs.bootstrapping import bootstrap
from shoal_local.apiserver.verbs.world import World
from tests.local.apiserver.cluster import START, Cluster, Object, widget_definition
from tests.local.apiserver.kubectl import Kubectl


@pytest.fixture(scope="session")
def definitions() -> Mapping[str, Mapping[str, Any]]:
    return load_definitions()


@pytest.fixture
def cluster(definitions: Mapping[str, Mapping[str, Any]]) -> Cluster:
    numbers = itertools.count(1)
    world = World(
        Store(),
        definitions,
        lambda: f"{next(numbers):08d}-0000-4000-8000-000000000000",
        signing_key=b"key",
        admin_token="admin",
        authority="CERTIFICATE",
    )
    bootstrap(world, START)
    return Cluster(world)


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
    """A real server on a free port; tests keep apart by namespaces."""
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
