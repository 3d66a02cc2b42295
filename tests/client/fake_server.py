"""A small V2 server on loopback, written from the protocol rather than with our code."""

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
HEADER_LENGTH = "Inference-Header-Content-Length"
DTYPES = {"FP32": "<f4", "INT64": "<i8", "UINT8": "u1", "BOOL": "?", "BF16": "<u2"}


@dataclass
class Call:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Call], Answer | None]
Forward = Callable[[dict[str, Array]], dict[str, tuple[str, Array]]]


def tensor(name: str, datatype: str, shape: list[int], **parameters: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": parameters}


def metadata(inputs: list[Any], outputs: list[Any], **parameters: Any) -> dict[str, Any]:
    return {
        "name": "adder",
        "versions": ["1"],
        "platform": "shoal",
        "inputs": inputs,
        "outputs": outputs,
        "parameters": parameters,
    }


ADDER = metadata([tensor("x", "FP32", [-1, 3])], [tensor("y", "FP32", [-1, 3])], max_batch_size=32)


def plus_one(inputs: dict[str, Array]) -> dict[str, tuple[str, Array]]:
    return {"y": ("FP32", inputs["x"] + 1)}


def json_answer(value: Any, status: int = 200, **headers: str) -> Answer:
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"} | headers)


def v2(model: dict[str, Any] = ADDER, forward: Forward = plus_one) -> Handler:
    """Return the handler of a server with one model."""

    def handle(call: Call) -> Answer | None:
        path = f"/v2/models/{model['name']}"
        if call.path == "/v1/models":
            return json_answer({"models": [model["name"]]})
        if call.path == "/v2/health/ready":
            return json_answer({"ready": True})
        if call.path == path:
            return json_answer(model)
        if call.path == f"{path}/infer":
            return _pack(forward(_unpack(call)))
        return json_answer({"error": f"no route {call.path}"}, 404)

    return handle


def _unpack(call: Call) -> dict[str, Array]:
    size = int(call.headers[HEADER_LENGTH.lower()])
    header, tail = json.loads(call.body[:size]), call.body[size:]
    arrays = {}
    for each in header["inputs"]:
        length = each["parameters"]["binary_data_size"]
        data, tail = tail[:length], tail[length:]
        arrays[each["name"]] = _array(data, each["datatype"], each["shape"])
    assert not tail
    return arrays


def _array(data: bytes, datatype: str, shape: list[int]) -> Array:
    if datatype != "BYTES":
        return np.frombuffer(data, DTYPES[datatype]).reshape(shape)
    elements = []
    while data:
        (length,) = struct.unpack("<I", data[:4])
        elements.append(data[4 : 4 + length])
        data = data[4 + length :]
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


def _pack(outputs: dict[str, tuple[str, Array]]) -> Answer:
    entries, payloads = [], []
    for name, (datatype, array) in outputs.items():
        payload = _payload(array, datatype)
        entry = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        entries.append(entry | {"parameters": {"binary_data_size": len(payload)}})
        payloads.append(payload)
    header = json.dumps({"model_name": "adder", "outputs": entries}).encode()
    return Answer(200, header + b"".join(payloads), {HEADER_LENGTH: str(len(header))})


def _payload(array: Array, datatype: str) -> bytes:
    if datatype != "BYTES":
        return array.astype(DTYPES[datatype]).tobytes()
    return b"".join(struct.pack("<I", len(each)) + each for each in array.flat)


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


class FakeServer:
    """Answers with ``handler``, keeps what was asked; for None it cuts the connection."""

    def __init__(self, handler: Handler, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self.handler = handler
        self.calls: list[Call] = []
        self.http = ThreadingHTTPServer(address, self._request_handler())
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def _request_handler(server) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class RequestHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                call = Call(self.command, self.path, _lower(self.headers), body)
                server.calls.append(call)
                answer = server.handler(call)
                if answer is None:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                length = {"Content-Length": str(len(answer.body))}
                for name, value in {**length, **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)

            do_POST = do_GET  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:
                return

        return RequestHandler


@contextmanager
def running(handler: Handler, address: tuple[str, int] = ("127.0.0.1", 0)) -> Iterator[FakeServer]:
    """Run a server for the length of a test."""
    server = FakeServer(handler, address)
    thread = Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        server.http.server_close()
        thread.join()
