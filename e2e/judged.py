"""A service whose rollouts are judged: its clients, its spec, and what the operator reports."""

import ssl
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from e2e.clusters.cluster import Cluster
from e2e.waiting import eventually

NAME = "drifting"
CANDIDATE = f"{NAME}-candidate"
SHADOW: dict[str, Any] = {"strategy": "Shadow", "drainDelaySeconds": 0}
CANARY: dict[str, Any] = {**SHADOW, "strategy": "Canary"}
ENDLESS = 100_000_000
"""Rows of a step that no test finishes."""


@dataclass
class Responses:
    """What clients got: rows by revision, and what was wrong."""

    revisions: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def answered(self) -> int:
        return sum(self.revisions.values())


@contextmanager
def clients(
    cluster: Cluster,
    name: str = NAME,
    *,
    adds: int = 1,
    headers: Mapping[str, str] | None = None,
    trust: ssl.SSLContext | None = None,
    timeout_s: float = 20,
) -> Iterator[Responses]:
    """Send rows that all differ, over kept connections, until the block ends.

    Args:
        cluster: where the service is.
        name: the service or graph.
        adds: what each number of a row must grow by.
        headers: of each request.
        trust: for TLS to the service, by its name in the cluster.
        timeout_s: how long each request may take.
    """
    address, count = cluster.address(name), 4
    url = f"{address.replace('http:', 'https:') if trust else address}/v1/models/{name}:predict"
    known_as = {"sni_hostname": f"{name}.{cluster.namespace}.svc"} if trust else {}
    seen, stop = Responses(), threading.Event()

    def call(number: int) -> None:
        # A handshake may meet a pod's end on a busy machine. It carries no request, so clients connect again.
        transport = httpx.HTTPTransport(verify=trust or True, retries=2 if trust else 0)
        with httpx.Client(timeout=timeout_s, headers=headers, transport=transport) as client:
            while not stop.wait(0.005):
                number += count
                row = [float(number), *map(float, range(15))]
                try:
                    response = client.post(url, json={"instances": [row]}, extensions=known_as)
                except httpx.HTTPError as error:
                    seen.failures.append(repr(error))
                    continue
                if response.status_code != 200 or response.json() != {"predictions": [[x + adds for x in row]]}:
                    seen.failures.append(f"{response.status_code} {response.text:.200}")
                else:
                    seen.revisions[response.headers.get("x-shoal-revision", "")] += 1

    with ThreadPoolExecutor(count) as pool:
        calls = [pool.submit(call, number) for number in range(count)]
        try:
            yield seen
        finally:
            stop.set()
    for each in calls:
        each.result()


def apply(
    cluster: Cluster, rollout: dict[str, Any], fields: Mapping[str, Any] | None = None, **parameters: Any
) -> None:
    """Apply the service: its rollout, other fields of the spec, and parameters of the model."""
    model = {"uri": "file:///models/drifting", "parameters": {"version": 1, **parameters}}
    cluster.apply(NAME, model=model, rollout=rollout, **({"replicas": 1} if fields is None else fields))


def judged(cluster: Cluster) -> str:
    """Return the reason of the condition, if it is about the newest spec."""
    generation = cluster.get("infsvc", NAME)["metadata"]["generation"]
    condition = cluster.condition(NAME, "CandidateJudged")
    return str(condition.get("reason", "")) if condition.get("observedGeneration") == generation else ""


def rollout_of(cluster: Cluster) -> dict[str, Any]:
    state: dict[str, Any] = cluster.get("infsvc", NAME)["status"].get("rollout", {})
    return state


def described(cluster: Cluster) -> str:
    return cluster.kubectl("describe", "infsvc,deployments,pods", check=False).stdout


def until(cluster: Cluster, *reasons: str) -> None:
    """Wait until the newest spec has one of these reasons."""
    eventually(lambda: judged(cluster) in reasons, lambda: described(cluster), within_s=120)
