"""The ``shoal`` command: serve a model, ask a server, see what a model takes."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from shoal.bench import bench
from shoal.commands import info, predict, serve
from shoal.errors import ShoalError
from shoal.serving.fields import FieldError

EXAMPLES = """\
examples:
  shoal serve examples/cat                  serve a model from a manifest or a model directory
  shoal info http://127.0.0.1:8080          what it takes and gives
  shoal predict http://127.0.0.1:8080 picture.jpg
  shoal bench http://127.0.0.1:8080         how much it takes, and what bounds it
  shoal local up                            a Kubernetes cluster on this machine, with the operator
  shoal record --from http://127.0.0.1:9090 > trace.csv
  shoal simulate trace.csv --from http://127.0.0.1:9090 --objective-ms 30
"""
SERVE_EXAMPLES = """\
examples:
  shoal serve ./cat                         a model directory, or a folder with one manifest
  shoal serve cat.yaml --port 9000          an InferenceService manifest
  shoal serve model.pt2 --set batching.maxBatchSize=64 --set runtime.device=cpu
  shoal serve ./adder --set model.parameters.baseMicroseconds=4000

Fields are those of an InferenceService: docs/cli.md lists them. SHOAL_* environment variables that
no field sets reach the processes as they are. Ctrl-C stops in order; a second one kills.
"""
PREDICT_EXAMPLES = """\
examples:
  shoal predict http://127.0.0.1:8080 picture.jpg
  shoal predict http://127.0.0.1:8080 --text 'a small fish among many'
  shoal predict http://127.0.0.1:8080 --json '[1, 2, 3]'
  shoal predict http://127.0.0.1:8080 --json '{"a": [1, 2], "b": [3, 4]}' --output json
  shoal predict http://127.0.0.1:8080 item.npy

FILE is one item: .npy for an array, .npz for a model with several inputs, .json for a JSON value;
any other file is sent as its bytes. A single - reads standard input.
"""
INFO_EXAMPLES = """\
examples:
  shoal info http://127.0.0.1:8080
  shoal info http://triton:8000 --model resnet   a server that does not list its models
"""
BENCH_EXAMPLES = """\
examples:
  shoal bench http://127.0.0.1:8080
  shoal bench http://127.0.0.1:8080 --item picture.jpg --plot bench.svg
  shoal bench http://127.0.0.1:8080 --data '{"a": [1, 2], "b": [3, 4]}' --objective-ms 50 --json

Requests leave at random moments at a rising rate until answers are missing or late; what a server does
under load, everybody else who uses it at that time feels too.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["local"]:
        # It has a help of its own, and one process less stands between it and Ctrl-C.
        os.execv(sys.executable, [sys.executable, "-m", "shoal_local", *given[1:]])
    if given[:1] in (["simulate"], ["record"]):
        os.execv(sys.executable, [sys.executable, "-m", "shoal_proxy", *given])
    options = _parser().parse_args(given)
    try:
        status: int = options.run(options)
    except (ShoalError, FieldError) as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "shoal",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, text: str, *, epilog: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=text,
            description=f"{text.capitalize()}.",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    _fill_serve(command("serve", "serve a model on this machine", epilog=SERVE_EXAMPLES))
    _fill_predict(command("predict", "ask a server about one item", epilog=PREDICT_EXAMPLES))
    command("local", "run a cluster on this machine: `shoal local --help`", epilog="")
    command("simulate", "try objectives and loads without a device: `shoal simulate --help`", epilog="")
    command("record", "write down what arrives at a proxy: `shoal record --help`", epilog="")
    _fill_bench(command("bench", "load a server until it bends, and say what to change", epilog=BENCH_EXAMPLES))
    _fill_info(command("info", "show what a model takes and gives", epilog=INFO_EXAMPLES))
    return parser


def _fill_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="PATH", type=Path, help="manifest, directory or file")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=_port, default=8080, help="%(default)s; 0 takes a free one")
    parser.add_argument("--admin-port", type=_port, help="/readyz and /metrics; 9090 if free, else any free one")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="set a field; repeatable")
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        type=str.lower,
        help="of the two processes (info; with --quiet: error)",
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.set_defaults(run=serve)


def _fill_predict(parser: argparse.ArgumentParser) -> None:
    _fill_server(parser)
    item = parser.add_mutually_exclusive_group(required=True)
    item.add_argument("file", metavar="FILE", nargs="?", help="the item; see below")
    item.add_argument("--text", help="the item is this text")
    item.add_argument("--json", help="the item is this JSON value")
    parser.add_argument("--output", choices=("text", "json"), default="text", help="(%(default)s)")
    parser.set_defaults(run=predict)


def _fill_info(parser: argparse.ArgumentParser) -> None:
    _fill_server(parser)
    parser.set_defaults(run=info)


def _fill_bench(parser: argparse.ArgumentParser) -> None:
    _fill_server(parser)
    item = parser.add_mutually_exclusive_group()
    item.add_argument("--item", metavar="FILE", type=Path, help="what is asked, as for predict; else made of ones")
    item.add_argument("--text", help="what is asked is this text")
    item.add_argument("--data", metavar="JSON", help="what is asked is this JSON value")
    parser.add_argument("--rows", type=_count, default=1, help="items in each request (%(default)s)")
    parser.add_argument("--seconds", type=_seconds, default=30.0, help="for how long in all (%(default)s)")
    parser.add_argument("--objective-ms", type=_milliseconds, help="later answers do not count; else 5 times one alone")
    parser.add_argument("--admin", metavar="URL", help="the admin port, for what the server says itself; else :9090")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write a picture: .svg, or .png with matplotlib")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments (%(default)s)")
    parser.add_argument("--json", action="store_true", help="figures for programs")
    parser.set_defaults(run=bench)


def _fill_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="the server: http://127.0.0.1:8080")
    parser.add_argument("--model", help="the model's name, if the server does not list exactly one")
    parser.add_argument("--timeout", type=_seconds, default=30.0, help="seconds (%(default)s)")


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"must be 0 to 65535, not {text}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 65536:
        raise argparse.ArgumentTypeError(f"must be 1 to 65536, not {text}")
    return value


def _milliseconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3_600_000:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 3600000 milliseconds, not {text}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 86400 seconds, not {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
