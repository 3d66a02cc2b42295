"""`python -m shoal_local up|down|status|node`: a cluster for one machine."""

import argparse
import shlex
import sys
from pathlib import Path

from shoal_local.cluster import CannotStartError, Cluster
from shoal_local.installing import CannotInstallError
from shoal_local.kubelet import __main__ as kubelet
from shoal_local.kubelet.mounting import NO_MOUNTS, mounts_refused, told

DEFAULT = Path("~/.local/share/shoal/local")


def main(arguments: list[str]) -> int:
    """Carry out one command; return the exit status."""
    if arguments[:1] == ["node"]:
        return _node(arguments[1:])
    options = _parser().parse_args(arguments)
    cluster = Cluster(options.dir)
    match options.command:
        case "up":
            return _up(cluster, options)
        case "down":
            cluster.down(keep=options.keep)
            return 0
        case _:
            sys.stdout.write(cluster.status())
            return 0 if cluster.runs else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="shoal local", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start what does not run, and wait until it is ready")
    down = commands.add_parser("down", help="stop everything, pods included")
    status = commands.add_parser("status", help="say what runs; exit status 1 unless all parts do")
    commands.add_parser("node", help="run this machine as a node of another control plane")
    for command in (up, down, status):
        command.add_argument("--dir", type=Path, default=DEFAULT, help="keeps the cluster's files")
    up.add_argument(
        "--capacity",
        action="append",
        default=[],
        metavar="RESOURCE=COUNT",
        help="what the node offers, such as nvidia.com/gpu=2",
    )
    up.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="show a model's folder to pods as file:///models/NAME; may be repeated",
    )
    up.add_argument("--no-operator", action="store_true", help="an empty cluster: do not install Shoal's chart")
    down.add_argument("--keep", action="store_true", help="keep the objects for the next up")
    return parser


def _node(arguments: list[str]) -> int:
    refusal = mounts_refused()
    if refusal:
        sys.stderr.write(f"{told(refusal)}\n")
    return kubelet.main(["--tls", *([NO_MOUNTS] if refusal else []), *arguments])


def _up(cluster: Cluster, options: argparse.Namespace) -> int:
    try:
        kubelet.parse_capacity(options.capacity)
        models = kubelet.parse_models(options.model)
        cluster.up(
            [
                *(part for text in options.capacity for part in ("--capacity", text)),
                *(part for name, folder in models.items() for part in ("--model", f"{name}={folder}")),
            ]
        )
        if cluster.mounts_refused:
            sys.stderr.write(f"{told(cluster.mounts_refused)}\n")
        if not options.no_operator:
            cluster.install_operator()
    except (CannotStartError, CannotInstallError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{cluster.status()}\nexport KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
