"""The arguments of `python -m shoal_local.apiserver`."""

import os
from pathlib import Path

import click
from click import option

from shoal_local.apiserver.server import make_server
from shoal_schema.process.arguments import FILE
from shoal_schema.process.logs import configure


@click.command()
@option("--listen", default="127.0.0.1:6443", metavar="HOST:PORT", help="address of the API")
@option("--kubeconfig", type=FILE, required=True, help="written for clients")
@option("--snapshot", type=FILE, help="file that stores the state across restarts")
@option("--service-cidr", default="10.96.0.0/16", help="services' addresses; only loopback addresses are reachable")
def command(listen: str, kubeconfig: Path, snapshot: Path | None, service_cidr: str) -> int:
    """Serve the Kubernetes API on this machine."""
    configure()
    host, _, port = listen.rpartition(":")
    running = make_server(host, int(port), snapshot=snapshot, service_network=service_cidr)
    # Replaced atomically, and readable by its owner only: it holds the administrator's token.
    new = kubeconfig.with_name(f"{kubeconfig.name}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(running.kubeconfig)
    new.replace(kubeconfig)
    running.serve()
    return 0
