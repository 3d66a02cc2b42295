"""A cluster of real processes for the tests of one module, and an unmodified kubectl."""

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal_local.cluster import Cluster
from tests.local.apiserver.kubectl import Kubectl
from tests.local.live import processes_of


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.up(["--capacity", "nvidia.com/gpu=1"])
        yield made
    finally:
        made.down(keep=False)
    assert processes_of(made) == {}


@pytest.fixture
def mounts(cluster: Cluster) -> None:
    """Skip the test on machines without mounts, which test_without_mounts covers."""
    if cluster.mount_error:
        pytest.skip(f"no mounts can be made here: {cluster.mount_error}")


@pytest.fixture
def kubectl(cluster: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """An unmodified kubectl, in a namespace that is deleted after the test."""
    name = f"test-{zlib.crc32(request.node.name.encode())}"
    found = Kubectl(cluster.kubeconfig, tmp_path / "cache", name)
    found("create", "namespace", name)
    yield found
    found("delete", "namespace", name, "--timeout=30s")
