"""Resolution of mutable model names to versions, in the background: no reconciliation waits for a registry."""

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from urllib.parse import urlsplit

import aiohttp

from shoal_operator.children.observation import Key
from shoal_operator.loop.records import Records
from shoal_operator.manifests.origin import registry
from shoal_operator.models.resolution import (
    ModelResolution,
    is_of_model,
    is_version_of,
    pause_s,
    stored_version,
)
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.credentials import fault
from shoal_schema.resource.locations import (
    REDIRECTS,
    LocationError,
    VersionRequest,
    moves,
    redirected,
    rejection_reason,
    scheme_of,
    shown,
    version_request,
)

logger = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
"""For all requests that resolve one name (s)."""
_AT_A_TIME = 8
"""Names of one registry that are resolved concurrently."""
_MAX_REQUESTS = 3
_MAX_REDIRECTS = 3
MAX_BODY_BYTES = 2**22
"""The hub's response lists all files of a repository."""
_REMEDY = (
    ". The operator uses credentials of its own environment (the chart's value env), never model.secretName. Set them"
    " there, or set the version in model.uri (hf://OWNER/NAME@COMMIT, models:/NAME/VERSION)"
)
_UNTRUSTED = (
    ": its TLS certificate is not trusted. Set SSL_CERT_FILE of the operator (the chart's value env) to the file of its"
    " certificate authority, or set the version in model.uri"
)

ResolveName = Callable[[str], Awaitable[str]]


@dataclass(slots=True)
class ServiceModel:
    """The resolved version of one service's model name."""

    resolution: ModelResolution
    leave: Callable[["ServiceModel"], object]
    """Stops the requests that only this service needs."""
    since_s: float | None = None
    """Since when the service waits: a response to an earlier request belongs to another spec."""

    def close(self) -> None:
        """Stop requests for the model name that only this service needs."""
        self.leave(self)


@dataclass(slots=True)
class _NameState:
    """The last request for a model name, shared by all services that use it."""

    result: ModelResolution
    sent_s: float = float("-inf")
    due_s: float = float("-inf")
    failures: int = 0
    task: asyncio.Task[None] | None = None
    services: set[Key] = field(default_factory=set)


class Resolver:
    """Cache of model versions, filled by requests to registries.

    A new name is requested until its version is known. A name that a service follows is requested again at intervals.

    Args:
        resolve: returns the version of a model name; raises LocationError with the reason.
        mark: schedules a service's reconciliation after a delay (s).
        records: states of all services.
        clock: monotonic seconds.
        interval_s: interval between requests for a followed model name (s).
        environment: addresses and credentials of registries.
    """

    def __init__(
        self,
        resolve: ResolveName,
        mark: Callable[[Key, float], None],
        records: Records,
        clock: Callable[[], float],
        *,
        interval_s: float,
        environment: Mapping[str, str],
    ) -> None:
        self._resolve_name = resolve
        self._mark = mark
        self._records = records
        self._clock = clock
        self._interval_s = interval_s
        self._environment = environment
        self._names: dict[str, _NameState] = {}
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_AT_A_TIME))

    def resolution(self, key: Key, resource: Json, uri: str | None, *, follows: bool) -> ModelResolution | None:
        """Return a service's model resolution; None for a fixed version.

        A request to the registry starts in the background when it is due.

        Args:
            key: key of the service.
            resource: the service.
            uri: URI of the model; None if the spec has none.
            follows: whether to request the name again at intervals.

        Raises:
            LocationError: the URI is invalid.
        """
        if uri is None or not moves(uri):
            self._records.remove(key, ServiceModel)
            return None
        known = self._records.find(key, ServiceModel)
        if known is None or known.resolution.uri != uri:
            self._records.remove(key, ServiceModel)
            known = ServiceModel(ModelResolution(uri, stored_version(resource, uri)), partial(self._leave, key))
            self._records.put(key, known)
        # Use the last result, unless it is older than the service's spec.
        if follows or not known.resolution.resolved:
            if known.since_s is None:
                known.since_s = self._clock()
            name = self._names.setdefault(known.resolution.uri, _NameState(ModelResolution(known.resolution.uri)))
            name.services.add(key)
            if name.task is None and name.sent_s >= known.since_s:
                known.resolution = replace(name.result, resolved=name.result.resolved or known.resolution.resolved)
        # Start the next request, or reconcile again when it is due.
        if follows or not known.resolution.resolved:
            name = self._names[known.resolution.uri]
            answered = known.since_s is not None and name.sent_s >= known.since_s
            if name.task is None and answered and (wait_s := name.due_s - self._clock()) > 0:
                self._mark(key, wait_s)
            elif name.task is None:
                name.task = asyncio.create_task(self._resolve(known.resolution.uri, name))
            return known.resolution
        self._leave(key, known)
        # The version is known and not followed: earlier problems no longer matter.
        return ModelResolution(uri, known.resolution.resolved)

    def registry(self, uri: str) -> Mapping[str, str]:
        """Return the environment variables with the address of the registry of ``uri``."""
        return registry(uri, self._environment)

    async def close(self) -> None:
        """Cancel all requests to registries."""
        tasks = [name.task for name in self._names.values() if name.task]
        self._records.remove_all(ServiceModel)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _leave(self, key: Key, known: ServiceModel) -> None:
        known.since_s = None
        name = self._names.get(known.resolution.uri)
        if name is None or key not in name.services:
            return
        name.services.remove(key)
        # No service uses the name any more.
        if not name.services:
            del self._names[known.resolution.uri]
            if name.task:
                name.task.cancel()

    async def _resolve(self, uri: str, name: _NameState) -> None:
        try:
            async with self._slots[scheme_of(uri)]:
                name.sent_s = self._clock()
                async with asyncio.timeout(_TIMEOUT_S):
                    name.result = ModelResolution(uri, await self._resolve_name(uri))
            name.failures = 0
        except Exception as error:  # any failure of a registry becomes a condition
            name.failures += 1
            # The text must stay the same while the reason does: each change is written to the status.
            if isinstance(error, LocationError):
                problem = str(error)
            elif isinstance(error, TimeoutError):
                problem = f"{shown(uri)} cannot be resolved: no response of the registry within {_TIMEOUT_S:g} s"
            else:
                problem = f"{shown(uri)} cannot be resolved: {type(error).__name__}"
            name.result = ModelResolution(uri, problem=problem)
            logger.warning("event=not_resolved uri=%s error=%s", uri, problem)
        finally:
            name.task = None
            name.due_s = self._clock() + pause_s(name.failures, self._interval_s)
        # Reconcile all services that use the name.
        for key in name.services:
            self._mark(key, 0.0)


class Registries:
    """Client of the Hugging Face hub and of an MLflow server."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._session: aiohttp.ClientSession | None = None

    async def resolve(self, uri: str) -> str:
        """Return the version of a mutable model name.

        Raises:
            LocationError: the registry returns no version, or is unreachable.
        """
        found = uri
        # MLflow may need several requests, as a response may be a mutable name again.
        for _ in range(_MAX_REQUESTS):
            if wrong := fault(scheme_of(found), self._environment):
                raise LocationError(f"{shown(found)} cannot be resolved: {wrong}{_REMEDY}")
            try:
                request = version_request(found, self._environment)
            except LocationError as error:
                raise LocationError(f"{error}{_REMEDY}") from None
            if request is None or not moves(found):
                break
            found = request.read_uri(await self._get(found, request))
            if not is_of_model(found, uri):
                break
        if not is_version_of(found, uri):
            raise LocationError(f"the registry's response contains no version of {uri}")
        return found

    async def close(self) -> None:
        """Close the connections to registries."""
        if self._session is not None:
            await self._session.close()

    async def _get(self, uri: str, request: VersionRequest) -> object:
        if self._session is None:
            # Proxies and certificates come from the environment; aiohttp sends credentials to no other host.
            self._session = aiohttp.ClientSession(trust_env=True, cookie_jar=aiohttp.DummyCookieJar())
        server = urlsplit(request.url).netloc
        try:
            body = await self._body(uri, request, self._session)
        except (aiohttp.ClientError, OSError) as error:
            untrusted = isinstance(error, aiohttp.ClientConnectorCertificateError)
            why = f"{server} is unreachable ({type(error).__name__}){_UNTRUSTED if untrusted else ''}"
            raise LocationError(f"{shown(uri)} cannot be resolved: {why}") from None
        try:
            return json.loads(body)
        except ValueError:
            raise LocationError(f"the response of {server} is not JSON. Check that it is a registry") from None

    async def _body(self, uri: str, request: VersionRequest, session: aiohttp.ClientSession) -> bytes:
        """Return a successful response's body; follow redirects within the same server."""
        url = request.url
        for _ in range(_MAX_REDIRECTS):
            async with session.get(url, headers=dict(request.headers), allow_redirects=False) as response:
                if response.status == 200:
                    body = bytearray()
                    async for chunk in response.content.iter_any():
                        body += chunk
                        if len(body) > MAX_BODY_BYTES:
                            raise LocationError(f"the registry's response is longer than {MAX_BODY_BYTES} bytes")
                    return bytes(body)
                if response.status not in REDIRECTS or "location" not in response.headers:
                    remedy = _REMEDY if response.status in (401, 403) else ""
                    raise LocationError(f"{rejection_reason(uri, response.status)}{remedy}")
                # Raises for a redirect to another server, which must not receive the credentials.
                url = redirected(uri, url, response.headers["location"])
        raise LocationError(f"{shown(uri)} cannot be resolved: too many redirects of {urlsplit(url).netloc}")
