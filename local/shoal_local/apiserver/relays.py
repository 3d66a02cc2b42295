"""Streams of pods: container logs and `kubectl port-forward`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from shoal_local.apiserver.errors import ApiError, internal
from shoal_local.apiserver.spdy import BrokenFrameError, Data, Opened, Ping, Reset, Session, data_frame

_CONNECT = httpx.Timeout(None, connect=5.0)
"""A followed log may be silent for hours."""

PROTOCOL = "SPDY/3.1+portforward.k8s.io"
CONNECT_S = 5.0
_CHUNK_BYTES = 32 * 1024


async def log_response(url: str) -> Response:
    """Return a response that streams a log from a URL of the kubelet.

    Raises ApiError: 500, the kubelet is unreachable; or the status and message of the kubelet's error.
    """
    if not url:
        return PlainTextResponse("")
    # trust_env=False: loopback must not go through a proxy that the environment names.
    client = httpx.AsyncClient(timeout=_CONNECT, trust_env=False)
    try:
        response = await client.send(client.build_request("GET", url), stream=True)
    except httpx.HTTPError as error:
        await client.aclose()
        raise internal(f'Get "{url}": {error}') from None
    if response.status_code != 200:
        message = (await response.aread()).decode(errors="replace").strip()
        await client.aclose()
        reason = "BadRequest" if response.status_code == 400 else "NotFound"
        raise ApiError(response.status_code, reason, message)

    async def chunks() -> AsyncIterator[bytes]:
        async with contextlib.aclosing(client), contextlib.aclosing(response):
            # At the end of the kubelet or the container, the log ends.
            with contextlib.suppress(httpx.HTTPError):
                async for chunk in response.aiter_raw():
                    yield chunk

    return StreamingResponse(chunks(), media_type="text/plain")


async def forward(websocket: WebSocket, address: str) -> None:
    """Serve the streams of one port-forward until the client closes it."""
    await websocket.accept(subprotocol=PROTOCOL)
    forwarder = _Forwarder(websocket, address)
    async with asyncio.TaskGroup() as group:
        with contextlib.suppress(WebSocketDisconnect, BrokenFrameError):
            await forwarder.serve(group)
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):
        await websocket.close()


class _Forwarder:
    """The streams of a port-forward: errors and data of each connection."""

    def __init__(self, websocket: WebSocket, address: str) -> None:
        self._websocket = websocket
        self._address = address
        self._session = Session()
        # Error streams by request id: kubectl opens them before the data streams.
        self._errors: dict[str, int] = {}
        self._writers: dict[int, asyncio.StreamWriter] = {}

    async def serve(self, group: asyncio.TaskGroup) -> None:
        """Receive frames until the client disconnects."""
        try:
            while (message := await self._websocket.receive())["type"] == "websocket.receive":
                for frame in self._session.receive(message.get("bytes") or b""):
                    match frame:
                        case Opened():
                            await self._open(frame, group)
                        case Data(stream, data, last):
                            if (writer := self._writers.get(stream)) is not None:
                                # A pod that closed its side is reported by the reader.
                                with contextlib.suppress(OSError):
                                    writer.write(data)
                                    if last:
                                        writer.write_eof()
                                    await writer.drain()
                        case Reset(stream):
                            self._close(stream)
                        case Ping(response):
                            await self._websocket.send_bytes(response)
        finally:
            for stream in list(self._writers):
                self._close(stream)

    async def _open(self, opened: Opened, group: asyncio.TaskGroup) -> None:
        """Accept a stream; for data, connect to the requested port of the pod."""
        await self._websocket.send_bytes(self._session.accept(opened.stream))
        request = opened.headers.get("requestid", "")
        if opened.headers.get("streamtype") == "error":
            self._errors[request] = opened.stream
            return
        errors = self._errors.pop(request, 0)
        port = opened.headers.get("port", "")
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(self._address, int(port))
        except (OSError, ValueError, OverflowError) as error:
            message = f"cannot connect to port {port} of the pod's address {self._address}: {error}"
            await self._finish(opened.stream, errors, message)
            return
        self._writers[opened.stream] = writer
        group.create_task(self._read(reader, opened.stream, errors))

    async def _read(self, reader: asyncio.StreamReader, stream: int, errors: int) -> None:
        error = ""
        try:
            while data := await reader.read(_CHUNK_BYTES):
                await self._websocket.send_bytes(data_frame(stream, data))
        except OSError as failure:
            error = str(failure)
        except (RuntimeError, WebSocketDisconnect):
            # The client has disconnected.
            return
        await self._finish(stream, errors, error)
        self._close(stream)

    async def _finish(self, stream: int, errors: int, error: str) -> None:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            if errors:
                await self._websocket.send_bytes(data_frame(errors, error.encode(), last=True))
            await self._websocket.send_bytes(data_frame(stream, b"", last=True))

    def _close(self, stream: int) -> None:
        writer = self._writers.pop(stream, None)
        if writer is not None:
            writer.close()
