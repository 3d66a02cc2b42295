"""BentoML: one service process whose dispatcher batches by a regression over recent timings."""

from typing import Annotated

import bentoml
import numpy as np
from bentoml.validators import DType, Shape
from numpy.typing import NDArray

from benchmarks.peers.workload import COLUMNS, Job, load

JOB = Job.from_env()
Rows = Annotated[NDArray[np.float32], DType("float32"), Shape((-1, COLUMNS))]
TRAFFIC = {"timeout": 60, "max_concurrency": JOB.settings["max_concurrency"]}


@bentoml.service(workers=1, traffic=TRAFFIC, logging={"access": {"enabled": False}})
class Model:
    """Rows in, rows out; a request holds one."""

    def __init__(self) -> None:
        self._predict = load(JOB.workload)

    @bentoml.api(
        batchable=True,
        max_batch_size=JOB.workload.max_batch_size,
        max_latency_ms=JOB.settings["max_latency_ms"],
    )
    def predict(self, x: Rows) -> Rows:
        """Answer a batch."""
        return self._predict(np.asarray(x, np.float32))
