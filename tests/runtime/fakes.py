"""Stand-ins and small drivers for the runtime's tests."""

import asyncio
import http.client
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from shoal_runtime import TensorSpec
from shoal_runtime.batches import collate as collating
from shoal_runtime.batches import padding
from shoal_runtime.execution.executor import Executor
from shoal_runtime.execution.pipeline import BatchResult, Pipeline, StageThreads
from shoal_runtime.execution.placement import Placement
from shoal_runtime.execution.torch_placement import CpuPlacement
from shoal_runtime.handlers.base import methods_of
from shoal_runtime.signature.spec import Rule
from shoal_runtime.signature.tensors import Signature, make_signature
from shoal_runtime.tensors.torch_tensors import TORCH

if TYPE_CHECKING:
    from shoal_runtime.loading import Model
    from shoal_schema.wire.datatypes import Array

FOUR_NUMBERS = """
[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1, 4]
[[outputs]]
name = "y"
datatype = "FP32"
shape = [-1, 4]
"""
"""A model.toml of one input and one output, each of four numbers per row."""


def signature_of(model: Any, *, max_batch_size: int = 8, allowed_batch_sizes: Sequence[int] = ()) -> Signature:
    """Return the signature of a handler with class attributes."""
    return make_signature(
        model.inputs,
        model.outputs,
        max_batch_size=max_batch_size,
        allowed_batch_sizes=allowed_batch_sizes,
    )


class Bench:
    """A pipeline around a handler, with its threads; use as a context manager."""

    def __init__(
        self,
        model: Any,
        *,
        max_batch_size: int = 8,
        allowed_batch_sizes: Sequence[int] = (),
        placement: Placement | None = None,
        signature: Signature | None = None,
    ) -> None:
        self.executor = Executor()
        self.pool = ThreadPoolExecutor(2)
        self.lost: list[str] = []
        self.signature = signature or signature_of(
            model, max_batch_size=max_batch_size, allowed_batch_sizes=allowed_batch_sizes
        )
        self.pipeline = Pipeline(
            methods_of(model),
            self.signature,
            placement or CpuPlacement(),
            lanes=StageThreads(self.executor, self.pool, 2),
            on_lost=self.lost.append,
        )

    @classmethod
    def around(cls, model: "Model") -> "Bench":
        """Return a bench for a loaded model."""
        return cls(model.handler, signature=model.signature, placement=model.machine.place(False))

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.executor.stop(5)
        self.pool.shutdown()

    def run(self, inputs: Mapping[str, "Array"], *, deadline_s: float | None = None) -> BatchResult:
        """Run one batch through the pipeline."""
        name, array = next(iter(inputs.items()))
        spec = self.signature.input(name)
        assert spec is not None
        rows = array.shape[spec.batch_dim]
        return asyncio.run(self.pipeline.run(inputs, rows, deadline_s=deadline_s))


def collate(rows: Sequence[Any], rules: Sequence[Rule] = ()) -> Any:
    """Collate with torch."""
    return collating.collate(rows, rules, TORCH)


def misfits(rows: Sequence[Any], rules: Sequence[Rule] = ()) -> dict[int, str]:
    """Find the odd rows with torch."""
    return collating.misfits(rows, rules, TORCH)


def pad_rows(batch: Any, size: int, batch_dims: Mapping[str, int]) -> Any:
    """Pad with torch."""
    return padding.pad_rows(batch, size, batch_dims, TORCH)


def pad_and_stack(rows: Sequence[Any], rule: Rule) -> tuple[Any, Any]:
    """Pad and stack with torch."""
    return padding.pad_and_stack(rows, rule, TORCH)


class Adder:
    """Adds one: the smallest model."""

    inputs = (TensorSpec("x", "FP32", [-1, 2]),)
    outputs = (TensorSpec("y", "FP32", [-1, 2]),)

    def forward(self, batch: Mapping[str, Any]) -> Any:
        return batch["x"] + 1


def texts(*elements: bytes) -> "Array":
    """Return a one-dimensional BYTES array."""
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


async def ask(
    app: Callable[..., Any],
    path: str,
    *,
    method: str = "GET",
    body: Sequence[bytes] = (b"",),
    headers: Mapping[str, str] | None = None,
) -> tuple[int, dict[str, str], bytes]:
    """Call an ASGI application once; the body may come in pieces."""
    pieces = list(body)
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not pieces:
            return {"type": "http.disconnect"}
        piece = pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    encoded = [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()]
    scope = {"type": "http", "path": path, "method": method, "headers": encoded}
    await app(scope, receive, send)
    start, end = sent
    names = {k.decode(): v.decode() for k, v in start["headers"]}
    return start["status"], names, bytes(end["body"])


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def infer_body(name: str, array: "Array", datatype: str) -> tuple[bytes, dict[str, str]]:
    """Return a binary infer body that asks for binary outputs, and its headers."""
    raw = array.tobytes()
    document = {
        "inputs": [
            {
                "name": name,
                "datatype": datatype,
                "shape": list(array.shape),
                "parameters": {"binary_data_size": len(raw)},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    header = orjson.dumps(document)
    return header + raw, {"Inference-Header-Content-Length": str(len(header))}


def chunks(data: bytes, size: int) -> Iterator[bytes]:
    """Cut bytes into pieces."""
    for start in range(0, len(data), size):
        yield data[start : start + size]
