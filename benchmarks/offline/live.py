"""What a service's clients notice of a batch that goes through it: `shoal batch --to` beside requests that arrive.

The model sleeps as long as an accelerator would, and as long for a full batch as for one row: what is spare is rows of
batches that run anyway, where clients are many, and time, where they are few.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.offline.rows import numbers
from benchmarks.peers.open_loop import PoissonLoad, Sent, send
from benchmarks.serve import batch_sums
from examples.report import percentile
from examples.server import Server, serving

ADDER = Path(__file__).parents[2] / "examples" / "adder"
FORWARD_MS = 20
COST = {"model.parameters.baseMicroseconds": str(1000 * FORWARD_MS), "batching.maxBatchSize": "64"}
RATES_PER_S = {"many": 200.0, "few": 5.0}
SECONDS = 30.0
ROWS = 2_000_000
"""More than are scored in that time."""
PATIENCE_S = 60.0


def live(folder: Path, rounds: int) -> list[dict[str, float]]:
    """Measure how long clients wait, with and without a batch, in turn."""
    source = numbers(folder / "backfill.parquet", ROWS)
    measured: list[dict[str, float]] = []
    with serving(ADDER, fields=COST) as server:
        for number in range(rounds):
            values: dict[str, float] = {}
            for name, rate_per_s in RATES_PER_S.items():
                alone_ms = p99_ms(calls(server, rate_per_s, number))
                with backfill(server, source, folder / f"live-{name}-{number}"):
                    before, begun_s = rows(server), time.monotonic()
                    sent = calls(server, rate_per_s, number)
                    others = rows(server) - before - len(sent.outcomes)
                    values[f"{name}_batch_rows_per_s"] = others / (time.monotonic() - begun_s)
                values[f"{name}_alone_p99_ms"], values[f"{name}_beside_p99_ms"] = alone_ms, p99_ms(sent)
                values[f"{name}_beside_to_alone"] = p99_ms(sent) / alone_ms
            measured.append(values)
    return measured


def calls(server: Server, rate_per_s: float, seed: int) -> Sent:
    """Send requests of a row each, when they are due."""
    values = np.random.default_rng(seed).normal(size=16)
    body = json.dumps({"instances": [{"x": values.round(3).tolist()}]})
    port = int(server.url.rpartition(":")[2])
    return send(PoissonLoad(port, "/v1/models/adder:predict", [body], rate_per_s, SECONDS, seed))


def p99_ms(sent: Sent) -> float:
    """Return it of all requests.

    Raises:
        RuntimeError: some were not answered.
    """
    if bad := [each.status for each in sent.outcomes if each.status != 200]:
        raise RuntimeError(f"{len(bad)} requests were not answered, the first with {bad[0]}")
    return 1e3 * percentile([each.latency_s for each in sent.outcomes], 0.99)


def rows(server: Server) -> float:
    """Return how many rows it has computed so far."""
    return batch_sums(server.metrics())["sum"]


@contextmanager
def backfill(server: Server, source: Path, output: Path) -> Iterator[None]:
    """Score rows through the server for as long as a block lasts.

    Raises:
        RuntimeError: it did not begin, or ended before the block did.
    """
    command = [sys.executable, "-m", "shoal", "batch", "--to", server.url, "--input", str(source)]
    with subprocess.Popen(
        [*command, "--output", str(output), "--keep", "-"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        threading.Thread(target=process.stderr.read, daemon=True).start()
        try:
            wait_for_rows(server, process)
            yield
            if process.poll() is not None:
                raise RuntimeError("the batch ended before the callers did")
        finally:
            process.terminate()


def wait_for_rows(server: Server, process: "subprocess.Popen[str]") -> None:
    """Return when the batch has asked.

    Raises:
        RuntimeError: it never did.
    """
    before, ends_s = rows(server), time.monotonic() + PATIENCE_S
    while rows(server) < before + 1000:
        if process.poll() is not None or time.monotonic() > ends_s:
            raise RuntimeError("the batch asked for nothing")
        time.sleep(0.1)
