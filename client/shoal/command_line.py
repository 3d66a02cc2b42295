"""Command-line arguments of ``shoal``, and the dispatch to its commands.

The modules of a command are imported after its arguments are parsed, which keeps the start fast.
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
from shoal.serving.fields import FieldError, LocalError
from shoal_schema.process.arguments import CommandParser, integer, number
from shoal_schema.version import VERSION

WRONG_ARGUMENTS = 2
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
OTHER_PROGRAMS = {
    "local": ("shoal_local",),
    "simulate": ("shoal_proxy", "simulate"),
    "record": ("shoal_proxy", "record"),
}
"""Commands of other components: the module, and its arguments."""
DISTRIBUTIONS = {"shoal_local": "shoal-local"}
"""The distribution of a module that is not part of this one."""

TEMPLATES = ("torch", "sklearn", "transformers", "handler")

EXAMPLES = """\
examples:
  shoal init circle --from torch            write a small model directory to start from
  shoal serve examples/cat                  serve a model from a manifest or a model directory
  shoal inspect model.pt2                   load a model and report its signature and problems
  shoal batch --model ./cat --input 'pictures/*.jpg' --output answers
  shoal info http://127.0.0.1:8080          show a model's inputs and outputs
  shoal predict http://127.0.0.1:8080 examples/cat/picture.jpg
  shoal bench http://127.0.0.1:8080         measure the capacity, and what limits it
  shoal top                                 show the load of services, live
  shoal dashboard                           show it as a page in a browser
  shoal local up                            run a Kubernetes cluster on this machine, with the operator
  shoal record --from http://127.0.0.1:9090 > trace.csv
  shoal simulate trace.csv --from http://127.0.0.1:9090 --objective-ms 30
"""
SERVE_EXAMPLES = """\
examples:
  shoal serve ./cat                         a model directory, or a directory with one manifest
  shoal serve cat.yaml --port 9000          an InferenceService manifest
  shoal serve https://models.example.com/cat.zip
  shoal serve model.pt2 --set batching.maxBatchSize=64 --set runtime.device=cpu
  shoal serve ./adder --set model.parameters.baseMicroseconds=4000
  shoal serve cat=./cat words=words.mar     several models on one port
  shoal serve graph.yaml                    an InferenceGraph and the models of its steps: docs/how-to/graphs.md
  shoal serve --management                  POST /models?url=words.mar at port 8081, as with TorchServe

Fields are those of an InferenceService, listed in docs/reference/serve-fields.md. SHOAL_* environment variables that
no field sets are passed to the processes. Ctrl-C stops in order; a second Ctrl-C kills.
"""
INIT_EXAMPLES = """\
examples:
  shoal init circle --from torch            a network, trained and exported by a script of 40 lines
  shoal init irises --from sklearn          a scikit-learn pipeline
  shoal init mood --from transformers       a tiny text classifier
  shoal init words --from handler           a Python class, and a module that it imports
"""
INSPECT_EXAMPLES = """\
examples:
  shoal inspect ./cat                       signature, size, memory and a first request
  shoal inspect https://models.example.com/cat.zip --json
  shoal inspect graph.yaml                  draw an InferenceGraph and check its models against each other

The model is loaded and warmed up as by `shoal serve`, including its code, but no port is opened.
"""
BATCH_EXAMPLES = """\
examples:
  shoal batch --model ./cat --input 'pictures/**/*.jpg' --output answers
  shoal batch --model model.skops --input rows.parquet --output s3://bucket/answers --columns input-0=features
  shoal batch --model ./iris --input irises.csv --output out --columns x=length,width --keep id
  shoal batch --model ./embed --input 'texts/*.jsonl' --output out --where "lang == 'en'"

A repeated run resumes an interrupted job. See docs/how-to/batch.md.
"""
PREDICT_EXAMPLES = """\
examples:
  shoal predict http://127.0.0.1:8080 picture.jpg
  shoal predict http://127.0.0.1:8080 --text 'a small fish among many'
  shoal predict http://127.0.0.1:8080 --data '[1, 2, 3]'
  shoal predict http://127.0.0.1:8080 --data '{"a": [1, 2], "b": [3, 4]}' --json
  shoal predict http://127.0.0.1:8080 item.npy

FILE holds one item: .npy an array, .npz arrays for several inputs, .json a JSON value; any other file is
sent as bytes. - reads standard input.
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

Sends requests at random times and a rising rate until responses are late or missing. Other clients of the
server are affected meanwhile.
"""
TOP_EXAMPLES = """\
examples:
  shoal top                                 `shoal serve` on this machine, at http://127.0.0.1:9090
  shoal top 127.0.0.1:9090 127.0.0.1:9091   several proxies, by their admin ports
  shoal top --cluster                       every service of kubectl's current cluster
  shoal top --context prod -n shop --once   one table of one namespace in the cluster of a context

Rates and means cover the last interval; p95 is the expected latency of a request that arrives now. --cluster
needs kubectl and permission to list InferenceServices and to forward a port of the operator's pod.
"""
DASHBOARD_EXAMPLES = """\
examples:
  shoal dashboard                           `shoal serve` on this machine, as a page at http://127.0.0.1:8099
  shoal dashboard --cluster                 every service of kubectl's current cluster

The page is served to this machine only.
"""
COMPLETION_EXAMPLES = """\
examples:
  source <(shoal completion bash)           in ~/.bashrc
  source <(shoal completion zsh)            in ~/.zshrc, after compinit
  shoal completion fish | source            in ~/.config/fish/config.fish
"""


def run(given: list[str]) -> int:
    """Run the command in the arguments ``given``, and return its exit status."""
    if completion.is_requested():
        command = completion.command_to_complete(OTHER_PROGRAMS)
        if command and not _missing(command):
            completion.run_completer()
            _exec(command, ())
        completion.complete(make_parser())
    if given and given[0] in OTHER_PROGRAMS:
        if missing := _missing(given[0]):
            _print_error(f"`shoal {given[0]}` is not installed. Run pip install {missing}")
            return 1
        _exec(given[0], given[1:])
    options = make_parser().parse_args(given)
    # Imported late: numpy and httpx take a third of a second, which --help and Ctrl-C need not wait for.
    from shoal import commands  # noqa: PLC0415 (see above)

    try:
        status: int = getattr(commands, options.command)(options)
    except (ShoalError, FieldError, LocalError) as error:
        _print_error(error)
        # An error in the arguments themselves, rather than of the server or the machine.
        invalid = isinstance(error, InvalidInput) and error.status is None
        return WRONG_ARGUMENTS if invalid or isinstance(error, FieldError | WrongAddress) else 1
    return status


def _print_error(what: object) -> None:
    print(f"{styled('shoal:', Style.BOLD, Style.RED, stream=sys.stderr)} {what}", file=sys.stderr)


def _missing(command: str) -> str | None:
    """Return the distribution to install for a command of another component; None if it is installed."""
    module = OTHER_PROGRAMS[command][0]
    return DISTRIBUTIONS[module] if module in DISTRIBUTIONS and find_spec(module) is None else None


def _exec(command: str, arguments: Sequence[str]) -> None:
    """Replace this process with a command's program (exec), so that the program receives Ctrl-C directly."""
    os.execv(sys.executable, [sys.executable, "-m", *OTHER_PROGRAMS[command], *arguments])


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all arguments, except those of other components' commands."""
    parser = CommandParser(
        "shoal",
        description="Serve models, query servers, and inspect models.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"shoal {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    # The help text is also the description, as a sentence.
    def command(name: str, text: str, *, epilog: str) -> CommandParser:
        return commands.add_parser(
            name,
            help=text,
            description=f"{text.capitalize()}.",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    init = command("init", "write a small model directory that can be served", epilog=INIT_EXAMPLES)
    init.add_argument("directory", metavar="NAME", help="name of the new directory and of the model")
    init.add_argument("--from", dest="template", choices=TEMPLATES, required=True, help="library of the model")
    _fill_serve(command("serve", "serve models on this machine", epilog=SERVE_EXAMPLES))
    inspect = command("inspect", "load a model and report its signature and problems", epilog=INSPECT_EXAMPLES)
    inspect.add_argument("target", metavar="PATH", help="model or manifest, as for `shoal serve`")
    # A model is inspected with the fields with which it will be served.
    _fill_set(inspect)
    _fill_json(inspect, "print the report as JSON")
    _fill_batch(command("batch", "run a model on the rows of files and write the results", epilog=BATCH_EXAMPLES))
    predict = command("predict", "send one item to a server and print the result", epilog=PREDICT_EXAMPLES)
    _fill_server(predict)
    # Exactly one of the three.
    item = predict.add_mutually_exclusive_group(required=True)
    item.add_argument("file", metavar="FILE", nargs="?", help="file with the item; see below")
    item.add_argument("--text", help="text as the item")
    item.add_argument("--data", metavar="JSON", help="JSON value as the item")
    _fill_json(predict, "print the result as JSON")
    # Listed for the help only: `run` replaces this process before it parses their arguments.
    command("local", "run a Kubernetes cluster on this machine", epilog="")
    command("simulate", "simulate loads and objectives without a device", epilog="")
    command("record", "record the arrivals at a server", epilog="")
    _fill_bench(command("bench", "measure the capacity of a server and what limits it", epilog=BENCH_EXAMPLES))
    info = command("info", "show a model's inputs and outputs", epilog=INFO_EXAMPLES)
    _fill_server(info)
    _fill_json(info, "print the signature as JSON")
    top = command("top", "show the load of services", epilog=TOP_EXAMPLES)
    _fill_watching(top)
    top.add_argument("--once", action="store_true", help="print the table of one interval and exit")
    _fill_json(top, "print one JSON object per interval")
    page = command("dashboard", "show the load of services in a browser", epilog=DASHBOARD_EXAMPLES)
    _fill_watching(page)
    page.add_argument(
        "--port", type=integer(0, 65535), default=8099, help="port on 127.0.0.1 (%(default)s); 0 for any free port"
    )
    shell = command("completion", "print the completion script of a shell", epilog=COMPLETION_EXAMPLES)
    shell.add_argument("shell", choices=completion.SHELLS, help="the shell")
    return parser


def _fill_serve(parser: CommandParser) -> None:
    parser.add_argument(
        "targets",
        metavar="PATH",
        nargs="*",
        help="manifest, directory, model file, archive, or its URL; NAME=PATH names one of several models",
    )
    parser.add_argument("--host", type=_host, default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument(
        "--port", type=integer(0, 65535), default=8080, help="port to listen on (%(default)s); 0 for any free port"
    )
    parser.add_argument(
        "--admin-port",
        type=integer(0, 65535),
        help="port of /readyz and /metrics (9090 if free, otherwise any free port); further models use the next ports",
    )
    parser.add_argument(
        "--grpc-port",
        type=integer(0, 65535),
        help="port of the Open Inference Protocol over gRPC (none); further models use the next ports",
    )
    # TLS, for one model on a port.
    certificate = parser.add_argument(
        "--tls-certificate",
        metavar="FILE",
        type=Path,
        help="serve TLS with this certificate (PEM); the file is reloaded when it changes",
    )
    key = parser.add_argument("--tls-key", metavar="FILE", type=Path, help="key of the certificate")
    client_ca = parser.add_argument(
        "--tls-client-ca", metavar="FILE", type=Path, help="require client certificates issued by these authorities"
    )
    parser.only(certificate, lambda given: given.tls_key, "it needs --tls-key")
    # --tls-certificate and --tls-key need each other; --tls-client-ca needs both.
    for each in (key, client_ca):
        parser.only(each, lambda given: given.tls_certificate, "it needs --tls-certificate")
    # TorchServe's management API.
    parser.add_argument("--management", action="store_true", help="serve TorchServe's management API to this machine")
    management_port = parser.add_argument(
        "--management-port", type=integer(0, 65535), default=8081, help="port of that API on 127.0.0.1 (%(default)s)"
    )
    parser.only(management_port, lambda given: given.management, "it needs --management")
    parser.add_argument(
        "--api-key-file",
        metavar="FILE",
        type=Path,
        help="require an API key of this file, with one NAME=KEY per line; reloaded when it changes"
        " (docs/how-to/access.md)",
    )
    _fill_set(parser)
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        type=str.lower,
        help="log level of runtime and proxy (info; with --quiet: error)",
    )
    parser.add_argument(
        "--log-format",
        choices=("text", "json"),
        type=str.lower,
        help="log format of runtime and proxy: text, or one JSON object per line (text)",
    )
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    _fill_json(parser, "print events as JSON, one object per line")


def _fill_batch(parser: CommandParser) -> None:
    parser.add_argument(
        "--model", metavar="PATH", help="model, as for `shoal serve`; with --to, the model's name in that service"
    )
    parser.add_argument("--to", metavar="URL", help="send the rows to this service, at the lowest priority")
    key = parser.add_argument(
        "--api-key-file", metavar="FILE", type=Path, help="file with the API key, alone or as NAME=KEY"
    )
    parser.only(key, lambda given: given.to, "it needs --to")
    _fill_trust(parser)
    parser.add_argument("--input", metavar="URL", required=True, help="file, directory or name pattern")
    parser.add_argument("--output", metavar="URL", required=True, help="directory for the results of this job only")
    parser.add_argument(
        "--columns",
        metavar="INPUT=COLUMN[,COLUMN]",
        nargs="+",
        action="extend",
        default=[],
        help="input columns of the model's inputs (by default, the columns with the same names)",
    )
    parser.add_argument(
        "--format", choices=("auto", "parquet", "csv", "jsonlines", "files"), help="format of the input (auto)"
    )
    parser.add_argument(
        "--where", metavar="EXPRESSION", help="select rows: \"label == 'cat' and size >= 10\" (all rows)"
    )
    parser.add_argument(
        "--keep", metavar="[NEW=]COLUMN,...", help="input columns to copy to the output; - for none (nearly all)"
    )
    parser.add_argument(
        "--errors",
        metavar="Column|URL",
        help="failed rows: the reason in column shoal_error (Column), or a directory for them",
    )
    parser.add_argument("--max-error-share", metavar="SHARE", help="stop if more than this share of rows fails (0.01)")
    parser.add_argument("--output-format", choices=("parquet", "jsonlines"), help="format of the results (parquet)")
    parser.add_argument(
        "--batch-size", type=integer(1, 65_536), help="rows per batch (by default, the fastest size is measured)"
    )
    parser.add_argument(
        "--shard-bytes", type=integer(1024, 2**36), help="input bytes per shard, the unit of resumption (64 MiB)"
    )
    parser.add_argument(
        "--workers", type=integer(1, 1024), default=1, help="processes, each with the model (%(default)s)"
    )
    _fill_set(parser)
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        type=str.lower,
        default="warning",
        help="log level (%(default)s)",
    )


def _fill_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="set a field; repeatable")


def _fill_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=what)


def _fill_bench(parser: CommandParser) -> None:
    _fill_server(parser)
    item = parser.add_mutually_exclusive_group()
    item.add_argument("--item", metavar="FILE", type=Path, help="file with the item, as for predict (ones)")
    item.add_argument("--text", help="text as the item")
    item.add_argument("--data", metavar="JSON", help="JSON value as the item")
    parser.add_argument("--rows", type=integer(1, 65536), default=1, help="items per request (%(default)s)")
    parser.add_argument(
        "--seconds", type=number(0, 86400, " seconds"), default=30.0, help="total duration in seconds (%(default)s)"
    )
    parser.add_argument(
        "--objective-ms",
        type=number(0, 3_600_000, " milliseconds"),
        help="latency up to which a response is in time (the server's objective, or 5 times the idle latency)",
    )
    parser.add_argument("--admin", metavar="URL", help="admin port, for the server's own report (:9090)")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write a plot: .svg, or .png with matplotlib")
    parser.add_argument("--seed", type=integer(), default=0, help="seed of the random times (%(default)s)")
    _fill_json(parser, "print the report as JSON")


def _fill_watching(parser: CommandParser) -> None:
    parser.add_argument("urls", metavar="URL", nargs="*", help="admin ports of proxies (http://127.0.0.1:9090)")
    parser.add_argument("--cluster", action="store_true", help="show the cluster of kubectl's current context")
    parser.add_argument("--context", help="show the cluster of this kubectl context")
    namespace = parser.add_argument("--namespace", "-n", help="services of this namespace only")
    parser.only(namespace, lambda given: given.cluster or given.context, "it needs --cluster or --context")
    parser.add_argument(
        "--interval", type=number(0, 3600, " seconds"), default=2.0, help="seconds between two samples (%(default)s)"
    )


def _fill_server(parser: CommandParser) -> None:
    parser.add_argument("url", metavar="URL", help="the server, such as http://127.0.0.1:8080")
    parser.add_argument("--model", help="name of the model; required unless the server has exactly one")
    parser.add_argument("--api-key-file", metavar="FILE", type=Path, help="file with the API key, alone or as NAME=KEY")
    parser.add_argument(
        "--timeout", type=number(0, 86400, " seconds"), default=30.0, help="timeout in seconds (%(default)s)"
    )
    _fill_trust(parser)


def _fill_trust(parser: CommandParser) -> None:
    parser.add_argument("--ca-file", metavar="FILE", help="trusted certificate authorities (the public ones)")
    parser.add_argument("--cert", metavar="FILE", help="client certificate")
    key = parser.add_argument("--key", metavar="FILE", help="key of the client certificate, if in another file")
    parser.only(key, lambda given: given.cert, "it needs --cert")


def _host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise argparse.ArgumentTypeError(f"must be an address or a host name, not {text!r}")
    return text
