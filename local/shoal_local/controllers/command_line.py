"""The arguments of `python -m shoal_local.controllers`."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click

from shoal_local.api_client import ApiClient
from shoal_local.controllers.loops import (
    DeploymentLoop,
    EndpointSliceLoop,
    Executor,
    JobLoop,
    ReplicaSetLoop,
    SchedulerLoop,
    Sources,
)
from shoal_local.events import EventRecorder
from shoal_local.kubeconfig import read_kubeconfig
from shoal_local.stopping import run_part
from shoal_schema.process.arguments import FILE, run_arguments


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


def run(arguments: Sequence[str]) -> int:
    """Run all controllers until SIGINT or SIGTERM."""
    return run_arguments(_run, "python -m shoal_local.controllers", arguments)


@click.command()
@click.option("--kubeconfig", type=FILE, required=True, help="how to reach the API server")
def _run(kubeconfig: Path) -> int:
    """Run the controllers and the scheduler."""
    return run_part(work(kubeconfig))
