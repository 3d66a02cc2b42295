"""The commands of `shoal local`.

Running a command imports its code, so that --help and completion need neither httpx nor YAML.
"""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click import option

from shoal_schema.process.arguments import DIRECTORY
from shoal_schema.version import VERSION

if TYPE_CHECKING:
    from shoal_local.cluster import Cluster

WRONG_ARGUMENTS = 2
DEFAULT = Path("~/.local/share/shoal/local")
# Generated from publisher.toml.
_DISTRIBUTION: Final = "shoal-local"


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> int:
        """Run the command; a missing package is an error of one line (click)."""
        try:
            status: int = super().invoke(ctx)
        except ModuleNotFoundError as missing:
            _print_error(f"{missing}. Install it: pip install {_DISTRIBUTION}")
            return 1
        return status


def _print_error(error: object) -> None:
    sys.stderr.write(f"shoal: {error}\n")


def _state(cluster: "Cluster", *, as_json: bool) -> str:
    return f"{json.dumps(cluster.facts(), indent=2)}\n" if as_json else cluster.status()


@click.group("local", cls=_Commands)
@click.version_option(VERSION, message="shoal local %(version)s")
def command() -> None:
    """Run a Kubernetes cluster on this machine."""


_DIR = option("--dir", "directory", type=DIRECTORY, default=DEFAULT, help="directory of the cluster's files")
_JSON = option("--json", "as_json", is_flag=True, help="print the state as JSON")


@command.command()
@_DIR
@option("--capacity", multiple=True, metavar="RESOURCE=COUNT", help="a resource of the node, such as nvidia.com/gpu=2")
@option("--model", multiple=True, metavar="NAME=DIR", help="show a model's directory to pods as file:///models/NAME")
@option("--no-operator", is_flag=True, help="do not install the operator's chart")
@_JSON
def up(directory: Path, capacity: Sequence[str], model: Sequence[str], *, no_operator: bool, as_json: bool) -> int:
    """Start the cluster, and wait until it is ready."""
    from shoal_local.cluster import Cluster  # noqa: PLC0415
    from shoal_local.installing import StartError  # noqa: PLC0415
    from shoal_local.kubelet import command_line as kubelet  # noqa: PLC0415
    from shoal_local.kubelet.runs import mount_error_message  # noqa: PLC0415

    try:
        kubelet.parse_capacity(capacity)
        models = kubelet.parse_models(model)
    except ValueError as error:
        _print_error(error)
        return WRONG_ARGUMENTS
    cluster = Cluster(directory)
    ran = any(part.pid is not None for part in cluster.parts.values())
    try:
        cluster.add_models(models)
        cluster.up([part for text in capacity for part in ("--capacity", text)])
        if cluster.mount_error:
            _print_error(mount_error_message(cluster.mount_error))
        if not no_operator:
            cluster.install_operator()
    except (StartError, ValueError) as error:
        _print_error(error)
        return 1
    except KeyboardInterrupt:
        # Stop what this command started; a cluster that ran before continues.
        if ran:
            stop = f"shoal local down --dir {shlex.quote(str(cluster.directory))}"
            sys.stderr.write(f"\ninterrupted; the cluster ran before and keeps running: `{stop}` stops it\n")
        else:
            sys.stderr.write("\ninterrupted: stopping what was started\n")
            cluster.down(keep=True)
        raise
    sys.stdout.write(_state(cluster, as_json=as_json))
    if not as_json:
        for name, source in models.items():
            sys.stdout.write(f"\nfile:///models/{name} is {source} in pods that start later\n")
        sys.stdout.write(f"\nexport KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}\n")
    return 0


@command.command()
@_DIR
@option("--keep", is_flag=True, help="keep the objects for the next up")
def down(directory: Path, *, keep: bool) -> int:
    """Stop the cluster, pods included."""
    from shoal_local.cluster import Cluster  # noqa: PLC0415

    Cluster(directory).down(keep=keep)
    return 0


@command.command()
@_DIR
@_JSON
def status(directory: Path, *, as_json: bool) -> int:
    """Print the state of the cluster's processes. The exit status is 1 unless all run."""
    from shoal_local.cluster import Cluster  # noqa: PLC0415

    cluster = Cluster(directory)
    sys.stdout.write(_state(cluster, as_json=as_json))
    return 0 if cluster.runs else 1
