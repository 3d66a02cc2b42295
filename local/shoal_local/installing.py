"""Installs the operator in the cluster as a user would: the Helm chart, rendered and applied."""

import asyncio
from pathlib import Path
from typing import Any

import yaml

from shoal_local.api_client import DEPLOYMENTS, ApiClient, Resource
from shoal_local.local_network import reached_port

Object = dict[str, Any]

NAMESPACE = "shoal-system"
RELEASE = "shoal"
FIELD_MANAGER = "shoal-local"
SERVICE_PORT = 80
READY_S = 30.0
POLL_S = 0.1

_RBAC = "rbac.authorization.k8s.io/v1"
_KINDS = {
    resource.kind: resource
    for resource in (
        Resource("v1", "Namespace", "namespaces", namespaced=False),
        Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False),
        Resource("v1", "ServiceAccount", "serviceaccounts"),
        Resource(_RBAC, "ClusterRole", "clusterroles", namespaced=False),
        Resource(_RBAC, "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
        Resource(_RBAC, "Role", "roles"),
        Resource(_RBAC, "RoleBinding", "rolebindings"),
        DEPLOYMENTS,
    )
}


class CannotInstallError(Exception):
    """The operator is not installed; the message says what to do."""


def chart_folder() -> Path:
    """Return the chart: packed beside this module in a wheel, in `charts/` of a checkout.

    Raises:
        CannotInstallError: neither is there.
    """
    here = Path(__file__).parent
    for folder in (here / "chart", here.parents[1] / "charts" / "shoal"):
        if (folder / "Chart.yaml").exists():
            return folder
    raise CannotInstallError("the Helm chart is not here; start with --no-operator and install it yourself")


def values() -> Object:
    """Return what this cluster sets in the chart."""
    return {
        # Pods share one network here: each proxy must listen on its pod's own address.
        "podListenHost": "$(POD_IP)",
        # There are no names here; what `kubectl get infsvc` shows can be opened from this machine.
        "serviceUrl": f"http://$(CLUSTER_IP):{reached_port(SERVICE_PORT)}".removesuffix(f":{SERVICE_PORT}"),
    }


def render(chart: Path) -> list[Object]:
    """Return the chart's objects, in the order in which they can be created."""
    from helm_python import Chart  # noqa: PLC0415 (half a second, and only `up` needs it)

    with Chart.load(str(chart)) as loaded:
        files = loaded.render(values=values(), name=RELEASE, namespace=NAMESPACE)
    texts = [text for path, text in files.items() if path.endswith((".yaml", ".yml"))]
    objects = [body for text in texts for body in yaml.safe_load_all(text) if body]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    order = list(_KINDS)
    return [namespace, *sorted(objects, key=lambda body: order.index(body["kind"]))]


async def install(client: ApiClient, chart: Path) -> None:
    """Apply the chart and wait until the operator runs.

    Raises:
        CannotInstallError: it does not run in time.
    """
    for body in render(chart):
        resource = _KINDS[body["kind"]]
        if resource.namespaced:
            body["metadata"].setdefault("namespace", NAMESPACE)
        await client.apply(resource, body, FIELD_MANAGER)
    try:
        async with asyncio.timeout(READY_S):
            while not await _operator_runs(client):  # noqa: ASYNC110 (seconds, once: not worth a watch)
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise CannotInstallError(
            f"the operator is not ready after {READY_S:g} s: kubectl -n {NAMESPACE} describe pods"
        ) from None


async def _operator_runs(client: ApiClient) -> bool:
    deployment = await client.get(DEPLOYMENTS, NAMESPACE, f"{RELEASE}-operator")
    return bool((deployment.get("status") or {}).get("availableReplicas"))
