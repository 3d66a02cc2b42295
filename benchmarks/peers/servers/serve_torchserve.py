"""TorchServe: a Java front end, batches over a socket to one Python worker."""

from typing import Any

import numpy as np

from benchmarks.peers.workload import Job, load


class Model:
    """JSON objects in, JSON objects out."""

    def initialize(self, context: Any) -> None:
        """Load the model."""
        self._predict = load(Job.from_env().workload)

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[dict[str, Any]]:
        """Answer a batch."""
        x = np.array([item["body"]["x"] for item in data], np.float32)
        return [{"y": row} for row in self._predict(x).tolist()]
