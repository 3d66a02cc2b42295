"""Two pods, and callers whose connections all lead to one of them."""

import asyncio
from ipaddress import IPv4Address
from typing import Any

import httpx

from e2e.clients import ROW
from e2e.clusters.cluster import Cluster
from e2e.test_scaling import ADMIN_PORT, explain, is_ready
from e2e.waiting import eventually

PORT = 8080
SERVICE: dict[str, Any] = {
    # About a hundred rows a second of a pod, with the objective kept.
    "model": {"uri": "file:///models/adder", "parameters": {"baseMicroseconds": 80_000, "perRowMicroseconds": 8_000}},
    "batching": {"maxBatchSize": 64, "latencyObjectiveMilliseconds": 800},
    "replicas": 2,
}


def ready_addresses(cluster: Cluster) -> list[str]:
    """Return the addresses of the pods that are ready and not about to go."""
    pods = [pod for pod in cluster.get("pods") if is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]
    return [pod["status"]["podIP"] for pod in pods]


def burst(address: str, requests: int = 120, host: str = "") -> list[int]:
    """Send so many at once to one address, a pod's or that of a gateway for a host; return the statuses."""

    async def run() -> list[int]:
        limits = httpx.Limits(max_connections=requests)
        headers = {"host": host} if host else {}
        async with httpx.AsyncClient(limits=limits, timeout=20, headers=headers) as client:
            url = f"http://{address}/v1/models/adder:predict"
            asked = [client.post(url, json={"instances": [ROW]}) for _ in range(requests)]
            return [answer.status_code for answer in await asyncio.gather(*asked)]

    return asyncio.run(run())


def forwarded(address: str) -> float:
    """Return how many requests of a pod a peer has answered."""
    text = httpx.get(f"http://{address}:{ADMIN_PORT}/metrics", timeout=10).text
    lines = [line.split() for line in text.splitlines() if line.startswith("shoal_proxy_forwarded_total")]
    return sum(float(value) for name, value in lines if "answered" in name)


def become_peers(cluster: Cluster) -> None:
    """Have two new pods that know each other.

    This cluster has no DNS: pods get the next addresses, and unused addresses do no harm.
    """
    last = max(map(IPv4Address, ready_addresses(cluster)))
    peers = ",".join(f"{last + number}:{PORT}" for number in range(1, 13))
    cluster.apply(**SERVICE, proxy={"env": [{"name": "SHOAL_PROXY_PEERS", "value": peers}]})
    cluster.until_ready()
    eventually(lambda: len(ready_addresses(cluster)) == 2, lambda: explain(cluster))


def test_requests_that_one_pod_cannot_serve_in_time_are_served_by_the_other(namespace: Cluster) -> None:
    namespace.apply(**SERVICE)
    namespace.until_ready()
    eventually(lambda: len(ready_addresses(namespace)) == 2, lambda: explain(namespace))
    first = ready_addresses(namespace)[0]
    burst(f"{first}:{PORT}")  # what batches take is learned
    alone = burst(f"{first}:{PORT}")

    become_peers(namespace)
    first = ready_addresses(namespace)[0]
    burst(f"{first}:{PORT}")
    together = burst(f"{first}:{PORT}")
    assert forwarded(first) > 0
    assert set(alone + together) <= {200, 503}, (alone, together)
    assert together.count(503) < 0.75 * alone.count(503)
