"""The ``shoal`` command: its arguments.

Imports little: what a command needs is imported once its arguments are read.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from shoal import completion
from shoal.colours import Style, styled
from shoal.errors import InvalidInput, ShoalError, WrongAddress
from shoal.serving.fields import FieldError, MachineError
from shoal_schema.arguments import CommandParser, integer, number
from shoal_schema.version import VERSION

WRONG_ARGUMENTS = 2
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
OTHER_PROGRAMS = {
    "local": ("shoal_local",),
    "simulate": ("shoal_proxy", "simulate"),
    "record": ("shoal_proxy", "record"),
}
"""Commands that another component owns: its module, and what it is told."""
DISTRIBUTIONS = {"shoal_local": "shoal-local"}
"""What brings a module that is not in this distribution."""

TEMPLATES = ("torch", "sklearn", "transformers", "handler")

EXAMPLES = """\
examples:
  shoal init circle --from torch            a small model folder to begin from
  shoal serve examples/cat                  serve a model from a manifest or a model directory
  shoal inspect model.pt2                   what would be served, and what is wrong with it
  shoal batch --model ./cat --input 'pictures/*.jpg' --output answers
  shoal info http://127.0.0.1:8080          what it takes and gives
  shoal predict http://127.0.0.1:8080 examples/cat/picture.jpg
  shoal bench http://127.0.0.1:8080         how much it takes, and what bounds it
  shoal top                                 what it does now, in figures that follow it
  shoal dashboard                           the same as a page in a browser
  shoal local up                            a Kubernetes cluster on this machine, with the operator
  shoal record --from http://127.0.0.1:9090 > trace.csv
  shoal simulate trace.csv --from http://127.0.0.1:9090 --objective-ms 30
"""
SERVE_EXAMPLES = """\
examples:
  shoal serve ./cat                         a model directory, or a folder with one manifest
  shoal serve cat.yaml --port 9000          an InferenceService manifest
  shoal serve https://models.example.com/cat.zip
  shoal serve model.pt2 --set batching.maxBatchSize=64 --set runtime.device=cpu
  shoal serve ./adder --set model.parameters.baseMicroseconds=4000
  shoal serve cat=./cat words=words.mar     several models, one port
  shoal serve graph.yaml                    an InferenceGraph and the models of its steps: docs/how-to/graphs.md
  shoal serve --management                  POST /models?url=words.mar at port 8081, as with TorchServe

Fields are those of an InferenceService: docs/reference/serve-fields.md lists them. SHOAL_* environment variables that
no field sets reach the processes as they are. Ctrl-C stops in order; a second one kills.
"""
INIT_EXAMPLES = """\
examples:
  shoal init circle --from torch            a network, trained and exported by a script of 40 lines
  shoal init irises --from sklearn          a pipeline of scikit-learn
  shoal init mood --from transformers       a tiny classifier of texts
  shoal init words --from handler           a Python class of your own, and a module beside it
"""
INSPECT_EXAMPLES = """\
examples:
  shoal inspect ./cat                       what would be served, how big it is, and its first request
  shoal inspect https://models.example.com/cat.zip --json
  shoal inspect graph.yaml                  draws an InferenceGraph, and says whether its models fit one another

The model is loaded and warmed, its code included, exactly as `shoal serve` does it, but nobody can ask it.
"""
BATCH_EXAMPLES = """\
examples:
  shoal batch --model ./cat --input 'pictures/**/*.jpg' --output answers
  shoal batch --model model.skops --input rows.parquet --output s3://bucket/answers --columns input-0=features
  shoal batch --model ./iris --input irises.csv --output out --columns x=length,width --keep id
  shoal batch --model ./embed --input 'texts/*.jsonl' --output out --where "lang == 'en'"

Run again, it goes on where it was; what is done is not done twice. docs/how-to/batch.md tells the rest.
"""
PREDICT_EXAMPLES = """\
examples:
  shoal predict http://127.0.0.1:8080 picture.jpg
  shoal predict http://127.0.0.1:8080 --text 'a small fish among many'
  shoal predict http://127.0.0.1:8080 --data '[1, 2, 3]'
  shoal predict http://127.0.0.1:8080 --data '{"a": [1, 2], "b": [3, 4]}' --json
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
TOP_EXAMPLES = """\
examples:
  shoal top                                 what `shoal serve` here does: it asks http://127.0.0.1:9090
  shoal top 127.0.0.1:9090 127.0.0.1:9091   several, by their admin ports
  shoal top --cluster                       every service of the cluster that kubectl reaches
  shoal top --context prod -n shop --once   one table of one namespace, of a cluster by its name

Times are means over the last interval; "p95 now" is what a request that comes now has to expect. In a cluster the
operator is asked, through kubectl, by who may list InferenceServices and forward a port of the operator's pod.
"""
DASHBOARD_EXAMPLES = """\
examples:
  shoal dashboard                           what `shoal serve` here does, at http://127.0.0.1:8099
  shoal dashboard --cluster                 every service of the cluster that kubectl reaches

It is seen on this machine alone.
"""
COMPLETION_EXAMPLES = """\
examples:
  source <(shoal completion bash)           in ~/.bashrc
  source <(shoal completion zsh)            in ~/.zshrc, after compinit
  shoal completion fish | source            in ~/.config/fish/config.fish
"""


def run(given: list[str]) -> int:
    """Carry out one command; return its exit status."""
    if completion.is_asked():
        _complete()
    if given and given[0] in OTHER_PROGRAMS:
        if lacking := _lacking(given[0]):
            _complain(f"`shoal {given[0]}` is a package of its own: pip install {lacking}")
            return 1
        _become(given[0], given[1:])
    options = make_parser().parse_args(given)
    from shoal import commands  # noqa: PLC0415 (numpy and httpx: a third of a second that --help and Ctrl-C do not wait)

    try:
        status: int = getattr(commands, options.command)(options)
    except (ShoalError, FieldError, MachineError) as error:
        _complain(error)
        return WRONG_ARGUMENTS if _is_callers(error) else 1
    return status


def _complain(what: object) -> None:
    print(f"{styled('shoal:', Style.BOLD, Style.RED, stream=sys.stderr)} {what}", file=sys.stderr)


def _is_callers(error: Exception) -> bool:
    """Return whether the command line is to blame, which no server and no other moment would take."""
    return isinstance(error, FieldError | WrongAddress) or (isinstance(error, InvalidInput) and error.status is None)


def _lacking(command: str) -> str | None:
    """Return the distribution that another component's command needs, if it is not installed."""
    module = OTHER_PROGRAMS[command][0]
    return DISTRIBUTIONS[module] if module in DISTRIBUTIONS and find_spec(module) is None else None


def _become(command: str, arguments: Sequence[str]) -> None:
    """Become the program that owns a command: it has a help of its own, and nothing stands between it and Ctrl-C."""
    os.execv(sys.executable, [sys.executable, "-m", *OTHER_PROGRAMS[command], *arguments])


def _complete() -> None:
    command = completion.command_to_ask(OTHER_PROGRAMS)
    if command and not _lacking(command):
        completion.hand_over()
        _become(command, ())
    completion.complete(make_parser())


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments; those of other components' commands have no options here."""
    parser = CommandParser(
        "shoal",
        description="Serve a model, ask a server, see what a model takes.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"shoal {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, *, epilog: str) -> CommandParser:
        return commands.add_parser(
            name,
            help=text,
            description=f"{text.capitalize()}.",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    init = command("init", "write a small model folder that serves at once", epilog=INIT_EXAMPLES)
    init.add_argument("folder", metavar="NAME", help="the new folder, and the model's name")
    init.add_argument("--from", dest="template", choices=TEMPLATES, required=True, help="what it is made with")
    _fill_serve(command("serve", "serve models on this machine", epilog=SERVE_EXAMPLES))
    inspect = command("inspect", "say what would be served, and what is wrong with it", epilog=INSPECT_EXAMPLES)
    inspect.add_argument("target", metavar="PATH", help="as of serve")
    _fill_set(inspect)
    _fill_json(inspect, "print it as JSON")
    _fill_batch(command("batch", "score the rows of files with a model, and write the answers", epilog=BATCH_EXAMPLES))
    _fill_predict(command("predict", "ask a server about one item", epilog=PREDICT_EXAMPLES))
    command("local", "run a Kubernetes cluster on this machine", epilog="")
    command("simulate", "try objectives and loads without a device", epilog="")
    command("record", "write down what arrives at a server", epilog="")
    _fill_bench(command("bench", "load a server until it bends, and say what to change", epilog=BENCH_EXAMPLES))
    info = command("info", "show what a model takes and gives", epilog=INFO_EXAMPLES)
    _fill_server(info)
    _fill_json(info, "print it as JSON")
    showing = command("top", "show what services do now", epilog=TOP_EXAMPLES)
    _fill_looks(showing)
    showing.add_argument("--once", action="store_true", help="print one table, of one interval, and end")
    _fill_json(showing, "print an object a line, for each interval")
    page = command("dashboard", "show what services do now in a browser", epilog=DASHBOARD_EXAMPLES)
    _fill_looks(page)
    page.add_argument(
        "--port", type=integer(0, 65535), default=8099, help="of 127.0.0.1 (%(default)s); 0 takes a free one"
    )
    shell = command("completion", "complete commands and options in a shell", epilog=COMPLETION_EXAMPLES)
    shell.add_argument("shell", choices=completion.SHELLS, help="print what this shell has to read")
    return parser


def _fill_serve(parser: CommandParser) -> None:
    parser.add_argument(
        "targets",
        metavar="PATH",
        nargs="*",
        help="manifest, directory, model file, archive, or a URL of one; several share a port: one=PATH two=PATH",
    )
    parser.add_argument("--host", type=_host, default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=integer(0, 65535), default=8080, help="%(default)s; 0 takes a free one")
    parser.add_argument(
        "--admin-port",
        type=integer(0, 65535),
        help="/readyz and /metrics; 9090 if free, else any free one; of several models the first one's",
    )
    parser.add_argument(
        "--grpc-port",
        type=integer(0, 65535),
        help="the Open Inference Protocol over gRPC, of several models the first one's; else none",
    )
    certificate = parser.add_argument(
        "--tls-certificate",
        metavar="FILE",
        type=Path,
        help="speak TLS, with this certificate (PEM), read again when it changes",
    )
    key = parser.add_argument("--tls-key", metavar="FILE", type=Path, help="its key")
    client_ca = parser.add_argument(
        "--tls-client-ca", metavar="FILE", type=Path, help="callers need a certificate of these authorities"
    )
    parser.only(certificate, lambda given: given.tls_key, "it needs --tls-key")
    for each in (key, client_ca):
        parser.only(each, lambda given: given.tls_certificate, "it needs --tls-certificate")
    parser.add_argument(
        "--management", action="store_true", help="let programs of this machine register models, as TorchServe does"
    )
    management_port = parser.add_argument(
        "--management-port", type=integer(0, 65535), default=8081, help="of 127.0.0.1 (%(default)s)"
    )
    parser.only(management_port, lambda given: given.management, "it needs --management")
    parser.add_argument(
        "--api-key-file",
        metavar="FILE",
        type=Path,
        help="let only callers in who show a key of this file, a NAME=KEY in each line; it may change"
        " (docs/how-to/access.md)",
    )
    _fill_set(parser)
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        type=str.lower,
        help="of the two processes (info; with --quiet: error)",
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        type=str.lower,
        help="of the two processes: lines for people, or an object a line (text)",
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    _fill_json(parser, "print what happens as JSON, an object a line")


def _fill_batch(parser: CommandParser) -> None:
    parser.add_argument("--model", metavar="PATH", help="as of serve; with --to the model's name there")
    parser.add_argument(
        "--to", metavar="URL", help="a service that computes, at the lowest priority, instead of --model"
    )
    key = parser.add_argument(
        "--api-key-file", metavar="FILE", type=Path, help="shows that service the key in FILE, alone or as NAME=KEY"
    )
    parser.only(key, lambda given: given.to, "it needs --to")
    _fill_trust(parser)
    parser.add_argument("--input", metavar="URL", required=True, help="a file, a folder or a pattern of names")
    parser.add_argument("--output", metavar="URL", required=True, help="a folder for the answers of this job alone")
    parser.add_argument(
        "--columns",
        metavar="INPUT=COLUMN[,COLUMN]",
        nargs="+",
        action="extend",
        default=[],
        help="what the model's inputs are made of; else the columns of the same names",
    )
    parser.add_argument("--format", choices=("auto", "parquet", "csv", "jsonlines", "files"), help="of the input")
    parser.add_argument("--where", metavar="EXPRESSION", help="which rows: \"label == 'cat' and size >= 10\"; else all")
    parser.add_argument(
        "--keep", metavar="[NEW=]COLUMN,...", help="columns beside the answers, - is none; else nearly all"
    )
    parser.add_argument(
        "--errors",
        metavar="Column|URL",
        help="rows that fail: a reason in shoal_error (Column), or a folder of their own",
    )
    parser.add_argument("--max-error-share", metavar="SHARE", help="stop where more rows than this fail (0.01)")
    parser.add_argument("--output-format", choices=("parquet", "jsonlines"), help="of the answers (parquet)")
    parser.add_argument("--batch-size", type=integer(1, 65_536), help="rows of a forward; else the quickest is found")
    parser.add_argument(
        "--shard-bytes", type=integer(1024, 2**36), help="of input, done as a whole or not at all (64 MiB)"
    )
    parser.add_argument(
        "--workers", type=integer(1, 1024), default=1, help="models at work, a process each (%(default)s)"
    )
    _fill_set(parser)
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        type=str.lower,
        default="warning",
        help="(%(default)s)",
    )


def _fill_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="set a field; repeatable")


def _fill_predict(parser: CommandParser) -> None:
    _fill_server(parser)
    item = parser.add_mutually_exclusive_group(required=True)
    item.add_argument("file", metavar="FILE", nargs="?", help="the item; see below")
    item.add_argument("--text", help="the item is this text")
    item.add_argument("--data", metavar="JSON", help="the item is this JSON value")
    _fill_json(parser, "print the answer as JSON")


def _fill_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=what)


def _fill_bench(parser: CommandParser) -> None:
    _fill_server(parser)
    item = parser.add_mutually_exclusive_group()
    item.add_argument("--item", metavar="FILE", type=Path, help="what is asked, as for predict; else made of ones")
    item.add_argument("--text", help="what is asked is this text")
    item.add_argument("--data", metavar="JSON", help="what is asked is this JSON value")
    parser.add_argument("--rows", type=integer(1, 65536), default=1, help="items in each request (%(default)s)")
    parser.add_argument(
        "--seconds", type=number(0, 86400, " seconds"), default=30.0, help="for how long in all (%(default)s)"
    )
    parser.add_argument(
        "--objective-ms",
        type=number(0, 3_600_000, " milliseconds"),
        help="later answers do not count; else the server's, else 5 times one alone",
    )
    parser.add_argument("--admin", metavar="URL", help="the admin port, for what the server says itself; else :9090")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write a picture: .svg, or .png with matplotlib")
    parser.add_argument("--seed", type=integer(), default=0, help="of the random moments (%(default)s)")
    _fill_json(parser, "figures for programs")


def _fill_looks(parser: CommandParser) -> None:
    parser.add_argument("urls", metavar="URL", nargs="*", help="admin ports of proxies; else http://127.0.0.1:9090")
    parser.add_argument("--cluster", action="store_true", help="the cluster of kubectl's current context instead")
    parser.add_argument("--context", help="the cluster of this context of kubectl's")
    namespace = parser.add_argument("--namespace", "-n", help="of a cluster, one namespace's services; else all")
    parser.only(namespace, lambda given: given.cluster or given.context, "it needs --cluster or --context")
    parser.add_argument(
        "--interval", type=number(0, 3600, " seconds"), default=2.0, help="seconds between two looks (%(default)s)"
    )


def _fill_server(parser: CommandParser) -> None:
    parser.add_argument("url", metavar="URL", help="the server: http://127.0.0.1:8080")
    parser.add_argument("--model", help="the model's name, if the server does not list exactly one")
    parser.add_argument(
        "--api-key-file", metavar="FILE", type=Path, help="shows the server the key in FILE, alone or as NAME=KEY"
    )
    parser.add_argument("--timeout", type=number(0, 86400, " seconds"), default=30.0, help="seconds (%(default)s)")
    _fill_trust(parser)


def _fill_trust(parser: CommandParser) -> None:
    parser.add_argument("--ca-file", metavar="FILE", help="whom to trust, of a server that speaks TLS; else the web's")
    parser.add_argument("--cert", metavar="FILE", help="a certificate of your own, where the server asks for one")
    key = parser.add_argument("--key", metavar="FILE", help="its key, if that is in another file")
    parser.only(key, lambda given: given.cert, "it needs --cert")


def _host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise argparse.ArgumentTypeError(f"must be an address or a host name, not {text!r}")
    return text
