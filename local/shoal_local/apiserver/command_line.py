"""The arguments of `python -m shoal_local.apiserver`."""

import argparse
import os
from pathlib import Path

from shoal_local.apiserver.server import make_server
from shoal_schema.process.logs import configure


def run(arguments: list[str]) -> int:
    """Serve the API until SIGINT or SIGTERM."""
    description = "Serve the Kubernetes API on this machine."
    parser = argparse.ArgumentParser(prog="python -m shoal_local.apiserver", description=description)
    parser.add_argument("--listen", default="127.0.0.1:6443", metavar="HOST:PORT", help="(%(default)s)")
    parser.add_argument("--kubeconfig", type=Path, required=True, metavar="FILE", help="written for clients")
    parser.add_argument("--snapshot", type=Path, metavar="FILE", help="file that stores the state across restarts")
    message = "network of the services' addresses; only loopback addresses are reachable (%(default)s)"
    parser.add_argument("--service-cidr", default="10.96.0.0/16", help=message)
    options = parser.parse_args(arguments)
    configure()
    host, _, port = options.listen.rpartition(":")
    network = options.service_cidr
    running = make_server(host, int(port), snapshot=options.snapshot, service_network=network)
    # Replaced atomically, and readable by its owner only: it holds the administrator's token.
    new = options.kubeconfig.with_name(f"{options.kubeconfig.name}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(running.kubeconfig)
    new.replace(options.kubeconfig)
    running.serve()
    return 0
