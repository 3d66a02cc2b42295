"""mosec: a Rust web layer, batches over a unix socket to one Python worker."""

import sys
from typing import Any

import numpy as np
from mosec import Server, Worker

from benchmarks.peers.workload import Job, load

JOB = Job.from_env()


class Model(Worker):
    """JSON objects in, JSON objects out."""

    def __init__(self) -> None:
        self._predict = load(JOB.workload)

    def forward(self, data: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Answer a batch."""
        x = np.array([item["x"] for item in data], np.float32)
        return [{"y": row} for row in self._predict(x).tolist()]


if __name__ == "__main__":
    sys.argv[1:] = ["--address=127.0.0.1", f"--port={JOB.port}", "--timeout=60000", "--log-level=error"]
    sys.argv += [f"--capacity={JOB.settings['capacity']}"]
    server = Server()
    size, wait_ms = JOB.workload.max_batch_size, JOB.settings["max_wait_ms"]
    server.append_worker(Model, num=1, max_batch_size=size, max_wait_time=wait_ms)
    server.run()
