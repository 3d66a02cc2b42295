"""LitServe: FastAPI in front, batches from a queue to one worker process."""

from typing import Any

import litserve
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.workload import Job, load

JOB = Job.from_env()


class Model(litserve.LitAPI):
    """JSON objects in, JSON objects out."""

    def setup(self, device: str) -> None:
        """Load the model in the worker."""
        self._model = load(JOB.workload)

    def decode_request(self, request: dict[str, Any]) -> list[float]:
        """Take the row out of the body."""
        row: list[float] = request["x"]
        return row

    def batch(self, inputs: list[list[float]]) -> NDArray[np.float32]:
        """Stack the rows."""
        return np.array(inputs, np.float32)

    def predict(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Answer a batch."""
        return self._model(x)

    def unbatch(self, output: NDArray[np.float32]) -> list[list[float]]:
        """Split the rows."""
        rows: list[list[float]] = output.tolist()
        return rows

    def encode_response(self, output: list[float]) -> dict[str, list[float]]:
        """Put the row into a body."""
        return {"y": output}


if __name__ == "__main__":
    api = Model(max_batch_size=JOB.workload.max_batch_size, batch_timeout=JOB.settings["batch_timeout_s"])
    server = litserve.LitServer(
        api,
        accelerator="cpu",
        workers_per_device=1,
        timeout=JOB.settings["timeout_s"],
        fast_queue=JOB.settings["fast_queue"],
    )
    server.run(host="127.0.0.1", port=JOB.port, num_api_servers=1, generate_client_file=False, log_level="error")
