"""The arguments of `python -m shoal_local.controllers`."""

import argparse
import asyncio
from pathlib import Path

from shoal_local.api_client import ApiClient
from shoal_local.controllers.executor import Executor
from shoal_local.controllers.loops import (
    DeploymentLoop,
    EndpointSliceLoop,
    JobLoop,
    ReplicaSetLoop,
    SchedulerLoop,
    Sources,
)
from shoal_local.events import EventRecorder
from shoal_local.kubeconfig import read_kubeconfig
from shoal_local.stopping import run_part


async def work(kubeconfig: Path) -> None:
    """Run all controllers until cancelled."""
    connection = read_kubeconfig(kubeconfig)
    async with ApiClient(connection, "shoal-controllers") as client, asyncio.TaskGroup() as group:
        sources = Sources(client)
        recorder = EventRecorder(client, "shoal-controllers")
        # Loops share the informers: a write of one is visible to all at once.
        executor = Executor(client, recorder, sources.all)
        loops = (
            DeploymentLoop(sources, executor),
            ReplicaSetLoop(sources, executor),
            JobLoop(sources, executor),
            EndpointSliceLoop(sources, executor),
            SchedulerLoop(sources, client, recorder),
        )
        for informer in sources.all:
            group.create_task(informer.run())
        group.create_task(recorder.run())
        # A controller with an empty cache would create everything a second time.
        await sources.synced()
        for loop in loops:
            group.create_task(loop.queue.run())


def run(arguments: list[str]) -> int:
    """Run all controllers until SIGINT or SIGTERM."""
    description = "Run the controllers and the scheduler."
    parser = argparse.ArgumentParser(prog="python -m shoal_local.controllers", description=description)
    parser.add_argument("--kubeconfig", type=Path, required=True, metavar="FILE", help="how to reach the API server")
    options = parser.parse_args(arguments)
    return run_part(work(options.kubeconfig))
