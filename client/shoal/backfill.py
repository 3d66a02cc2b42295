"""``python -m shoal.backfill URL FD``: the engine of a batch job whose model is a service that has callers of its own.

It asks at the lowest priority, so that whoever waits for an answer goes first, comes back when it is told to, and never
gives up: a service that is away is waited for.
"""

import argparse
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
from typing import Any

import httpx
import numpy as np
from orjson import dumps

from shoal.client import Client
from shoal.errors import NotAllowed, NotFound, Overloaded, ServerFailed, ShoalError
from shoal.exchange import base_url, mapped_errors, request_of, response_of, trusted
from shoal.keys import key_in, shown
from shoal.wire.answers import json_answer, part_of_the_answers
from shoal.wire.datatypes import numpy_dtype
from shoal.wire.messages import Request, Response, infer_request, model_path
from shoal.wire.pace import MOST, Pace
from shoal.wire.retrying import may_retry
from shoal.wire.signature import Signature, Tensor, parse_signature
from shoal_schema.headers import PRIORITY, TIMEOUT_MS
from shoal_schema.logs import configure
from shoal_schema.wire.datatypes import Array, bfloat16_to_float32, float32_to_bfloat16
from shoal_schema.wire.engine import OUT_OF_MEMORY, Batch, Done, Failed, Ready, Refused

LOWEST_PRIORITY = "9"
TIMEOUT_S = 60.0
TOO_LARGE = 413
TIMES_RUN = 3
"""So often a batch may have run without an answer: then its rows are to blame, each of which is tried alone."""
TOLD_EVERY_S = 10.0

logger = logging.getLogger("shoal.backfill")


class Service:
    """A model that is asked over HTTP."""

    def __init__(self, http: httpx.Client, name: str, key_file: Path | None = None) -> None:
        self._http = http
        self._name = name
        self._key_file = key_file
        self.metadata: Mapping[str, Any] = json_answer(self._ask(Request("GET", model_path(name))))
        self._signature: Signature = parse_signature(self.metadata)
        self._pace = Pace()
        self._running = 0
        self._changed = threading.Condition()
        self._told_s = 0.0

    def compute(self, batch: Batch) -> Done | Failed:
        """Return what became of a batch, however often it has to be asked for."""
        headers = {PRIORITY: LOWEST_PRIORITY, TIMEOUT_MS: str(int(1000 * TIMEOUT_S))}
        inputs = {name: self._numbers(name, array) for name, array in batch.inputs.items()}
        request = infer_request(self._name, self._signature, inputs, headers)
        ran = 0
        while True:
            self._begin()
            try:
                outputs, errors = part_of_the_answers(self._ask(request), self._signature, batch.rows)
                wire = _as_declared(outputs, self._signature) if outputs else {}
            except ShoalError as error:
                turned_away = _turned_away(error)
                ran += error.may_have_run and not turned_away
                if not (turned_away or may_retry(error, repeatable=True)) or ran >= TIMES_RUN:
                    self._end(None)
                    # The number that the server gives a row is of this request, not of the input.
                    why = error.errors[0].message if len(error.errors) == batch.rows == 1 else error.message
                    return Failed(batch.number, OUT_OF_MEMORY if error.status == TOO_LARGE else "", why)
                self._end(error)
            else:
                self._end(None)
                return Done(batch.number, wire, {each.row: each.message for each in errors})

    def _ask(self, request: Request) -> Response:
        with mapped_errors(TIMEOUT_S):
            return response_of(self._http.send(request_of(self._http.build_request, request, TIMEOUT_S + 5)))

    def _begin(self) -> None:
        with self._changed:
            while (wait_s := self._pace.wait_s(self._running, time.monotonic())) != 0:
                self._changed.wait(wait_s)
            self._running += 1

    def _end(self, refusal: ShoalError | None) -> None:
        now_s = time.monotonic()
        with self._changed:
            self._running -= 1
            if refusal is None:
                self._pace.answered()
            else:
                self._read_key_again(refusal)
                self._pace.refused(now_s, refusal.retry_after_s if isinstance(refusal, Overloaded) else None)
                if now_s - self._told_s >= TOLD_EVERY_S:
                    self._told_s = now_s
                    logger.warning("event=service_refuses limit=%d why=%s", self._pace.limit, refusal.message)
            self._changed.notify_all()

    def _numbers(self, name: str, array: Array) -> Array:
        """Return an input as the client has it, where that is not how it goes over the wire."""
        bits = any(each.name == name and each.datatype == "BF16" for each in self._signature.inputs)
        return bfloat16_to_float32(array) if bits else array

    def _read_key_again(self, refusal: ShoalError) -> None:
        """Show the key that stands in the file by now, where the one that was read before is no longer taken."""
        if isinstance(refusal, NotAllowed):
            with suppress(ShoalError):
                self._http.headers.update(shown(key_in(self._key_file)))


def _turned_away(error: ShoalError) -> bool:
    """Return whether it is not for its rows that a request failed: the key has expired, or the way to the model."""
    return isinstance(error, NotAllowed | NotFound) or 300 <= (error.status or 0) < 400


def _as_declared(outputs: Mapping[str, Array], signature: Signature) -> dict[str, Array]:
    """Return the outputs as a runtime gives them.

    Raises:
        ServerFailed: one is missing, or is not what the signature says.
    """
    for tensor in signature.outputs:
        array, shape = outputs.get(tensor.name), signature.row_shape(tensor)
        if array is None or not _fits(array, tensor.datatype, shape):
            found = "none" if array is None else f"{array.dtype} {list(array.shape[1:])}"
            wanted = f"{tensor.datatype} {list(shape)}"
            raise ServerFailed(f"the server's {tensor.name} is {found} a row, and its signature says {wanted}")
    return {
        each.name: np.moveaxis(_on_the_wire(outputs[each.name], each), 0, each.batch_dim) for each in signature.outputs
    }


def _fits(array: Array, datatype: str, shape: Sequence[int]) -> bool:
    same = len(array.shape) == len(shape) + 1 and all(
        want in (-1, got) for got, want in zip(array.shape[1:], shape, strict=True)
    )
    return same and array.dtype == (np.dtype(object) if datatype == "BYTES" else numpy_dtype(datatype))


def _on_the_wire(values: Array, tensor: Tensor) -> Array:
    """Return an output without what the client makes of it: texts and JSON of bytes, numbers of 16 bits."""
    if tensor.datatype == "BF16":
        return float32_to_bfloat16(values)
    if values.dtype != object:
        return values
    wire = np.empty_like(values)
    for index, value in np.ndenumerate(values):
        wire[index] = value if isinstance(value, bytes) else value.encode() if isinstance(value, str) else dumps(value)
    return wire


def serve(connection: Connection, service: Service) -> None:
    """Compute what is asked for, until nobody is there any more."""
    telling = threading.Lock()

    def compute(batch: Batch) -> None:
        told = service.compute(batch)
        with telling:
            connection.send(told)

    with ThreadPoolExecutor(MOST, "ask") as pool:
        while True:
            try:
                pool.submit(compute, connection.recv())
            except (EOFError, OSError):
                os._exit(0)


def main(arguments: Sequence[str]) -> int:
    """Ask the service what it is, tell, and compute."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("descriptor", type=int)
    parser.add_argument("--model")
    parser.add_argument("--api-key-file", type=Path)
    for name in ("--ca-file", "--cert", "--key"):
        parser.add_argument(name)
    options = parser.parse_args(arguments)
    configure("WARNING")
    connection = Connection(options.descriptor)
    try:
        key = key_in(options.api_key_file)
        verify = trusted(options)
        with Client(options.url, options.model, api_key=key, timeout_s=TIMEOUT_S, verify=verify) as client:
            name = client.signature().name
        with httpx.Client(base_url=base_url(options.url), headers=shown(key), verify=verify) as http:
            service = Service(http, name, options.api_key_file)
            versions = ",".join(map(str, service.metadata.get("versions") or ()))
            connection.send(Ready(service.metadata, f"{base_url(options.url)} {name} {versions}".strip(), {}, MOST))
            serve(connection, service)
    except ShoalError as error:
        connection.send(Refused(f"{options.url}: {error}"))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
