"""Passes streams on from where pods run: a container's log, and the connections of `kubectl port-forward`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from shoal_local.apiserver.errors import ApiError, internal
from shoal_local.apiserver.spdy import BrokenFrameError, Data, Frame, Opened, Ping, Reset, Session, data_frame

_CONNECT = httpx.Timeout(None, connect=5.0)

PROTOCOL = "SPDY/3.1+portforward.k8s.io"
CONNECT_S = 5.0
_CHUNK_BYTES = 32 * 1024


async def log_response(url: str) -> Response:
    """Return the log at the kubelet's address, streamed.

    Raises ApiError: 500, the kubelet does not answer; else what the kubelet said.
    """
    if not url:
        return PlainTextResponse("")
    # Loopback must not go through a proxy that the environment names.
    client = httpx.AsyncClient(timeout=_CONNECT, trust_env=False)
    try:
        answer = await client.send(client.build_request("GET", url), stream=True)
    except httpx.HTTPError as error:
        await client.aclose()
        raise internal(f'Get "{url}": {error}') from None
    if answer.status_code != 200:
        told = (await answer.aread()).decode(errors="replace").strip()
        await client.aclose()
        reason = "BadRequest" if answer.status_code == 400 else "NotFound"
        raise ApiError(answer.status_code, reason, told)
    return StreamingResponse(_passed_on(client, answer), media_type="text/plain")


async def _passed_on(client: httpx.AsyncClient, answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    except httpx.HTTPError:
        # The kubelet or the container went away: the log ends here.
        return
    finally:
        await answer.aclose()
        await client.aclose()


async def forward(websocket: WebSocket, address: str) -> None:
    """Serve the streams of one port-forward until the other side closes it."""
    await websocket.accept(subprotocol=PROTOCOL)
    forwarder = _Forwarder(websocket, address)
    async with asyncio.TaskGroup() as group:
        with contextlib.suppress(WebSocketDisconnect, BrokenFrameError):
            await forwarder.serve(group)
    with contextlib.suppress(RuntimeError, WebSocketDisconnect):
        await websocket.close()


class _Forwarder:
    """The streams of one connection: each request has one for errors and one for data."""

    def __init__(self, websocket: WebSocket, address: str) -> None:
        self._websocket = websocket
        self._address = address
        self._session = Session()
        self._errors: dict[str, int] = {}
        self._writers: dict[int, asyncio.StreamWriter] = {}

    async def serve(self, group: asyncio.TaskGroup) -> None:
        """Take frames until the other side goes."""
        try:
            while (message := await self._websocket.receive())["type"] == "websocket.receive":
                for frame in self._session.receive(message.get("bytes") or b""):
                    await self._take(frame, group)
        finally:
            for stream in list(self._writers):
                self._close(stream)

    async def _take(self, frame: Frame, group: asyncio.TaskGroup) -> None:
        match frame:
            case Opened():
                await self._open(frame, group)
            case Data():
                await self._write(frame)
            case Reset(stream):
                self._close(stream)
            case Ping(answer):
                await self._websocket.send_bytes(answer)

    async def _open(self, opened: Opened, group: asyncio.TaskGroup) -> None:
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
        told = ""
        try:
            while data := await reader.read(_CHUNK_BYTES):
                await self._websocket.send_bytes(data_frame(stream, data))
        except OSError as error:
            told = str(error)
        except (RuntimeError, WebSocketDisconnect):
            # Nobody listens any more.
            return
        await self._finish(stream, errors, told)
        self._close(stream)

    async def _finish(self, stream: int, errors: int, told: str) -> None:
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            if errors:
                await self._websocket.send_bytes(data_frame(errors, told.encode(), last=True))
            await self._websocket.send_bytes(data_frame(stream, b"", last=True))

    async def _write(self, frame: Data) -> None:
        writer = self._writers.get(frame.stream)
        if writer is None:
            return
        with contextlib.suppress(OSError):
            writer.write(frame.data)
            if frame.last:
                writer.write_eof()
            await writer.drain()

    def _close(self, stream: int) -> None:
        writer = self._writers.pop(stream, None)
        if writer is not None:
            writer.close()
