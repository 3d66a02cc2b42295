"""Fakes at the seams: a V2 runtime whose behaviour a test chooses, and a proxy running on a loop of its own."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import orjson
import uvloop

from shoal_proxy.server import Proxy
from shoal_proxy.settings import Settings
from shoal_schema.fields.addresses import Address, TcpAddress
from shoal_schema.resource.traffic import BatchingPolicy, RowChecks
from tests.arranged import arranged

Array = np.ndarray[Any, Any]


def double(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return ``y = 2 x``: a model whose result identifies its row."""
    return {"y": inputs["x"] * 2}


def tensor(name: str, datatype: str, shape: list[int], **parameters: Any) -> dict[str, Any]:
    """Return V2 tensor metadata."""
    return {"name": name, "datatype": datatype, "shape": shape, **({"parameters": parameters} if parameters else {})}


@dataclass
class Seen:
    """One batch as it reached the fake runtime."""

    headers: dict[str, str]
    document: dict[str, Any]
    inputs: dict[str, Array]

    @property
    def rows(self) -> int:
        """Return the rows of its first input."""
        return len(next(iter(self.inputs.values())))


@dataclass
class FakeRuntime:
    """A V2 server on a unix socket or TCP, in the test's own event loop.

    ``model`` computes; ``respond``, when set, answers the call itself: (status, headers, body), or None to hang up.
    ``gate``: when cleared, batches wait before they are answered.
    """

    inputs: list[dict[str, Any]] = field(default_factory=lambda: [tensor("x", "FP32", [-1, 4])])
    outputs: list[dict[str, Any]] = field(default_factory=lambda: [tensor("y", "FP32", [-1, 4])])
    model: Callable[[Mapping[str, Array]], Mapping[str, Array]] = double
    parameters: dict[str, Any] = field(default_factory=dict)
    answer_parameters: Callable[[Seen], dict[str, Any]] = lambda seen: {}
    respond: Callable[[Seen], tuple[int, dict[str, str], bytes] | None] | None = None
    binary: bool = True
    ready: bool = True
    health: dict[str, Any] = field(default_factory=dict)
    """What it says besides when it is ready."""
    name: str = "double"
    server_name: str = "fake"
    seen: list[Seen] = field(default_factory=list)
    running: int = 0
    most_running: int = 0

    def __post_init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.arrived = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._writers: dict[asyncio.StreamWriter, asyncio.StreamReader] = {}

    async def start(self, address: Address) -> Address:
        """Listen; return where."""
        if address.path:
            self._server = await asyncio.start_unix_server(self._serve, address.path)
            return address
        self._server = await asyncio.start_server(self._serve, address.host, address.port)
        return Address(*self._server.sockets[0].getsockname()[:2])

    async def stop(self) -> None:
        """Close all connections and stop listening, as a killed process would."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    @property
    def address(self) -> tuple[str, int]:
        """Return where it listens."""
        assert self._server is not None
        found: tuple[str, int] = self._server.sockets[0].getsockname()[:2]
        return found

    @property
    def connections(self) -> int:
        """Return how many connections are open."""
        return sum(not reader.at_eof() for reader in self._writers.values())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers[writer] = reader
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.pop(writer, None)
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        answer = self._page(path) if method == "GET" else await self._infer(headers, body)
        if answer is None:
            writer.transport.abort()
            return False
        status, extra, content = answer
        length = {} if "transfer-encoding" in extra else {"content-length": str(len(content))}
        lines = [f"HTTP/1.1 {status} X", *(f"{k}: {v}" for k, v in {**length, **extra}.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        await writer.drain()
        return True

    def _page(self, path: str) -> tuple[int, dict[str, str], bytes]:
        if path == "/v2/health/ready":
            health_document = {"ready": True, **self.health} if self.ready else {"ready": False, "reason": "warming up"}
            return 200 if self.ready else 503, {}, orjson.dumps(health_document)
        if path == "/v2":
            return (
                200,
                {},
                orjson.dumps({"name": self.server_name, "extensions": ["binary_tensor_data"] if self.binary else []}),
            )
        if path == f"/v2/models/{self.name}":
            metadata = {"name": self.name, "versions": ["1"], "platform": "fake", "inputs": self.inputs}
            return 200, {}, orjson.dumps({**metadata, "outputs": self.outputs, "parameters": self.parameters})
        return 404, {}, b'{"error": "no such model"}'

    async def _infer(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes] | None:
        seen = read_batch(headers, body)
        self.seen.append(seen)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        self.arrived.set()
        try:
            await self.gate.wait()
        finally:
            self.running -= 1
        if self.respond is not None:
            return self.respond(seen)
        try:
            outputs = self.model(seen.inputs)
        except ValueError as error:
            return 500, {}, orjson.dumps({"error": str(error), "code": "FORWARD_FAILED"})
        return 200, *write_answer(outputs, self.answer_parameters(seen), binary=self.binary)


_DTYPES = {"FP32": "<f4", "FP64": "<f8", "INT64": "<i8", "INT32": "<i4", "UINT8": "<u1", "BOOL": "?", "FP16": "<f2"}


def read_batch(headers: dict[str, str], body: bytes) -> Seen:
    """Decode a V2 infer body, independently of the proxy's own codec."""
    length = int(headers.get("inference-header-content-length", len(body)))
    document = orjson.loads(body[:length])
    inputs: dict[str, Array] = {}
    offset = length
    for item in document["inputs"]:
        size = (item.get("parameters") or {}).get("binary_data_size")
        if size is None:
            dtype = object if item["datatype"] == "BYTES" else _DTYPES[item["datatype"]]
            inputs[item["name"]] = np.array(item["data"], dtype=dtype).reshape(item["shape"])
            continue
        data, offset = body[offset : offset + size], offset + size
        inputs[item["name"]] = _read_tensor(item, data)
    return Seen(headers, document, inputs)


def _read_tensor(item: dict[str, Any], data: bytes) -> Array:
    if item["datatype"] != "BYTES":
        return np.frombuffer(data, _DTYPES[item["datatype"]]).reshape(item["shape"])
    elements = []
    while data:
        size = int.from_bytes(data[:4], "little")
        elements.append(data[4 : 4 + size])
        data = data[4 + size :]
    return np.array(elements, dtype=object).reshape(item["shape"])


def write_answer(
    outputs: Mapping[str, Array], parameters: dict[str, Any], *, binary: bool
) -> tuple[dict[str, str], bytes]:
    """Encode a V2 infer answer; returns headers and body."""
    names = {"float32": "FP32", "float64": "FP64", "int64": "INT64", "int32": "INT32", "uint8": "UINT8", "bool": "BOOL"}
    tensors, tail = [], b""
    for name, array in outputs.items():
        item: dict[str, Any] = {"name": name, "shape": array.shape, "datatype": names.get(str(array.dtype), "BYTES")}
        if array.dtype == object:
            data = b"".join(len(element).to_bytes(4, "little") + element for element in array.ravel())
        else:
            data = np.ascontiguousarray(array).tobytes()
        if binary:
            item["parameters"] = {"binary_data_size": len(data)}
            tail += data
        else:
            item["data"] = [x.decode() if isinstance(x, bytes) else x for x in array.ravel().tolist()]
        tensors.append(item)
    head = orjson.dumps({"model_name": "double", "outputs": tensors, "parameters": parameters})
    return ({"inference-header-content-length": str(len(head))} if binary else {}), head + tail


class RunningProxy:
    """A proxy and its fake runtime on a loop in a thread, so that tests may use any blocking client."""

    def __init__(self, runtime: FakeRuntime, proxy: Proxy, loop: asyncio.AbstractEventLoop) -> None:
        self.runtime = runtime
        self.proxy = proxy
        self._loop = loop
        self.url = "http://{}:{}".format(*proxy.socket.getsockname()[:2])
        self.admin_url = "http://{}:{}".format(*proxy.admin_socket.getsockname()[:2])
        self.address: tuple[str, int] = proxy.socket.getsockname()[:2]
        self.left_open: Future[int] = Future()
        """Connections to the runtime that the proxy had not closed when it ended."""

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run ``function`` (plain or async) on the proxy's loop and return its result."""

        async def run() -> Any:
            result = function(*args)
            return await result if isinstance(result, Awaitable) else result

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(20)

    def hold(self) -> None:
        """Make batches wait at the runtime."""
        self.call(self.runtime.gate.clear)
        self.call(self.runtime.arrived.clear)

    def release(self) -> None:
        """Let them go on."""
        self.call(self.runtime.gate.set)

    def until(self, condition: Callable[[], bool], within_s: float = 10.0) -> None:
        """Wait until ``condition`` holds on the proxy's loop."""

        async def wait() -> None:
            async with asyncio.timeout(within_s):
                while not condition():  # noqa: ASYNC110 (a condition of several objects has no one event)
                    await asyncio.sleep(0.002)

        self.call(wait)

    def until_waiting(self, requests: int) -> None:
        """Wait until so many requests are queued."""
        self.until(lambda: self.proxy.scheduler.queue.requests == requests)


async def _is_ready(proxy: Proxy) -> bool:
    for _ in range(5000):
        if proxy.link.ready:
            return True
        await asyncio.sleep(0.002)
    return False


async def _left_open(runtime: FakeRuntime) -> int:
    """Return how many connections stay open: of one that was closed its other end hears a moment later."""
    with suppress(TimeoutError):
        async with asyncio.timeout(1):
            while runtime.connections:  # noqa: ASYNC110 (several connections have no one event)
                await asyncio.sleep(0.002)
    return runtime.connections


def _stop(loop: asyncio.AbstractEventLoop, proxy: Proxy) -> None:
    with suppress(RuntimeError):  # a test may have stopped it: its loop is closed
        loop.call_soon_threadsafe(proxy.stop)


def proxy_settings(model_name: str, address: Address, **changes: Any) -> Settings:
    """Return the settings of a proxy before a runtime, on ports of its own."""
    anywhere = TcpAddress("127.0.0.1", 0)
    policy = BatchingPolicy.FIXED if "max_delay_milliseconds" in changes else BatchingPolicy.ADAPTIVE
    base = {
        "metadata__name": model_name,
        "process__runtime": address,
        "drain_timeout_seconds": 5.0,
        "policy": policy,
        "row_checks": RowChecks.OFF,  # or else the runtime would see batches that no test sent
    }
    here = {"listen": anywhere, "admin_listen": anywhere}
    return arranged(Settings.from_env({}), **{**here, **base, **changes})


@contextmanager
def running_proxy(
    make_runtime: Callable[[], FakeRuntime] = FakeRuntime, *, ready: bool = True, **settings: Any
) -> Iterator[RunningProxy]:
    """Run a proxy in front of a fake runtime; stop both at the end."""
    started: Future[RunningProxy] = Future()
    stop: Future[Callable[[], object]] = Future()

    async def serve() -> None:
        runtime = make_runtime()
        address = await runtime.start(Address("127.0.0.1", 0))
        proxy = Proxy(proxy_settings(runtime.name, address, **settings))
        loop = asyncio.get_running_loop()
        stop.set_result(partial(_stop, loop, proxy))
        task = asyncio.create_task(proxy.run())
        running = RunningProxy(runtime, proxy, loop)
        if not ready or await _is_ready(proxy):
            started.set_result(running)
        else:
            started.set_exception(AssertionError(f"the proxy is not ready: {proxy.link.reason}"))
            proxy.stop()
        await task
        runtime.gate.set()
        running.left_open.set_result(await _left_open(runtime))
        await runtime.stop()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve())
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    thread = threading.Thread(target=run, name="proxy")
    thread.start()
    try:
        yield started.result(20)
    finally:
        if stop.done():
            stop.result()()
        thread.join(20)
        assert not thread.is_alive(), "the proxy did not stop"
