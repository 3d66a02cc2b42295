"""The arguments of `shoal local` and its commands."""

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shoal_schema.process.arguments import CommandParser
from shoal_schema.version import VERSION

if TYPE_CHECKING:
    from shoal_local.cluster import Cluster

WRONG_ARGUMENTS = 2
DEFAULT = Path("~/.local/share/shoal/local")


def run(arguments: list[str]) -> int:
    """Run one command; return the exit status."""
    try:
        # Imported here: --help and completion need neither the client nor YAML.
        from shoal_local.cluster import Cluster  # noqa: PLC0415

        parser = make_parser()
        if "_ARGCOMPLETE" in os.environ:
            import argcomplete  # noqa: PLC0415 (only completion needs it)

            argcomplete.autocomplete(parser, always_complete_options=False)
        options = parser.parse_args(arguments)
        cluster = Cluster(options.dir)
        match options.command:
            case "up":
                return _up(cluster, options)
            case "down":
                cluster.down(keep=options.keep)
                return 0
            case _:
                sys.stdout.write(_state(cluster, options))
                return 0 if cluster.runs else 1
    except ModuleNotFoundError as missing:
        _print_error(f"{missing}. Install it: pip install shoal-local")
        return 1


def _print_error(error: object) -> None:
    sys.stderr.write(f"shoal: {error}\n")


def _state(cluster: "Cluster", options: argparse.Namespace) -> str:
    return f"{json.dumps(cluster.facts(), indent=2)}\n" if options.json else cluster.status()


def make_parser() -> argparse.ArgumentParser:
    """Return the argument parser of `shoal local`."""
    parser = CommandParser(prog="shoal local", description="Run a Kubernetes cluster on this machine.")
    parser.add_argument("--version", action="version", version=f"shoal local {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start the cluster, and wait until it is ready")
    down = commands.add_parser("down", help="stop the cluster, pods included")
    status = commands.add_parser(
        "status", help="print the state of the cluster's processes; exit status 1 unless all run"
    )
    for command in (up, down, status):
        command.add_argument("--dir", type=Path, default=DEFAULT, help="directory of the cluster's files (%(default)s)")
    for command in (up, status):
        command.add_argument("--json", action="store_true", help="print the state as JSON")
    message = "add a resource to the node, such as nvidia.com/gpu=2"
    up.add_argument("--capacity", action="append", default=[], metavar="RESOURCE=COUNT", help=message)
    message = "show a model's directory to pods as file:///models/NAME; may be repeated"
    up.add_argument("--model", action="append", default=[], metavar="NAME=DIR", help=message)
    up.add_argument("--no-operator", action="store_true", help="do not install the operator's chart")
    down.add_argument("--keep", action="store_true", help="keep the objects for the next `up`")
    return parser


def _up(cluster: "Cluster", options: argparse.Namespace) -> int:
    from shoal_local.cluster import StartError  # noqa: PLC0415
    from shoal_local.installing import InstallError  # noqa: PLC0415
    from shoal_local.kubelet import command_line as kubelet  # noqa: PLC0415
    from shoal_local.kubelet.mounting import mount_error_message  # noqa: PLC0415

    try:
        kubelet.parse_capacity(options.capacity)
        models = kubelet.parse_models(options.model)
    except ValueError as error:
        _print_error(error)
        return WRONG_ARGUMENTS
    ran = cluster.runs_in_part
    try:
        cluster.add_models(models)
        cluster.up([part for text in options.capacity for part in ("--capacity", text)])
        if cluster.mount_error:
            _print_error(mount_error_message(cluster.mount_error))
        if not options.no_operator:
            cluster.install_operator()
    except (StartError, InstallError, ValueError) as error:
        _print_error(error)
        return 1
    except KeyboardInterrupt:
        # Stop what this command started; a cluster that ran before continues.
        if ran:
            command = f"shoal local down --dir {shlex.quote(str(cluster.directory))}"
            sys.stderr.write(f"\ninterrupted; the cluster ran before and keeps running: `{command}` stops it\n")
        else:
            sys.stderr.write("\ninterrupted: stopping what was started\n")
            cluster.down(keep=True)
        raise
    sys.stdout.write(_state(cluster, options))
    if not options.json:
        for name, directory in models.items():
            sys.stdout.write(f"\nfile:///models/{name} is {directory} in pods that start later\n")
        sys.stdout.write(f"\nexport KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}\n")
    return 0
