"""The commands of ``shoal``: their arguments, options and help.

Running a command imports its code: numpy and httpx take a third of a second, which ``--help`` need not wait for.
"""

import re
from types import SimpleNamespace
from typing import Any

from click import BadParameter, Choice, Context, IntRange, argument, command, option
from click.core import ParameterSource

from shoal_schema.guides import guide
from shoal_schema.process.arguments import (
    FILE,
    LOG_LEVEL,
    PATH,
    PORT,
    Command,
    Number,
    at_most_one,
    exactly_one,
    only,
    together,
)

TEMPLATES = ("torch", "sklearn", "transformers", "handler")
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
DAY_S = Number(0, 86_400, min_open=True)
HOUR_MS = Number(0, 3_600_000, min_open=True)

# click leaves the lines after \b as they are.
SERVE_EXAMPLES = f"""\
\b
examples:
  shoal serve ./cat                         a model directory, or a directory with one manifest
  shoal serve cat.yaml --port 9000          an InferenceService manifest
  shoal serve https://models.example.com/cat.zip
  shoal serve model.pt2 --set batching.maxBatchSize=64 --set runtime.device=cpu
  shoal serve ./adder --set model.parameters.baseMicroseconds=4000
  shoal serve cat=./cat words=words.mar     several models on one port
  shoal serve graph.yaml                    an InferenceGraph and the models of its steps{guide("how-to/graphs", ": ")}
  shoal serve --management                  POST /models?url=words.mar at port 8081, as with TorchServe

\b
Fields are those of an InferenceService{guide("reference/serve-fields", ", listed in ")}.
SHOAL_* environment variables that no field sets are passed to the processes. Ctrl-C stops in order; a second one kills.

PATH is a manifest, a directory, a model file, an archive, or its URL. Further models use the next ports after those of
--admin-port and --grpc-port.
"""
INIT_EXAMPLES = """\
\b
examples:
  shoal init circle --from torch            a network, trained and exported by a script of 40 lines
  shoal init irises --from sklearn          a scikit-learn pipeline
  shoal init mood --from transformers       a tiny text classifier
  shoal init words --from handler           a Python class, and a module that it imports
"""
INSPECT_EXAMPLES = """\
\b
examples:
  shoal inspect ./cat                       signature, size, memory and a first request
  shoal inspect https://models.example.com/cat.zip --json
  shoal inspect ./cat --precision           speed and error in Float32, BFloat16, Float16 ...
  shoal inspect graph.yaml                  draw an InferenceGraph and check its models against each other

The model is loaded and warmed up as by `shoal serve`, including its code, but no port is opened.
"""
BATCH_EXAMPLES = f"""\
\b
examples:
  shoal batch --model ./cat --input 'pictures/**/*.jpg' --output answers
  shoal batch --model model.skops --input rows.parquet --output s3://bucket/answers --columns input-0=features
  shoal batch --model ./iris --input irises.csv --output out --columns x=length,width --keep id
  shoal batch --model ./embed --input 'texts/*.jsonl' --output out --where "lang == 'en'"

A repeated run resumes an interrupted job.{guide("how-to/batch", " See ", ".")}
"""
PREDICT_EXAMPLES = """\
\b
examples:
  shoal predict picture.jpg                 shoal serve on this machine
  shoal predict http://127.0.0.1:8080 picture.jpg
  shoal predict --text 'a small fish among many'
  shoal predict --data '{"a": [1, 2], "b": [3, 4]}' --json
  shoal predict picture.jpg --async --wait 600

FILE holds one item: .npy an array, .npz arrays for several inputs, .json a JSON value; any other file is
sent as bytes. - reads standard input. A single argument is FILE, unless --text or --data has the item.
"""
INFO_EXAMPLES = """\
\b
examples:
  shoal info                                shoal serve on this machine
  shoal info http://127.0.0.1:8080
  shoal info http://triton:8000 --model resnet   a server that does not list its models
"""
BENCH_EXAMPLES = """\
\b
examples:
  shoal bench                               shoal serve on this machine
  shoal bench http://127.0.0.1:8080 --item picture.jpg --plot bench.svg
  shoal bench http://127.0.0.1:8080 --data '{"a": [1, 2], "b": [3, 4]}' --objective-ms 50 --json

Sends requests at random times and a rising rate until responses are late or missing. Other clients of the
server are affected meanwhile.
"""
TOP_EXAMPLES = """\
\b
examples:
  shoal top                                 every shoal serve of this user on this machine
  shoal top 127.0.0.1:8079 10.0.0.5:9090    several proxies, by their admin ports
  shoal top --cluster                       every service of kubectl's current cluster
  shoal top --context prod -n shop --once   one table of one namespace in the cluster of a context

Rates and means cover the last interval; p95 is the expected latency of a request that arrives now. --cluster
needs kubectl and permission to list InferenceServices and to forward a port of the operator's pod.
"""
DASHBOARD_EXAMPLES = """\
\b
examples:
  shoal dashboard                           every shoal serve of this user, as a page at http://127.0.0.1:8099
  shoal dashboard --cluster                 every service of kubectl's current cluster

The page is served to this machine only.
"""
ROLLOUT_EXAMPLES = """\
\b
examples:
  shoal rollout status cat                  step, figures and verdict of the candidate
  shoal rollout promote cat -n shop         make the candidate stable without further comparison
  shoal rollout abort cat                   remove the candidate

For services with rollout.strategy Shadow or Canary. Needs kubectl, and permission to get and patch
InferenceServices.
"""


def _run(name: str, options: dict[str, Any]) -> int:
    from shoal import commands  # noqa: PLC0415 (see above)

    status: int = getattr(commands, name)(SimpleNamespace(**options))
    return status


def _host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise BadParameter(f"must be an address or a host name, not {text!r}")
    return text


SET = option("--set", multiple=True, metavar="FIELD=VALUE", help="set a field; repeatable")
CREDENTIALS = together(
    option("--api-key-file", type=FILE, help="file with the API key, alone or as NAME=KEY"),
    option("--ca-file", type=FILE, help="trusted certificate authorities (the public ones)"),
    option("--cert", type=FILE, help="client certificate"),
    option("--key", type=FILE, help="key of the client certificate, if in another file"),
)
KEY_NEEDS_CERTIFICATE = only("key", lambda given: given.cert, "it needs --cert")
SERVER = together(
    argument("url", metavar="[URL]", required=False, help="the server (shoal serve on this machine)"),
    option("--model", metavar="NAME", help="name of the model; required if there are several"),
    option("--timeout", type=DAY_S, default=30.0, help="timeout in seconds"),
    CREDENTIALS,
)
ITEM = together(
    option("--text", help="text as the item"),
    option("--data", metavar="JSON", help="JSON value as the item"),
)
WATCHING = together(
    argument(
        "urls", metavar="[URL]...", nargs=-1, help="admin ports of proxies (those of shoal serve on this machine)"
    ),
    option("--cluster", is_flag=True, help="show the cluster of kubectl's current context"),
    option("--context", metavar="NAME", help="show the cluster of this kubectl context"),
    option("--namespace", "-n", metavar="NAME", help="services of this namespace only"),
    option("--interval", type=Number(0, 3600, min_open=True), default=2.0, help="seconds between two samples"),
)
NAMESPACE_NEEDS_CLUSTER = only(
    "namespace", lambda given: given.cluster or given.context, "it needs --cluster or --context"
)


@command(epilog=INIT_EXAMPLES)
@argument("directory", metavar="NAME", help="name of the new directory and of the model")
@option("--from", "template", type=Choice(TEMPLATES), required=True, help="library of the model")
def init(**options: Any) -> int:
    """Write a small model directory that can be served."""
    return _run("init", options)


SERVE_RULES = [
    only("tls_certificate", lambda given: given.tls_key, "it needs --tls-key"),
    # --tls-certificate and --tls-key need each other; --tls-client-ca needs both.
    only("tls_key", lambda given: given.tls_certificate, "it needs --tls-certificate"),
    only("tls_client_ca", lambda given: given.tls_certificate, "it needs --tls-certificate"),
    only("management_port", lambda given: given.management, "it needs --management"),
]


@command(cls=Command, rules=SERVE_RULES, epilog=SERVE_EXAMPLES)
@argument("targets", type=PATH, metavar="[PATH]...", nargs=-1, help="models, each as PATH or NAME=PATH")
@option("--host", type=_host, metavar="ADDRESS", default="127.0.0.1", help="address to listen on")
@option("--port", type=PORT, default=8080, help="port to listen on; 0 for any free port")
@option("--admin-port", type=PORT, help="port of /readyz and /metrics (8079 if free, otherwise any)")
@option("--grpc-port", type=PORT, help="port of the Open Inference Protocol over gRPC (none)")
@option("--tls-certificate", type=FILE, help="serve one model over TLS with this certificate (PEM), reloaded on change")
@option("--tls-key", type=FILE, help="key of the certificate")
@option("--tls-client-ca", type=FILE, help="require client certificates issued by these authorities")
@option("--management", is_flag=True, help="serve TorchServe's management API to this machine")
@option("--management-port", type=PORT, default=8081, help="port of that API on 127.0.0.1")
@option("--api-key-file", type=FILE, help="require an API key of this file, with one NAME=KEY per line")
@SET
@option("--log-level", type=LOG_LEVEL, help="log level of runtime and proxy (info; with --quiet: error)")
@option(
    "--log-format", type=Choice(("text", "json"), case_sensitive=False), help="log format of runtime and proxy (text)"
)
@option("--quiet", is_flag=True, help="print errors only")
@option("--json", is_flag=True, help="print events as JSON, one object per line")
def serve(**options: Any) -> int:
    """Serve models on this machine."""
    return _run("serve", options)


ROWS_NEED_PRECISION = only("rows", lambda given: given.precision, "it needs --precision")


@command(cls=Command, rules=[ROWS_NEED_PRECISION], epilog=INSPECT_EXAMPLES)
@argument("target", type=PATH, metavar="PATH", help="model or manifest, as for shoal serve")
@option("--precision", is_flag=True, help="measure speed and error of the model in each precision instead")
@option("--rows", type=PATH, metavar="URL", help="rows to measure with, as the --input of shoal batch (generated)")
@SET  # a model is inspected with the fields with which it will be served
@option("--json", is_flag=True, help="print the report as JSON")
def inspect(**options: Any) -> int:
    """Load a model and report its signature and problems."""
    return _run("inspect", options)


KEY_NEEDS_SERVICE = only("api_key_file", lambda given: given.to, "it needs --to")


@command(cls=Command, rules=[KEY_NEEDS_SERVICE, KEY_NEEDS_CERTIFICATE], epilog=BATCH_EXAMPLES)
@option("--model", type=PATH, help="model, as for shoal serve; with --to, the model's name in that service")
@option("--to", metavar="URL", help="send the rows to this service, at the lowest priority")
@CREDENTIALS
@option("--input", type=PATH, metavar="URL", required=True, help="file, directory or name pattern")
@option("--output", type=PATH, metavar="URL", required=True, help="directory for the results of this job only")
@option(
    "--columns", multiple=True, metavar="INPUT=COLUMN[,COLUMN]", help="columns of an input (those of the same names)"
)
@option("--format", type=Choice(("auto", "parquet", "csv", "jsonlines", "files")), help="format of the input (auto)")
@option("--where", metavar="EXPRESSION", help="select rows: \"label == 'cat' and size >= 10\" (all rows)")
@option("--keep", metavar="[NEW=]COLUMN,...", help="input columns to copy to the output; - for none (nearly all)")
@option(
    "--errors", metavar="Column|URL", help="failed rows: their errors in column shoal_error, or a directory for them"
)
@option("--max-error-share", metavar="SHARE", help="stop if more than this share of rows fails (0.01)")
@option("--output-format", type=Choice(("parquet", "jsonlines")), help="format of the results (parquet)")
@option("--batch-size", type=IntRange(1, 65_536), help="rows per batch (by default, the fastest size is measured)")
@option("--shard-bytes", type=IntRange(1024, 2**36), help="input bytes per shard, the unit of resumption (64 MiB)")
@option("--workers", type=IntRange(1, 1024), default=1, help="processes, each with the model")
@SET
@option("--log-level", type=LOG_LEVEL, default="warning", help="log level")
def batch(**options: Any) -> int:
    """Run a model on the rows of files and write the results."""
    return _run("batch", options)


def _single_argument_is_item(context: Context) -> None:
    """Use a single argument as FILE instead of URL, unless the item is given otherwise."""
    given = context.params
    if given["url"] and "://" not in given["url"] and not any(given[name] for name in ("file", "text", "data")):
        given["url"], given["file"] = None, given["url"]
        context.set_parameter_source("file", ParameterSource.COMMANDLINE)


NEEDS_ASYNC = [only(name, lambda given: given.later, "it needs --async") for name in ("callback", "wait")]
PREDICT_RULES = [_single_argument_is_item, exactly_one("file", "text", "data"), *NEEDS_ASYNC, KEY_NEEDS_CERTIFICATE]


@command(cls=Command, rules=PREDICT_RULES, epilog=PREDICT_EXAMPLES)
@SERVER
@argument("file", type=PATH, required=False, help="file with the item; see below")
@ITEM
@option("--async", "later", is_flag=True, help="send an asynchronous request, and print the path of its result")
@option("--callback", metavar="URL", help="with --async: URL to which the server sends the result")
@option("--wait", type=DAY_S, help="with --async: wait for the result, at most this time in seconds")
@option("--json", is_flag=True, help="print the result as JSON")
def predict(**options: Any) -> int:
    """Send one item to a server and print the result."""
    return _run("predict", options)


@command(cls=Command, rules=[at_most_one("item", "text", "data"), KEY_NEEDS_CERTIFICATE], epilog=BENCH_EXAMPLES)
@SERVER
@option("--item", type=FILE, help="file with the item, as for predict (ones)")
@ITEM
@option("--rows", type=IntRange(1, 65_536), default=1, help="items per request")
@option("--seconds", type=DAY_S, default=30.0, help="total duration in seconds")
@option("--objective-ms", type=HOUR_MS, help="latency objective (the server's, or 5 times the idle latency)")
@option("--admin", metavar="URL", help="admin port, for the server's own report (that of the URL's server)")
@option("--plot", type=FILE, help="write a plot: .svg, or .png with matplotlib")
@option("--seed", type=int, default=0, help="seed of the random times")
@option("--json", is_flag=True, help="print the report as JSON")
def bench(**options: Any) -> int:
    """Measure the capacity of a server and what limits it."""
    return _run("bench", options)


@command(cls=Command, rules=[KEY_NEEDS_CERTIFICATE], epilog=INFO_EXAMPLES)
@SERVER
@option("--json", is_flag=True, help="print the signature as JSON")
def info(**options: Any) -> int:
    """Show a model's inputs and outputs."""
    return _run("info", options)


@command(cls=Command, rules=[NAMESPACE_NEEDS_CLUSTER], epilog=TOP_EXAMPLES)
@WATCHING
@option("--once", is_flag=True, help="print the table of one interval and exit")
@option("--json", is_flag=True, help="print one JSON object per interval")
def top(**options: Any) -> int:
    """Show the load of services."""
    return _run("top", options)


@command(cls=Command, rules=[NAMESPACE_NEEDS_CLUSTER], epilog=DASHBOARD_EXAMPLES)
@WATCHING
@option("--port", type=PORT, default=8099, help="port on 127.0.0.1; 0 for any free port")
def dashboard(**options: Any) -> int:
    """Show the load of services in a browser."""
    return _run("dashboard", options)


JSON_NEEDS_STATUS = only("json", lambda given: given.action == "status", "it needs the action status")


@command(cls=Command, rules=[JSON_NEEDS_STATUS], epilog=ROLLOUT_EXAMPLES)
@argument("action", type=Choice(("status", "pause", "resume", "promote", "abort")), help="what to do")
@argument("name", metavar="NAME", help="the InferenceService")
@option("--namespace", "-n", metavar="NAME", help="its namespace (kubectl's)")
@option("--context", metavar="NAME", help="kubectl context of the cluster (kubectl's)")
@option("--json", is_flag=True, help="print the status as JSON")
def rollout(**options: Any) -> int:
    """Show or change the rollout of a new model."""
    return _run("rollout", options)
