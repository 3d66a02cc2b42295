"""Callers of a served model: one that wants an answer, and many that never stop."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from e2e.clusters.cluster import Cluster

ROW = [float(number) for number in range(16)]
EXPECTED = [value + 1 for value in ROW]
TIMEOUT_S = 20.0
PAUSE_S = 0.01


def predict(cluster: Cluster, name: str = "adder", *, timeout_s: float = TIMEOUT_S) -> list[float]:
    """Return what the model makes of one row."""
    answer = httpx.post(_url(cluster.address(name), name), json={"instances": [ROW]}, timeout=timeout_s)
    assert answer.status_code == 200, answer.text
    prediction: list[float] = answer.json()["predictions"][0]
    return prediction


def metadata(cluster: Cluster, name: str = "adder") -> Any:
    """Return the model's metadata, of the Open Inference Protocol."""
    answer = httpx.get(f"{cluster.address(name)}/v2/models/{name}", timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    return answer.json()


@dataclass
class ResponseLog:
    """What callers got: rows that were answered, and what was said instead of an answer."""

    answered: int = 0
    failures: list[str] = field(default_factory=list)


@contextmanager
def background_clients(
    cluster: Cluster,
    name: str = "adder",
    *,
    keeping: int = 2,
    fresh: int = 0,
    timeout_s: float = TIMEOUT_S,
    address: str = "",
    host: str = "",
    answer: Sequence[float] = EXPECTED,
) -> Iterator[ResponseLog]:
    """Call without a pause that matters until the block ends.

    Args:
        cluster: where the service is.
        name: the service.
        keeping: callers that keep their connection.
        fresh: callers that open a connection for each request.
        timeout_s: how long each waits for an answer.
        address: of a gateway, instead of the Service's.
        host: the name that the gateway goes by.
        answer: what each of them should get.
    """
    url, seen, stop = _url(address or cluster.address(name), name), ResponseLog(), threading.Event()
    named = {"host": host} if host else {}
    once = {**named, "connection": "close"}
    with ThreadPoolExecutor(keeping + fresh) as pool:
        calls = [
            pool.submit(
                _call, url, seen, stop, list(answer), headers=named if number < keeping else once, timeout_s=timeout_s
            )
            for number in range(keeping + fresh)
        ]
        try:
            yield seen
        finally:
            stop.set()
    for call in calls:
        call.result()


def _call(
    url: str,
    seen: ResponseLog,
    stop: threading.Event,
    wanted: list[float],
    *,
    headers: dict[str, str],
    timeout_s: float,
) -> None:
    with httpx.Client(timeout=timeout_s, headers=headers) as client:
        while not stop.wait(PAUSE_S):
            try:
                answer = client.post(url, json={"instances": [ROW]})
            except httpx.HTTPError as error:
                seen.failures.append(repr(error))
                continue
            if answer.status_code == 200 and answer.json() == {"predictions": [wanted]}:
                seen.answered += 1
            else:
                seen.failures.append(f"{answer.status_code} {answer.text}")


def _url(address: str, name: str) -> str:
    return f"{address}/v1/models/{name}:predict"
