"""Triton through PyTriton: its C++ server and dynamic batcher, one Python process that predicts."""

import tempfile

import numpy as np
from numpy.typing import NDArray
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, QueuePolicy, Tensor, TimeoutAction
from pytriton.triton import Triton, TritonConfig

from benchmarks.peers.workload import COLUMNS, Job, load

JOB = Job.from_env()


def queue_policy() -> QueuePolicy | None:
    """Return when requests are refused: by age in the queue and by its length; None to keep all."""
    if (timeout_ms := JOB.settings.get("reject_after_ms")) is None:
        return None
    size = JOB.settings["max_queue_size"]
    return QueuePolicy(
        timeout_action=TimeoutAction.REJECT,
        default_timeout_microseconds=1000 * timeout_ms,
        max_queue_size=size,
    )


def serve() -> None:
    """Serve until stopped."""
    model = load(JOB.workload)

    @batch
    def predict(x: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        return {"y": model(x)}

    batcher = DynamicBatcher(
        max_queue_delay_microseconds=JOB.settings["max_queue_delay_us"],
        default_queue_policy=queue_policy(),
    )
    with Triton(config=config(), workspace=f"{tempfile.mkdtemp()}/triton") as triton:
        triton.bind(
            model_name="model",
            infer_func=predict,
            inputs=[Tensor(name="x", dtype=np.float32, shape=(COLUMNS,))],
            outputs=[Tensor(name="y", dtype=np.float32, shape=(COLUMNS,))],
            config=ModelConfig(max_batch_size=JOB.workload.max_batch_size, batcher=batcher),
        )
        triton.serve()


def config() -> TritonConfig:
    """Return a server that listens for HTTP on this machine alone."""
    return TritonConfig(
        http_address="127.0.0.1",
        http_port=JOB.port,
        http_thread_count=JOB.settings["http_threads"],
        allow_grpc=False,
        allow_metrics=False,
    )


if __name__ == "__main__":
    serve()
