"""The command `python -m shoal_local.kubelet`: its options and its tasks."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import uvicorn
from click import option

from shoal_local.api_client import ApiClient, read_kubeconfig
from shoal_local.events import EventRecorder
from shoal_local.kubelet.kubelet import Kubelet
from shoal_local.kubelet.logs import make_app
from shoal_local.kubelet.machine import AddressPool, Devices, Images, Machine
from shoal_local.kubelet.node import HostsFile, Node, gpu_count
from shoal_local.kubelet.probing import ProbeClient
from shoal_local.kubelet.records import Models
from shoal_local.kubelet.runs import MOUNTS_UNAVAILABLE
from shoal_local.processes import run_part
from shoal_schema.process.arguments import DIRECTORY, FILE, PORT

GPU = "nvidia.com/gpu"


def parse_capacity(given: Sequence[str]) -> dict[str, int]:
    """Parse RESOURCE=COUNT options. Raises ValueError: an option has another form."""
    counts = {GPU: gpu_count()}
    for text in given:
        name, _, count = text.partition("=")
        # Extended resources have a domain; cpu and memory are the machine's own.
        if "/" not in name or not count.isdigit():
            raise ValueError(f"--capacity must be RESOURCE=COUNT such as {GPU}=2, not {text!r}")
        counts[name] = int(count)
    return {name: count for name, count in counts.items() if count}


def parse_models(given: Sequence[str]) -> dict[str, str]:
    """Parse NAME=DIR options. Raises ValueError: an option has another form, or its directory does not exist."""
    models = {}
    for text in given:
        name, equals, directory = text.partition("=")
        if equals and Path(directory).is_file():
            raise ValueError(
                f"--model needs a directory, and {directory} is a file. Move it into one: mkdir -p models/{name} && mv"
                f" {directory} models/{name}/, then --model {name}=models/{name}"
            )
        if not equals or not name or "/" in name or not Path(directory).is_dir():
            raise ValueError(f"--model must be NAME=DIR with an existing directory, not {text!r}")
        models[name] = str(Path(directory).absolute())
    return models


async def work(options: SimpleNamespace, counts: dict[str, int]) -> None:
    """Run the kubelet until cancelled."""
    # Opened first: the node publishes this port.
    listening = socket.create_server((options.address, options.port))
    models = Models(options.dir)
    models.add(parse_models(options.model))
    async with ApiClient(read_kubeconfig(options.kubeconfig), "shoal-kubelet") as client:
        machine = Machine(
            client=client,
            recorder=EventRecorder(client, "kubelet", options.node_name),
            probe_client=ProbeClient(),
            images=Images(options.images or options.dir / "images.yaml", models),
            addresses=AddressPool(options.pod_cidr),
            devices=Devices(counts),
            root=options.dir / "pods",
            host_ip=options.address,
            node_name=options.node_name,
            hosts=options.dir / "hosts",
            mounts=not options.no_mounts,
        )
        names = HostsFile(client, machine.hosts)
        kubelet = Kubelet(client, machine)
        node = Node(
            client,
            options.node_name,
            address=options.address,
            port=listening.getsockname()[1],
            capacity={name: str(count) for name, count in counts.items()},
        )
        # Both are None without TLS, as uvicorn expects.
        tls = {"ssl_certfile": options.tls_certificate, "ssl_keyfile": options.tls_key}
        server = _Server(uvicorn.Config(make_app(kubelet), log_level="warning", lifespan="off", **tls))
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve(sockets=[listening]))
            group.create_task(machine.recorder.run())
            group.create_task(names.services.run())
            group.create_task(kubelet.run())
            group.create_task(node.run())


class _Server(uvicorn.Server):
    """A uvicorn server that leaves SIGINT and SIGTERM to `run_part`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers (uvicorn)."""
        yield


@click.command()
@option("--kubeconfig", type=FILE, required=True, help="how to reach the API server")
@option("--dir", type=DIRECTORY, required=True, help="directory of the pods' files")
@option("--node-name", default="shoal-local", help="name of the node")
@option("--pod-cidr", type=IPv4Network, metavar="CIDR", default="127.64.0.0/16", help="addresses of pods")
@option("--address", default="127.0.0.1", help="address of this node")
@option("--port", type=PORT, default=0, help="port for logs; 0 picks a free one")
@option("--tls-certificate", type=FILE, help="certificate for logs over TLS")
@option("--tls-key", type=FILE, help="private key of the certificate")
@option("--capacity", multiple=True, metavar="RESOURCE=COUNT", help=f"resource of the node, such as {GPU}=2 (all GPUs)")
@option("--model", multiple=True, metavar="NAME=DIR", help="directory that the runtime's image holds as /models/NAME")
@option(MOUNTS_UNAVAILABLE, is_flag=True, help="without mount namespaces: give containers the paths of their volumes")
@option("--images", type=FILE, help="YAML that maps image names to commands (DIR/images.yaml)")
def command(**given: Any) -> int:
    """Run the pods of a node. A signal stops the kubelet; its pods keep running."""
    options = SimpleNamespace(**given)
    try:
        counts = parse_capacity(options.capacity)
        parse_models(options.model)
        read_kubeconfig(options.kubeconfig)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return run_part(work(options, counts))
