"""Replicas of a rollout as processes: ``shoal serve`` with a revision, and the plans that an operator would send."""

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from benchmarks.rollout import COLUMNS
from examples.server import Server, ServerError, free_ports, start, stop, wait_until_ready
from shoal_schema.interfaces.headers import ADMIN
from shoal_schema.interfaces.rollout import PATH, RolloutPlan, RolloutReport

MODEL = Path(__file__).parent / "model"
STABLE, CANDIDATE = "stable", "candidate"
"""Revisions. A stable replica may have several candidates, one at a time."""
NOWHERE = "127.0.0.1:9"
"""Address without a server: a proxy without any candidate address accepts no plan."""
START_S = 120.0
FOUND_WITHIN_S = 15.0
CORES = sorted(os.sched_getaffinity(0))
STABLE_CORE, CANDIDATE_CORE = CORES[0], CORES[-1]
"""With two cores or more, each revision has its own."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The model's time of a batch, and its largest batch."""

    base_ms: float
    per_row_ms: float
    max_rows: int

    @property
    def rows_per_s(self) -> float:
        """Return the rows that full batches run per second."""
        return 1000 * self.max_rows / (self.base_ms + self.max_rows * self.per_row_ms)


@dataclass(frozen=True, slots=True)
class Replica:
    """A proxy with its runtime, and the file of the ids that its model has run."""

    server: Server
    record: Path

    @property
    def address(self) -> str:
        """Return ``HOST:PORT`` of the proxy."""
        return self.server.url.removeprefix("http://")

    def send(self, plan: RolloutPlan) -> RolloutReport:
        """Send a plan as the operator does; return the report."""
        body, headers = msgspec.json.encode(plan), {ADMIN: "1", "content-type": "application/json"}
        response = httpx.put(self.server.admin_url + PATH, content=body, headers=headers, trust_env=False, timeout=10)
        return msgspec.json.decode(response.raise_for_status().content, type=RolloutReport)

    def find_candidate(self, plan: RolloutPlan) -> None:
        """Send a plan, and wait until the candidate's pod has reported its revision and its signature was read.

        Raises:
            ServerError: it was not found in time.
        """
        end_s = time.monotonic() + FOUND_WITHIN_S
        while not self.send(plan).ready_candidates:
            if time.monotonic() > end_s:
                raise ServerError("the stable proxy does not find the candidate")
            time.sleep(0.1)
        time.sleep(1.0)  # its signature is read within half a second

    def forget_ids(self) -> None:
        """Forget the ids that the model has run, such as those of the warm-up."""
        os.truncate(self.record, 0)

    def ids(self) -> list[int]:
        """Return the ids that the model has run since, in order."""
        return [int(line) for line in self.record.read_text().split()]


@contextmanager
def pinned(core: int) -> Iterator[None]:
    """Keep this thread, and the processes that it starts meanwhile, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def replica(
    revision: str, cost: Cost, core: int, *, candidates: str = NOWHERE, wrong_every: int = 0
) -> Iterator[Replica]:
    """Serve the model on one core until the block ends.

    Raises:
        ServerError: it ended or was not ready in time.
    """
    port, admin_port = free_ports(2)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        record = Path(folder) / "ids"
        fields = {
            "model.parameters.baseMilliseconds": cost.base_ms,
            "model.parameters.perRowMilliseconds": cost.per_row_ms,
            "model.parameters.wrongEvery": wrong_every,
            "model.parameters.record": record,
            "model.parameters.columns": COLUMNS,
            "batching.maxBatchSize": cost.max_rows,
            "batching.rowChecks": "Off",
            "runtime.threads": 1,
        }
        command = [sys.executable, "-m", "shoal", "serve", f"{MODEL}", f"--port={port}", f"--admin-port={admin_port}"]
        command += [f"--set={name}={value}" for name, value in fields.items()]
        environment = {"SHOAL_PROXY_REVISION": revision, "SHOAL_PROXY_CANDIDATES": candidates}
        with pinned(core):
            process = start(command, log, environment)
        server = Server(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", process.pid)
        try:
            wait_until_ready(server, process, log, START_S)
            yield Replica(server, record)
        finally:
            with contextlib.suppress(ProcessLookupError):
                stop(process)


def row(number: int) -> list[float]:
    """Return the row with this id."""
    return [float(number), *map(float, range(1, COLUMNS))]
