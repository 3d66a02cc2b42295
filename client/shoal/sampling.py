"""Sample the load of services: from proxies by HTTP, or from a cluster's operator through kubectl.

Proxies on one machine are queried at their admin ports. In a cluster the operator has the load of every pod, so one
port-forward is enough; the status of each service is read from the API server.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

import httpx
import msgspec

from shoal.discovery import POD_ADMIN_PORT
from shoal.errors import ConnectionFailed, ServerFailed, ShoalError
from shoal.exchange import base_url
from shoal.kubectl import forwarded, kubectl, output_of
from shoal.serving.errors import LocalError
from shoal.watching.samples import ServiceSample, cluster_sample
from shoal_schema.fields.redaction import redacted_value, visible
from shoal_schema.interfaces import fleet, load

TIMEOUT_S: Final = 5.0
OPERATOR_PORT: Final = 8082
_OPERATORS: Final = "app.kubernetes.io/name=shoal,app.kubernetes.io/component=operator"
_What = TypeVar("_What")


class Source(Protocol):
    """Source of load samples: proxies on one machine, or a cluster."""

    async def sample(self) -> dict[str, ServiceSample]:
        """Return a sample of every service.

        Raises:
            ShoalError: no service can be sampled.
        """
        ...

    async def explain(self, service: str) -> list[str]:
        """Return sentences about a service's bottleneck."""
        ...


@dataclass(frozen=True, slots=True)
class Sample:
    """Sample of all services at one time, or the error of the source."""

    source: Source | None
    """Its source; None if there is none."""
    seen: Mapping[str, ServiceSample]
    error: str = ""
    """Why there is no sample; empty otherwise."""
    time_s: float = field(default_factory=time.monotonic)


class _Report(msgspec.Struct, frozen=True):
    model: str


class _ProxyExplanation(msgspec.Struct, frozen=True):
    """The model and the sentences in a ``/v1/explain`` response."""

    report: _Report
    sentences: list[str]


class ProxySource:
    """Source of samples that queries proxies at their admin ports.

    Args:
        client: the HTTP client.
        find: returns the URLs of the admin ports, which may change between samples.
    """

    def __init__(self, client: httpx.AsyncClient, find: Callable[[], Sequence[str]]) -> None:
        self._client = client
        self._find = find
        # Each with its text without user and password.
        self._urls: dict[str, str] = {}
        self._names: dict[str, str] = {}

    async def sample(self) -> dict[str, ServiceSample]:
        """Return a sample of each proxy, by model name; unreachable proxies are included."""
        found = self._find()
        self._urls = {}
        for address in (f"{base_url(url)}".rstrip("/") for url in found):
            text, number = redacted_value(address), len(self._urls) + 1
            # A number distinguishes equal texts.
            self._urls.setdefault(address, f"{text} ({number})" if text in self._urls.values() else text)
        # The port of a server that has ended may become another one's.
        self._names = {url: name for url, name in self._names.items() if url in self._urls}
        seen = await asyncio.gather(*(self._sample(url) for url in self._urls))
        # Without any name, no proxy has ever answered.
        if not self._names:
            places = ", ".join(self._urls.values())
            raise ConnectionFailed(f"no proxy responds at {places}. Pass the admin port of shoal serve")
        return {self._names.get(url, place): each for (url, place), each in zip(self._urls.items(), seen, strict=True)}

    async def _sample(self, url: str) -> ServiceSample:
        try:
            if url not in self._names:
                # Asked once: the model of a proxy does not change.
                name = visible((await _explained(self._client, url)).report.model)
                # Two proxies may serve models of one name.
                self._names[url] = name if name not in self._names.values() else f"{name} {self._urls[url]}"
            found = await _read(self._client, url + load.PATH, load.Load)
        except (ConnectionFailed, ServerFailed) as error:
            return ServiceSample({self._urls[url]: None}, state="Unreachable", well=False, says=visible(str(error)))
        ready = found.expected_wait_s is not None
        return ServiceSample(
            {self._urls[url]: found},
            state="Ready" if ready else "Draining" if found.draining else "NotReady",
            well=ready,
        )

    async def explain(self, service: str) -> list[str]:
        """Return the sentences of the service's ``/v1/explain`` response."""
        named = self._urls | self._names
        url = next((url for url, name in named.items() if name == service), service)
        return await _sentences(self._client, url)


class ClusterSource:
    """Source of samples that reads a cluster's services from the operator and the API server.

    Args:
        client: the HTTP client for forwarded ports.
        command: kubectl, with the options that select the cluster.
        namespace: the namespace of the services; empty for all.
        operator: URL of the operator.
    """

    def __init__(self, client: httpx.AsyncClient, command: Sequence[str], namespace: str, operator: str) -> None:
        self._client = client
        self._kubectl = command
        self._namespace = namespace
        self._operator = operator
        self._pods: dict[str, tuple[str, str]] = {}

    async def sample(self) -> dict[str, ServiceSample]:
        """Return the load of each service's pods, from the operator, and its status."""
        scope = ("--namespace", self._namespace) if self._namespace else ("--all-namespaces",)
        fleet_load, resources = await asyncio.gather(
            _read(self._client, self._operator + fleet.PATH, fleet.Fleet),
            _objects(self._kubectl, "get", "inferenceservices.serving.shoal.dev", *scope),
        )
        pods = {(each.namespace, each.name): each.pods for each in fleet_load.services}
        compared = {(each.namespace, each.name): each.candidates for each in fleet_load.services}
        seen = {}
        for resource in resources:
            namespace, name = resource["metadata"]["namespace"], resource["metadata"]["name"]
            # A service without pods has no entry in the operator's response.
            loads = {pod.name: pod.load for pod in pods.get((namespace, name), ())}
            candidates = {pod.name: pod.load for pod in compared.get((namespace, name), ())}
            seen[f"{namespace}/{name}"] = cluster_sample(resource, loads, candidates)
            if loads:
                self._pods[f"{namespace}/{name}"] = (namespace, next(iter(loads)))
        return seen

    async def explain(self, service: str) -> list[str]:
        """Return the sentences of the ``/v1/explain`` response of one of the service's pods."""
        if service not in self._pods:
            return []
        namespace, pod = self._pods[service]
        async with forwarded(self._kubectl, namespace, pod, POD_ADMIN_PORT) as url:
            return [f"Pod {pod}:", *await _sentences(self._client, url)]


@asynccontextmanager
async def proxy_source(find: Callable[[], Sequence[str]]) -> AsyncIterator[Source]:
    """Yield a source that samples the proxies at the admin ports that ``find`` returns, open during the block."""
    async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
        yield ProxySource(client, find)


@asynccontextmanager
async def cluster_source(context: str, namespace: str) -> AsyncIterator[Source]:
    """Yield a source that samples the services of a cluster, open during the block.

    Raises:
        LocalError: kubectl is not installed, or the cluster has no leading operator.
    """
    command = kubectl("--cluster", context, ". Install it, or pass the URLs of proxies")
    operators = await _objects(command, "get", "pods", "--all-namespaces", "--selector", _OPERATORS)
    async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client, AsyncExitStack() as stack:
        for pod in operators:
            forward = forwarded(command, pod["metadata"]["namespace"], pod["metadata"]["name"], OPERATOR_PORT)
            with contextlib.suppress(ConnectionFailed):
                url = await stack.enter_async_context(forward)
                try:
                    await _get(client, url + fleet.PATH)
                    break
                except ServerFailed:  # a standby has no load
                    continue
        else:
            names = ", ".join(pod["metadata"]["name"] for pod in operators)
            raise LocalError(
                f"none of the operator's pods is the leader: {names}"
                if names
                else "the cluster has no pod of Shoal's operator"
            )
        yield ClusterSource(client, command, namespace, url)


async def samples(
    opened: Callable[[], AbstractAsyncContextManager[Source]], interval_s: float
) -> AsyncIterator[Sample]:
    """Yield samples forever; if the source fails, yield the error and open the source again.

    Raises:
        ShoalError, LocalError: the first sample fails.
    """
    began = False
    while True:
        try:
            async with opened() as source:
                while True:
                    yield Sample(source, await source.sample())
                    began = True
                    await asyncio.sleep(interval_s)
        except (ShoalError, LocalError) as error:
            if not began:
                raise
            yield Sample(None, {}, str(error))
            await asyncio.sleep(interval_s)


async def _objects(command: Sequence[str], *words: str) -> list[Any]:
    """Return the items of the list that kubectl prints."""
    return list(json.loads(await output_of(command, *words, "--output", "json"))["items"])


async def _explained(client: httpx.AsyncClient, url: str) -> _ProxyExplanation:
    return await _read(client, f"{url}/v1/explain", _ProxyExplanation)


async def _sentences(client: httpx.AsyncClient, url: str) -> list[str]:
    return [visible(each) for each in (await _explained(client, url)).sentences]


async def _read(client: httpx.AsyncClient, url: str, what: type[_What]) -> _What:
    try:
        return msgspec.json.decode(await _get(client, url), type=what)
    except msgspec.MsgspecError as error:
        raise ServerFailed(f"the response of {url} is not from a Shoal process: {error}", status=200) from None


async def _get(client: httpx.AsyncClient, url: str) -> bytes:
    try:
        response = await client.get(url, headers={"accept": "application/json"})
    except httpx.HTTPError as error:
        raise ConnectionFailed(f"cannot reach {url}: {error or type(error).__name__}") from error
    if response.status_code != 200:
        raise ServerFailed(
            f"{url} returned {response.status_code}: {visible(response.text[:200])}", status=response.status_code
        )
    return response.content
