"""`python -m shoal_runtime batch-ray`: one job whose workers are tasks of a Ray cluster.

Each task runs the batch program. Finished shards, and the worker that claimed each shard, are recorded beside the
results. Ray can therefore restart a worker of a lost node elsewhere, where it resumes with the same shards.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from uuid import uuid4

import ray

from shoal_runtime.errors import EXIT_USAGE
from shoal_runtime.offline.settings import from_env
from shoal_schema.process.environment import SettingsError
from shoal_schema.process.logs import configure

logger = logging.getLogger(__name__)


def run_on_ray(environ: Mapping[str, str]) -> int:
    """Run a job's workers as Ray tasks; return the first exit status other than 0, or 0."""
    try:
        settings = from_env(environ)
    except SettingsError as error:
        logger.critical("%s", error)
        return EXIT_USAGE
    configure(settings.logging.level, settings.logging.form)
    ray.init(ignore_reinit_error=True, log_to_driver=True)
    workers = settings.process.workers
    passed_on = {name: value for name, value in environ.items() if not name.startswith("RAY_")}
    # One name for all workers, however often they start: their leases are recorded under it.
    passed_on["SHOAL_BATCH_RUN"] = settings.process.run or uuid4().hex
    gpus = int(ray.cluster_resources().get("GPU", 0) // workers)
    # A lost node is not the worker's fault, so retries are unlimited. An exit status of the worker is final.
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=-1, scheduling_strategy="SPREAD")(_work)
    logger.info("event=workers_started workers=%d gpus_each=%d", workers, gpus)
    statuses = ray.get([task.remote(passed_on, number) for number in range(workers)])
    failed = [(number, status) for number, status in enumerate(statuses) if status]
    for number, status in failed:
        logger.error("event=worker_failed worker=%d status=%d; the worker's log has the reason", number, status)
    return failed[0][1] if failed else 0


def _work(settings: Mapping[str, str], number: int) -> int:
    """Run one worker on this node, with the GPUs that Ray assigned to it."""
    own = {name: value for name, value in os.environ.items() if name.startswith(("CUDA_", "ROCR_", "HIP_"))}
    environ = {**settings, **own, "SHOAL_BATCH_WORKER": str(number)}
    command = [sys.executable, "-P", "-m", "shoal_runtime", "batch"]
    return subprocess.run(command, env=environ, check=False).returncode
