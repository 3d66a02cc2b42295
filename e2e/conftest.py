"""One cluster for the whole suite: the embedded one, or the control plane that the environment names."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from e2e.clusters.cluster import Cluster
from e2e.clusters.control_plane import control_plane
from e2e.clusters.embedded import embedded
from e2e.clusters.existing import existing
from e2e.waiting import eventually
from tests.interop.environments import python_with
from tests.prometheus import program as program_of_prometheus

# Behind `nohup` and in the background of a script Ctrl-C is ignored, and what tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = ("test_crash_sweep", "test_two_installs", "test_helm")
"""Minutes each: where several processes share the files, they begin with these."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have the longest files first."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)


def chosen(folder: Path) -> AbstractContextManager[Cluster]:
    """Return the cluster that the environment asks for.

    KUBECONFIG is ignored: tests must not change a cluster because that happens to be set.
    """
    if kubeconfig := os.environ.get("SHOAL_E2E_KUBECONFIG"):
        return existing(Path(kubeconfig), folder)
    if programs := os.environ.get("KUBEBUILDER_ASSETS"):
        return control_plane(Path(programs), folder)
    return embedded(folder)


@pytest.fixture(scope="session")
def programs() -> dict[str, Path]:
    """Install the gateways, each beside an interpreter of its own."""
    return {name: python_with(name).with_name(name) for name in ("envoy", "traefik")}


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """Unpack Prometheus."""
    return program_of_prometheus("prometheus")


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster; stop it, pods included, at the end, also when SIGTERM brings that."""
    asked = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    for name in asked & {"programs", "prometheus"}:
        # Now: from a network of its own nothing can be downloaded.
        request.getfixturevalue(name)
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.exit("SIGTERM"))
    with chosen(tmp_path_factory.mktemp("cluster")) as started:
        yield started
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Give a test a namespace of its own; afterwards its pods are gone, and the rest goes in its own time."""
    own = cluster.within(re.sub("[^a-z0-9]+", "-", request.node.name.lower())[-60:].strip("-"))
    own.create_namespace()
    try:
        yield own
    finally:
        own.kubectl("delete", "infsvc,infgraph,batchinf,deployments,jobs,pods", "--all", "--wait=false")
        eventually(lambda: not own.get("pods"), lambda: own.kubectl("describe", "pods", check=False).stdout)
        own.kubectl("delete", "namespace", own.namespace, "--wait=false")
