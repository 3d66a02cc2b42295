"""The arguments of `python -m shoal_local.services`."""

import asyncio
from ipaddress import IPv4Network
from pathlib import Path

import click

from shoal_local.api_client import ApiClient, read_kubeconfig
from shoal_local.events import EventRecorder
from shoal_local.processes import run_part
from shoal_local.services.forwarding import LOOPBACK, Forwarder
from shoal_schema.process.arguments import FILE


async def work(kubeconfig: Path, network: IPv4Network) -> None:
    """Forward connections until cancelled."""
    async with ApiClient(read_kubeconfig(kubeconfig), "shoal-services") as client, asyncio.TaskGroup() as group:
        recorder = EventRecorder(client, "shoal-services")
        forwarder = Forwarder(client, recorder, network)
        for informer in forwarder.informers:
            group.create_task(informer.run())
        group.create_task(recorder.run())
        group.create_task(forwarder.run())


@click.command()
@click.option("--kubeconfig", type=FILE, required=True, help="how to reach the API server")
@click.option("--service-cidr", type=IPv4Network, metavar="CIDR", default=LOOPBACK, help="addresses of services")
def command(kubeconfig: Path, service_cidr: IPv4Network) -> int:
    """Forward connections from services to pods."""
    return run_part(work(kubeconfig, service_cidr))
