"""Client of the API server, with retries and renewed credentials.

It uses the official client with plain JSON, and never loads the thousands of generated model classes.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import aiohttp
from kubernetes.aio.client import ApiClient
from kubernetes.aio.config import ConfigException
from kubernetes.aio.utils import Backoff, is_retry_after_response, on_retry_after_error, retry_after_seconds

from shoal_operator.children.observation import dig
from shoal_operator.cluster.connection import TOKEN
from shoal_operator.cluster.encoding import encoded
from shoal_operator.errors import ApiError
from shoal_schema.fields.declaring import Json

JSON = "application/json"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
MAX_WAIT_S = 5.0
"""The longest Retry-After that is honored (s). A longer one counts as an outage: reconciliation is retried later."""
_TIMEOUT = aiohttp.ClientTimeout(total=20)
_TRIES = Backoff(steps=3, duration=0.0, factor=1.0)

Connect = Callable[[], Awaitable[ApiClient]]
Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    body: Json | None
    query: Mapping[str, str]
    kind: str


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    reason: str
    headers: Mapping[str, str]
    text: str


class ApiServer:
    """Client of the API server, which retries and renews credentials.

    Args:
        connect: returns a client with address and credentials; called again when the credentials expire.
        sleep: waits for a number of seconds, before a retry.
        count: called with each request's method and HTTP status (0 without a response).
    """

    def __init__(
        self, connect: Connect, sleep: Sleep = asyncio.sleep, count: Callable[[str, int], object] = lambda *_: None
    ) -> None:
        self._connect = connect
        self._sleep = sleep
        self._count = count
        self._opening: asyncio.Task[ApiClient] | None = None
        self._client: ApiClient | None = None
        # Requests may still be in flight on the client whose credentials expired.
        self._former: ApiClient | None = None

    async def close(self) -> None:
        """Close all connections to the API server."""
        if self._opening is not None:
            self._opening.cancel()
        for client in (self._client, self._former):
            if client is not None:
                await client.close()
        self._client = self._former = None

    async def request(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: Mapping[str, str] | None = None,
        kind: str = JSON,
        check: Callable[[], object] = lambda: None,
    ) -> Json:
        """Send one request and return the response's JSON; honor Retry-After.

        Args:
            method: the HTTP method.
            path: as `shoal_operator.cluster.objects.object_path` returns it.
            body: JSON.
            query: parameters, not yet quoted.
            kind: media type of the body.
            check: called before each attempt; an exception prevents the attempt.

        Raises:
            ApiError: the status is not a success, or there is no response.
        """
        request = _Request(method, path, body, query or {}, kind)

        async def send() -> Json:
            return await self._send(request, check)

        # A longer wait is left to the next reconciliation.
        return await on_retry_after_error(
            _TRIES,
            lambda error: is_retry_after_response(error) and (retry_after_seconds(error) or 0.0) <= MAX_WAIT_S,
            send,
            self._sleep,
        )

    async def _send(self, request: _Request, check: Callable[[], object]) -> Json:
        client = await self._opened(instead_of=None)
        check()
        response = await self._try(client, request)
        # The credentials have expired: read them anew and retry once.
        if response.status == 401:
            client = await self._opened(instead_of=client)
            check()
            response = await self._try(client, request)
        try:
            body = json.loads(response.text) if response.text else {}
        except ValueError:
            body = {}
        if response.status < 400 and isinstance(body, dict):
            return body
        message = body.get("message") if isinstance(body, dict) else None
        message = message or response.text[:500] or response.reason or "no message"
        if response.status == 401:
            message += ". New credentials are rejected too. Check whether the token or the certificate has expired"
        causes: list[Json] = dig(body, "details", "causes", default=[])
        raise ApiError(response.status, message, response.headers, [str(each.get("reason", "")) for each in causes])

    async def _try(self, client: ApiClient, request: _Request) -> _Response:
        status = 0
        try:
            response = await _exchange(client, request)
            status = response.status
            return response
        finally:
            self._count(request.method, status)

    async def _opened(self, *, instead_of: ApiClient | None) -> ApiClient:
        if self._client is not None and self._client is not instead_of:
            return self._client
        # Log in once, however many requests wait.
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name="credentials")
        # All pending requests share one login. A request that times out first (the Lease's) must not cancel it.
        return await asyncio.shield(self._opening)

    async def _open(self) -> ApiClient:
        try:
            client = await self._connect()
            # Requests on the client before the former one have ended by now.
            if self._former is not None:
                await self._former.close()
            self._client, self._former = client, self._client
            return client
        finally:
            self._opening = None


async def _exchange(client: ApiClient, request: _Request) -> _Response:
    """Send a request once and return the response, of any status."""
    headers = {"Accept": JSON, "Content-Type": request.kind}
    body: Json | bytes | None = request.body
    if request.kind == APPLY and request.body is not None:
        # The client's JSON is not always YAML (see `encoding`). It passes bytes through unless the media type is
        # exactly APPLY; the API server ignores the parameter.
        headers["Content-Type"] = f"{APPLY}; charset=utf-8"
        body = encoded(request.body)
    try:
        prepared = await client.param_serialize(
            request.method,
            request.path,
            query_params=dict(request.query),
            header_params=headers,
            body=body,
            auth_settings=[TOKEN],
        )
        response = await client.call_api(*prepared, _request_timeout=_TIMEOUT)
        text = (await response.read()).decode("utf-8", "replace")
    except (aiohttp.ClientError, TimeoutError, ConfigException, OSError) as error:
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            found = getattr(error.certificate_error, "verify_message", "") or error.certificate_error
            why = (
                f"the API server's certificate is not trusted: {found}. Renew it, or correct certificate-authority in"
                " the kubeconfig"
            )
        elif isinstance(error, ConfigException):
            why = f"the credentials cannot be read: {error}"
        else:
            why = f"the API server is unreachable: {type(error).__name__} {error}"
        raise ApiError(0, f"{request.method} {request.path}: {why}") from error
    return _Response(response.status, response.reason or "", response.headers, text)
