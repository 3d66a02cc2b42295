"""The arguments of `python -m shoal_local.controllers`."""

import asyncio
from pathlib import Path

import click

from shoal_local.api_client import ApiClient, read_kubeconfig
from shoal_local.controllers.deployments import plan_deployment
from shoal_local.controllers.jobs import plan_job
from shoal_local.controllers.loops import (
    EndpointSliceLoop,
    Executor,
    JobLoop,
    OwnerLoop,
    ReplicaSetLoop,
    SchedulerLoop,
    Sources,
)
from shoal_local.controllers.replica_sets import plan_replica_set
from shoal_local.events import EventRecorder
from shoal_local.processes import run_part
from shoal_schema.process.arguments import FILE


async def work(kubeconfig: Path) -> None:
    """Run all controllers until cancelled."""
    connection = read_kubeconfig(kubeconfig)
    async with ApiClient(connection, "shoal-controllers") as client, asyncio.TaskGroup() as group:
        sources = Sources(client)
        recorder = EventRecorder(client, "shoal-controllers")
        # Loops share the informers: a write of one is visible to all at once.
        executor = Executor(client, recorder, sources.all)
        loops = (
            OwnerLoop(sources.deployments, sources.replica_sets, executor, plan_deployment),
            ReplicaSetLoop(sources.replica_sets, sources.pods, executor, plan_replica_set),
            JobLoop(sources.jobs, sources.pods, executor, plan_job),
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


@click.command()
@click.option("--kubeconfig", type=FILE, required=True, help="how to reach the API server")
def command(kubeconfig: Path) -> int:
    """Run the controllers and the scheduler."""
    return run_part(work(kubeconfig))
