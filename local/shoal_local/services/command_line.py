"""The arguments of `python -m shoal_local.services`."""

import argparse
import asyncio
from ipaddress import IPv4Network
from pathlib import Path

from shoal_local.api_client import ApiClient
from shoal_local.events import EventRecorder
from shoal_local.kubeconfig import read_kubeconfig
from shoal_local.services.forwarding import LOOPBACK, Forwarder
from shoal_local.stopping import run_part


async def work(kubeconfig: Path, network: IPv4Network) -> None:
    """Forward connections until cancelled."""
    async with ApiClient(read_kubeconfig(kubeconfig), "shoal-services") as client, asyncio.TaskGroup() as group:
        recorder = EventRecorder(client, "shoal-services")
        forwarder = Forwarder(client, recorder, network)
        for informer in forwarder.informers:
            group.create_task(informer.run())
        group.create_task(recorder.run())
        group.create_task(forwarder.run())


def run(arguments: list[str]) -> int:
    """Run the forwarder until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m shoal_local.services", description="Forward connections from services to pods."
    )
    parser.add_argument("--kubeconfig", type=Path, required=True, metavar="FILE", help="how to reach the API server")
    parser.add_argument(
        "--service-cidr", type=IPv4Network, default=LOOPBACK, help="addresses of services (%(default)s)"
    )
    options = parser.parse_args(arguments)
    return run_part(work(options.kubeconfig, options.service_cidr))
