"""An engine without a model, for fast tests: ``python engine.py FD``.

It returns ``y = 2 * x`` of rows of numbers, or the length of text. Special numbers: -1 is a bad row, -2 fails the
batch, -3 ends the process, -4 hangs. A batch of more than ``ENGINE_MEMORY`` rows runs out of memory. It returns nothing
before ``ENGINES_MEET`` engines have registered in ``ENGINES_PLACE``.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from shoal_schema.wire.engine_messages import (
    OUT_OF_MEMORY,
    BatchDone,
    BatchFailed,
    EngineBatch,
    EngineFailed,
    EngineReady,
)

NUMBERS = {
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
    "parameters": {"max_batch_size": 8},
}
COLUMNS = {
    "inputs": [
        {
            "name": "input-0",
            "datatype": "FP64",
            "shape": [-1, 3],
            "parameters": {"columns": '["a","b","c"]', "nullable": True},
        }
    ],
    "outputs": [{"name": "y", "datatype": "FP64", "shape": [-1]}],
    "parameters": {"max_batch_size": 8},
}
"""y = a + 10 b + 100 c."""
TEXTS = {
    "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1], "parameters": {"content_type": "text/plain"}}],
    "outputs": [
        {"name": "length", "datatype": "INT64", "shape": [-1]},
        {"name": "upper", "datatype": "BYTES", "shape": [-1], "parameters": {"content_type": "text/plain"}},
    ],
    "parameters": {"max_batch_size": 8},
}


def computed(batch: EngineBatch, memory: int) -> BatchDone | BatchFailed:
    if batch.rows > memory:
        return BatchFailed(batch.number, OUT_OF_MEMORY, f"{batch.rows} rows do not fit")
    if "text" in batch.inputs:
        texts = batch.inputs["text"]
        upper = np.array([text.upper() for text in texts], dtype=object)
        return BatchDone(batch.number, {"length": np.array([len(text) for text in texts]), "upper": upper}, {})
    if "input-0" in batch.inputs:
        return BatchDone(batch.number, {"y": batch.inputs["input-0"] @ np.array([1.0, 10.0, 100.0])}, {})
    first = batch.inputs["x"][:, 0]
    if (first == -3).any():
        os.kill(os.getpid(), signal.SIGKILL)
    if (first == -4).any():
        time.sleep(60)
    if (first == -2).any():
        return BatchFailed(batch.number, "FORWARD_FAILED", "forward raised ValueError: minus two")
    bad = {int(row): "minus one is no good" for row in np.flatnonzero(first == -1)}
    good = np.delete(batch.inputs["x"], list(bad), 0)
    return BatchDone(batch.number, {"y": 2 * good.sum(1)}, bad)


def meet(place: Path, engines: int) -> None:
    (place / str(os.getpid())).touch()
    ends_s = time.monotonic() + 400
    while len(list(place.iterdir())) < engines and time.monotonic() < ends_s:
        time.sleep(0.05)


def main(descriptor: int) -> None:
    connection = Connection(descriptor)
    if why := os.environ.get("ENGINE_REFUSES"):
        connection.send(EngineFailed(why))
        sys.exit(3)
    metadata: Any = {"texts": TEXTS, "columns": COLUMNS}.get(os.environ.get("ENGINE_TAKES", ""), NUMBERS)
    connection.send(EngineReady(metadata, os.environ.get("ENGINE_MODEL", "sha256:1"), {"dtype": "Auto"}, 2))
    memory = int(os.environ.get("ENGINE_MEMORY", "1000000"))
    pause_s = float(os.environ.get("ENGINE_PAUSE_S", "0"))
    if engines := int(os.environ.get("ENGINES_MEET", "0")):
        meet(Path(os.environ["ENGINES_PLACE"]), engines)
    # A job that ends closes its side of the socket before it kills the engine.
    with suppress(EOFError, ConnectionResetError, BrokenPipeError):
        while True:
            batch = connection.recv()
            time.sleep(pause_s)
            connection.send(computed(batch, memory))


if __name__ == "__main__":
    main(int(sys.argv[1]))
