"""Ray Serve: an HTTP proxy process in front, `serve.batch` in one replica."""

import asyncio
import logging
import signal
import tempfile

import numpy as np
import ray
from ray import serve
from starlette.requests import Request

from benchmarks.peers.workload import Job, load

JOB = Job.from_env()


class Model:
    """JSON objects in, JSON objects out."""

    def __init__(self) -> None:
        self._predict = load(JOB.workload)

    @serve.batch(
        max_batch_size=JOB.workload.max_batch_size,
        batch_wait_timeout_s=JOB.settings["batch_wait_timeout_s"],
    )
    async def answer(self, rows: list[list[float]]) -> list[list[float]]:
        """Answer a batch in a thread, so that the next one's requests are read meanwhile."""
        y = await asyncio.to_thread(self._predict, np.array(rows, np.float32))
        answers: list[list[float]] = y.tolist()
        return answers

    async def __call__(self, request: Request) -> dict[str, list[float]]:
        """Answer one request."""
        return {"y": await self.answer((await request.json())["x"])}


def start(cpus: int) -> None:
    """Start Ray, and what listens, where the job says."""
    ray.init(
        num_cpus=cpus,
        include_dashboard=False,
        object_store_memory=100_000_000,
        log_to_driver=False,
        _temp_dir=tempfile.gettempdir(),
        logging_level=logging.ERROR,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": JOB.port}, logging_config={"enable_access_log": False})


def main() -> None:
    """Serve until stopped."""
    start(2)
    deployment = serve.deployment(
        max_ongoing_requests=JOB.settings["max_ongoing_requests"],
        max_queued_requests=JOB.settings["max_queued_requests"],
        logging_config={"enable_access_log": False, "log_level": "ERROR"},
    )
    serve.run(deployment(Model).bind(), name="model", route_prefix="/")
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    ray.shutdown()


if __name__ == "__main__":
    main()
