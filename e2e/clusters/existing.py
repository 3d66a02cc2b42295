"""An existing control plane without nodes, which this machine joins for the run."""

import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from e2e.clusters.cluster import OURS, Cluster
from e2e.clusters.joined import NODE, Joined, install_operator
from e2e.clusters.kubectl import kubectl
from e2e.clusters.network import POD_CIDR
from shoal_local.installing import chart_directory, render


@contextmanager
def existing(kubeconfig: Path, folder: Path) -> Iterator[Cluster]:
    """Join the cluster, and install the operator; remove both at the end."""
    nodes = kubectl(kubeconfig, "get", "nodes", "--output", "name").stdout.split()
    others = [name for name in nodes if name != f"node/{NODE}"]
    assert not others, f"the pods of this suite run on this machine only; the cluster has other nodes: {others}"
    text = kubectl(kubeconfig, "config", "view", "--raw", "--flatten", "--minify").stdout
    (folder / "kubeconfig").write_text(text)
    node = Joined(folder, _own_address(text), POD_CIDR, _service_cidr(kubeconfig))
    try:
        node.start()
        install_operator(node.kubeconfig)
        yield Cluster(folder, node)
    finally:
        _clean(node)


def _service_cidr(kubeconfig: Path) -> str:
    path = "jsonpath={.spec.cidrs[0]}"
    return kubectl(kubeconfig, "get", "servicecidr", "kubernetes", "--output", path).stdout


def _own_address(kubeconfig: str) -> str:
    """Return the address of this machine that the API server's machine sees."""
    url = urlsplit(yaml.safe_load(kubeconfig)["clusters"][0]["cluster"]["server"])
    with socket.create_connection((url.hostname, url.port or 443), timeout=10) as connection:
        return str(connection.getsockname()[0])


def _clean(node: Joined) -> None:
    """Remove what the run put there: the node goes last, as pods end on it."""
    kubectl(node.kubeconfig, "delete", "infsvc,batchinf", "--all", "--all-namespaces", check=False)
    kubectl(node.kubeconfig, "delete", "namespace", "--selector", OURS, "--timeout=60s", check=False)
    chart = yaml.safe_dump_all(reversed(render(chart_directory())))
    options = ("--ignore-not-found", "--timeout=60s", "--filename", "-")
    kubectl(node.kubeconfig, "delete", *options, text=chart, check=False)
    node.stop()
    kubectl(node.kubeconfig, "delete", "node", NODE, "--ignore-not-found", check=False)
    shutil.rmtree(node.folder / "node", ignore_errors=True)
