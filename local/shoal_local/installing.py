"""Installs the operator as a user would: renders the Helm chart and applies its objects."""

import asyncio
import json
from pathlib import Path

import yaml

from shoal_local.api_client import ApiClient
from shoal_local.apiserver.kinds.registry import BY_KIND
from shoal_local.objects import Object, dig
from shoal_local.services.forwarding import local_port
from shoal_schema.resource.policy import Policy

NAMESPACE = "shoal-system"
RELEASE = "shoal"
FIELD_MANAGER = "shoal-local"
SERVICE_PORT = 80
OPERATOR_IP = "$(OPERATOR_IP)"
"""Stands in the values for the address of the operator's Service, which the API server assigns."""
READY_S = 60.0
POLL_S = 0.1

_FIRST = ("Namespace", "CustomResourceDefinition", "ServiceAccount")
_LAST = ("Service", "Deployment")
"""Kinds that other objects need, and kinds that need other objects."""


class StartError(Exception):
    """The cluster or its operator did not start; the message names the part and the remedy."""


def chart_directory() -> Path:
    """Return the directory of the Helm chart.

    In a wheel it is beside this module, in a checkout at `charts/shoal`. Raises StartError: neither exists.
    """
    here = Path(__file__).parent
    for directory in (here / "chart", here.parents[1] / "charts" / "shoal"):
        if (directory / "Chart.yaml").exists():
            return directory
    raise StartError("the Helm chart was not found. Start with --no-operator and install the chart yourself")


def values() -> Object:
    """Return the chart's values for this cluster."""
    return {
        # The kubelet runs them as programs of this machine.
        "images": {name: {"repository": f"shoal/{name}"} for name in ("operator", "proxy", "runtime")},
        # Pods share the machine's network: each proxy must listen on its pod's own address.
        "podListenHost": "$(POD_IP)",
        "peers": False,
        # Models come from directories of this machine.
        "policy": {"volumes": [*Policy().volumes, "hostPath"]},
        # There is no DNS here: URLs in `kubectl get infsvc` hold addresses, which open from this machine.
        "activator": {"replicas": 1, "operatorUrl": f"http://{OPERATOR_IP}:8082"},
        "serviceUrl": f"http://$(CLUSTER_IP):{local_port(SERVICE_PORT)}".removesuffix(f":{SERVICE_PORT}"),
    }


def render(chart: Path) -> list[Object]:
    """Return the chart's objects in the order in which they can be created."""
    from helm_python import Chart  # noqa: PLC0415 (takes 0.5 s, and only `up` needs it)

    with Chart.load(str(chart)) as loaded:
        files = loaded.render(values=values(), name=RELEASE, namespace=NAMESPACE)
    texts = [text for path, text in files.items() if path.endswith((".yaml", ".yml"))]
    # Hooks are for `helm test`, and this is not Helm.
    bodies = [body for text in texts for body in yaml.safe_load_all(text) if body]
    objects = [body for body in bodies if not dig(body, "metadata", "annotations", "helm.sh/hook")]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    others = sorted({body["kind"] for body in objects} - {*_FIRST, *_LAST})
    order = [*_FIRST, *others, *_LAST]
    return [namespace, *sorted(objects, key=lambda body: order.index(body["kind"]))]


async def install(client: ApiClient, chart: Path, ready_s: float = READY_S) -> None:
    """Apply the chart and wait until the operator is available.

    Raises StartError: the operator is not available after ``ready_s``.
    """
    address = ""
    for body in render(chart):
        if BY_KIND[body["kind"]].namespaced:
            body["metadata"].setdefault("namespace", NAMESPACE)
        addressed = json.loads(json.dumps(body).replace(OPERATOR_IP, address))
        stored = await client.apply(addressed, FIELD_MANAGER)
        # Services precede Deployments, so the address is known when it is needed.
        address = dig(stored, "spec", "clusterIP") or address
    try:
        async with asyncio.timeout(ready_s):
            while True:
                deployment = await client.get("Deployment", NAMESPACE, f"{RELEASE}-operator")
                status, wanted = deployment.get("status") or {}, deployment["metadata"].get("generation", 0)
                # After an upgrade the counts are of the old pods until the controller has observed the new generation.
                observed = status.get("observedGeneration", 0) >= wanted
                if observed and status.get("updatedReplicas") and status.get("availableReplicas"):
                    return
                # Once, for seconds: not worth a watch.
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        pods = (await client.list("Pod"))["items"]
        causes = pod_failures([pod for pod in pods if pod["metadata"]["namespace"] == NAMESPACE])
        raise StartError(
            f"the operator is not available after {ready_s:g} s{causes}\n"
            f"See: kubectl -n {NAMESPACE} describe pods; kubectl -n {NAMESPACE} logs deployment/{RELEASE}-operator"
        ) from None


def pod_failures(pods: list[Object]) -> str:
    """Return why the pods' containers wait or ended, one line per reason."""
    statuses = [status for pod in pods for status in (pod.get("status") or {}).get("containerStatuses") or []]
    lines: list[str] = []
    for status in statuses:
        states = [status.get(part) or {} for part in ("state", "lastState")]
        waiting = [state["waiting"] for state in states if "waiting" in state]
        lines += [f"{found['reason']}: {found.get('message', '')}" for found in waiting]
        ended = [state["terminated"] for state in states if "terminated" in state]
        lines += [found["message"].strip().splitlines()[-1] for found in ended if found.get("message", "").strip()]
    return "".join(f"\n  {line}" for line in lines)
