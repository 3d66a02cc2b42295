"""``python -m shoal.backfill URL FD``: the engine of a batch job that sends rows to a service in production.

Requests have the lowest priority, so that other clients go first. They honor ``Retry-After`` and are retried forever,
also while the service is unreachable.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import httpx
import numpy as np
from orjson import dumps

from shoal.arguments import SERVER
from shoal.client import Client
from shoal.errors import NotAllowed, NotFound, Overloaded, ServerFailed, ShoalError
from shoal.exchange import base_url, mapped_errors, request_of, response_of, trusted
from shoal.keys import key_in, shown
from shoal.wire.datatypes import numpy_dtype
from shoal.wire.limiter import MAX_CONCURRENCY, ConcurrencyLimiter
from shoal.wire.messages import Request, Response, infer_request, model_path
from shoal.wire.responses import json_body, partial_results
from shoal.wire.retrying import may_retry
from shoal.wire.signature import Signature, parse_signature
from shoal_schema.fields.redaction import redacted_value
from shoal_schema.interfaces.headers import LOWEST_PRIORITY, PRIORITY, TIMEOUT_MS
from shoal_schema.process.arguments import run_arguments
from shoal_schema.process.logs import configure
from shoal_schema.wire.datatypes import Array, bfloat16_to_float32, float32_to_bfloat16
from shoal_schema.wire.engine_messages import (
    OUT_OF_MEMORY,
    BatchDone,
    BatchFailed,
    EngineBatch,
    EngineFailed,
    EngineReady,
)

TIMEOUT_S = 60.0
TOO_LARGE = 413
TIMES_RUN = 3
"""Attempts that may have run, after which the batch fails and its rows are tried one by one."""
REPORT_INTERVAL_S = 10.0
"""Minimum interval of log lines about rejections."""

logger = logging.getLogger("shoal.backfill")


class Service:
    """HTTP client of one model of a service, with a concurrency limit."""

    # Called from the threads of `serve`; _limiter and _running are guarded by _changed.
    def __init__(self, http: httpx.Client, name: str, key_file: Path | None = None) -> None:
        self._http = http
        self._name = name
        self._key_file = key_file
        self.metadata: Mapping[str, Any] = json_body(self._send(Request("GET", model_path(name))))
        self._signature: Signature = parse_signature(self.metadata)
        self._limiter = ConcurrencyLimiter()
        self._running = 0
        self._changed = threading.Condition()
        self._told_s = 0.0

    def compute(self, batch: EngineBatch) -> BatchDone | BatchFailed:
        """Send a batch to the service, with retries; return its results or its final error."""
        headers = {PRIORITY: str(LOWEST_PRIORITY), TIMEOUT_MS: str(int(1000 * TIMEOUT_S))}
        # The engine has BF16 as bits, the client as float32.
        bits = {each.name for each in self._signature.inputs if each.datatype == "BF16"}
        inputs = {name: bfloat16_to_float32(x) if name in bits else x for name, x in batch.inputs.items()}
        request = infer_request(self._name, self._signature, inputs, headers)
        # Attempts that the model may have run.
        ran = 0
        while True:
            with self._changed:
                while (wait_s := self._limiter.wait_s(self._running, time.monotonic())) != 0:
                    self._changed.wait(wait_s)
                self._running += 1
            try:
                outputs, errors = partial_results(self._send(request), self._signature, batch.rows)
                wire = _as_declared(outputs, self._signature) if outputs else {}
            except ShoalError as error:
                # An expired key or a changed route says nothing about the rows.
                misrouted = isinstance(error, NotAllowed | NotFound) or 300 <= (error.status or 0) < 400
                ran += error.may_have_run and not misrouted
                if not (misrouted or may_retry(error, repeatable=True)) or ran >= TIMES_RUN:
                    self._end(None)
                    # Without the row number, which counts within this request.
                    why = error.errors[0].message if len(error.errors) == batch.rows == 1 else error.message
                    return BatchFailed(batch.number, OUT_OF_MEMORY if error.status == TOO_LARGE else "", why)
                self._end(error)
            else:
                self._end(None)
                return BatchDone(batch.number, wire, {each.row: each.message for each in errors})

    def _send(self, request: Request) -> Response:
        with mapped_errors(TIMEOUT_S):
            return response_of(self._http.send(request_of(self._http.build_request, request, TIMEOUT_S + 5)))

    def _end(self, refusal: ShoalError | None) -> None:
        """Adapt the concurrency limit to the outcome of a request.

        ``refusal`` is the error of a rejected request, which lowers the limit. None means success, which raises the
        limit.
        """
        now_s = time.monotonic()
        with self._changed:
            self._running -= 1
            if refusal is None:
                self._limiter.record_success()
            else:
                if isinstance(refusal, NotAllowed):
                    # The key may have been rotated: read its file again.
                    with suppress(ShoalError):
                        self._http.headers.update(shown(key_in(self._key_file)))
                self._limiter.record_rejection(
                    now_s, refusal.retry_after_s if isinstance(refusal, Overloaded) else None
                )
                if now_s - self._told_s >= REPORT_INTERVAL_S:
                    self._told_s = now_s
                    logger.warning("event=service_refuses limit=%d why=%s", self._limiter.limit, refusal.message)
            self._changed.notify_all()


def _as_declared(outputs: Mapping[str, Array], signature: Signature) -> dict[str, Array]:
    """Convert a client's outputs back to the arrays that a runtime sends.

    Raises:
        ServerFailed: an output is missing, or does not match the signature.
    """
    for tensor in signature.outputs:
        array, shape = outputs.get(tensor.name), signature.row_shape(tensor)
        dtype = np.dtype(object) if tensor.datatype == "BYTES" else numpy_dtype(tensor.datatype)
        # The first dimension counts the rows.
        fits = array is not None and array.ndim == len(shape) + 1 and array.dtype == dtype
        if array is None or not fits or any(w not in (-1, n) for n, w in zip(array.shape[1:], shape, strict=True)):
            found = "none" if array is None else f"{array.dtype} {list(array.shape[1:])}"
            wanted = f"{tensor.datatype} {list(shape)}"
            raise ServerFailed(f"the server's {tensor.name} is {found} per row, but its signature declares {wanted}")
    wire = {}
    for tensor in signature.outputs:
        values = outputs[tensor.name]
        # Undo the client's conversions: BF16 to float32, and bytes to text or JSON.
        if tensor.datatype == "BF16":
            values = float32_to_bfloat16(values)
        elif values.dtype == object:
            encoded = np.empty_like(values)
            for index, value in np.ndenumerate(values):
                text = value.encode() if isinstance(value, str) else value
                encoded[index] = text if isinstance(text, bytes) else dumps(text)
            values = encoded
        wire[tensor.name] = np.moveaxis(values, 0, tensor.batch_dim)
    return wire


def serve(connection: Connection, service: Service) -> None:
    """Compute each batch received on ``connection``; exit when the batch program closes it."""
    sending = threading.Lock()

    def compute(batch: EngineBatch) -> None:
        outcome = service.compute(batch)
        with sending:
            connection.send(outcome)

    with ThreadPoolExecutor(MAX_CONCURRENCY, "ask") as pool:
        while True:
            try:
                pool.submit(compute, connection.recv())
            except (EOFError, OSError):
                # Not sys.exit: it would wait for the requests in the pool.
                os._exit(0)


def main(arguments: Sequence[str]) -> int:
    """Run the engine with the arguments that ``shoal batch`` passes."""
    return run_arguments(_backfill, "python -m shoal.backfill", arguments)


@click.command()
@SERVER
@click.argument("descriptor", type=int)
def _backfill(descriptor: int, **given: Any) -> int:
    """Request the model's metadata, report readiness to the batch program, and compute batches."""
    options = SimpleNamespace(**given)
    configure("WARNING")
    # An inherited pipe to the batch program.
    connection = Connection(descriptor)
    try:
        key = key_in(options.api_key_file)
        verify = trusted(options)
        # The client discovers the model's name.
        with Client(options.url, options.model, api_key=key, timeout_s=TIMEOUT_S, verify=verify) as client:
            name = client.signature().name
        with httpx.Client(base_url=base_url(options.url), headers=shown(key), verify=verify) as http:
            service = Service(http, name, options.api_key_file)
            # Identifies the model to a resumed job, which must not mix results of two versions. Without user and
            # password, as it is written to the output.
            address = redacted_value(str(base_url(options.url)))
            versions = ",".join(map(str, service.metadata.get("versions") or ()))
            connection.send(EngineReady(service.metadata, f"{address} {name} {versions}".strip(), {}, MAX_CONCURRENCY))
            serve(connection, service)
    except ShoalError as error:
        connection.send(EngineFailed(f"{redacted_value(options.url)}: {error}"))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
