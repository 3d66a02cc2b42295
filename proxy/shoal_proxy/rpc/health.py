"""gRPC's health service (`grpc.health.v1`), which probes and load balancers use."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2 as messages
from grpc_health.v1.health import SERVICE_NAME

MAX_WATCHES: Final = 64
"""Most watches: each is a call that the client keeps open."""
_PERIOD_S: Final = 0.5

Status = messages.HealthCheckResponse.ServingStatus


class Health:
    """gRPC health service, which reports whether this replica is ready.

    Args:
        reason: returns why the replica is not ready; empty if it is.
        services: names of the served services; the empty name is always served.
        read: returns the only message of a call, or ends the call.
    """

    def __init__(
        self,
        reason: Callable[[], str],
        services: Collection[str],
        read: Callable[[AsyncIterator[bytes], Any], Awaitable[bytes]],
    ) -> None:
        self._reason = reason
        self._read = read
        self._services = {"", SERVICE_NAME, *services}
        self._watches = 0
        self._ended = asyncio.Event()

    def handler(self) -> Any:
        """Return the health service's handler for a gRPC server."""
        answer = messages.HealthCheckResponse.SerializeToString
        # Streams, so that the memory of their messages is counted.
        check = grpc.stream_unary_rpc_method_handler(self._check, response_serializer=answer)
        watch = grpc.stream_stream_rpc_method_handler(self._watch, response_serializer=answer)
        return grpc.method_handlers_generic_handler(SERVICE_NAME, {"Check": check, "Watch": watch})

    def end(self) -> None:
        """End all watching calls, which would delay the server's stop."""
        self._ended.set()

    def _status(self, service: str) -> Any:
        if service not in self._services:
            return Status.SERVICE_UNKNOWN
        return Status.NOT_SERVING if self._reason() else Status.SERVING

    async def _request(self, requests: AsyncIterator[bytes], context: Any) -> Any:
        message = await self._read(requests, context)
        try:
            return messages.HealthCheckRequest.FromString(message)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "malformed message")

    async def _check(self, requests: AsyncIterator[bytes], context: Any) -> Any:
        request = await self._request(requests, context)
        status = self._status(request.service)
        if status == Status.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {request.service!r}")
        return messages.HealthCheckResponse(status=status)

    async def _watch(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        """Yield the readiness at once, and again whenever it changes."""
        request = await self._request(requests, context)
        if self._watches >= MAX_WATCHES:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"the limit of {MAX_WATCHES} watches is reached")
        self._watches += 1
        try:
            last = None
            while True:
                # When the server stops, watches end with NOT_SERVING.
                ended = self._ended.is_set()
                if (status := Status.NOT_SERVING if ended else self._status(request.service)) != last:
                    last = status
                    yield messages.HealthCheckResponse(status=status)
                if ended:
                    return
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PERIOD_S):
                        await self._ended.wait()
        finally:
            self._watches -= 1
