"""What each command does, from parsed options to an exit status."""

import argparse
import asyncio
import os
import shlex
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shoal import completion as completing
from shoal import inspecting, ports, starter
from shoal import serve as serving
from shoal.batch import batch_environment
from shoal.bench import bench as load_until_it_bends
from shoal.client import Client
from shoal.colours import Style, styled
from shoal.exchange import trusted
from shoal.files import given_item
from shoal.graph_file import Graph, graphs_in, main_graph
from shoal.keys import key_in
from shoal.pair import CERTIFICATE, CLIENT_CA, DOCS, KEY, KEYS, Launch, Teller, outlets
from shoal.printing import answer_text, json_text, signature_json, signature_text
from shoal.serving.fields import FieldError, MachineError, Values, merge, to_environment
from shoal.serving.graph_drawing import drawn
from shoal.serving.inspection import report_text, with_requests
from shoal.targets import Plan, files_beside, named_target, planned, planned_services
from shoal_schema.resource.locations import shown

ADMIN_PORT = 9090
ASKS_FOR_KEYS = "access.apiKeys"


def predict(options: argparse.Namespace) -> int:
    """Ask about one item and print the answer."""
    item = given_item(options, options.file)
    with _client(options) as client:
        outputs = [output.name for output in client.signature().outputs]
        answer = client.predict(item)
    print(json_text(answer) if options.json else _with_headline(answer_text(answer, outputs)))
    return 0


def _client(options: argparse.Namespace) -> Client:
    key = key_in(options.api_key_file)
    return Client(options.url, options.model, timeout_s=options.timeout, api_key=key, verify=trusted(options))


def info(options: argparse.Namespace) -> int:
    """Print the model's signature."""
    with _client(options) as client:
        signature = client.signature()
    print(signature_json(signature) if options.json else _with_headline(signature_text(signature)))
    return 0


def bench(options: argparse.Namespace) -> int:
    """Load a server until it bends, and say what to change."""
    return load_until_it_bends(options)


def top(options: argparse.Namespace) -> int:
    """Show what services do now."""
    with _needs("watch"):
        from shoal.top import top as show  # noqa: PLC0415 (only these two commands need what it shows with)
    return show(options)


def dashboard(options: argparse.Namespace) -> int:
    """Show what services do now in a browser."""
    with _needs("watch"):
        from shoal.dashboard import dashboard as show  # noqa: PLC0415 (likewise)
    return show(options)


@contextmanager
def _needs(extra: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise MachineError(f"{error.name} is not installed: pip install 'shoal[{extra}]'") from None


def completion(options: argparse.Namespace) -> int:
    """Print the script with which a shell completes the command."""
    print(completing.script(options.shell))
    return 0


def _with_headline(text: str) -> str:
    """Return a table or a summary with its first line in bold; a lone line needs none."""
    first, newline, rest = text.partition("\n")
    return f"{styled(first, Style.BOLD, stream=sys.stdout)}{newline}{rest}" if rest else text


def init(options: argparse.Namespace) -> int:
    """Write a small model folder that serves at once."""
    for file in starter.make(Path(options.folder), options.template):
        print(f"wrote {file}")
    print(f"serve it:\n  shoal serve {shlex.quote(options.folder)}")
    return 0


def inspect(options: argparse.Namespace) -> int:
    """Load a model as if to serve it, and say what it is, or what is wrong with it."""
    if graphs := graphs_in(options.target):
        return _inspect_graphs(options, graphs)
    plan = planned(None, options.target, options.set)
    if not options.json:
        print(f"inspecting {shown(plan.fields['model.uri'])}", file=sys.stderr)
    told = with_requests(inspecting.inspect(plan.environment()), files_beside(options.target))
    text = json_text(told) if options.json else _with_headline(report_text(told, options.target))
    if text:
        print(text)
    if told["refused"] is not None:
        raise MachineError(f"the model cannot be loaded: {told['refused']}")
    return 0


def _inspect_graphs(options: argparse.Namespace, graphs: Sequence[Graph]) -> int:
    """Draw the graphs of a file, and say what of them does not fit."""
    known: dict[str, Any] = {}
    for plan in planned_services(options.target, options.set):
        if not options.json:
            print(f"inspecting {shown(plan.fields['model.uri'])}", file=sys.stderr)
        report = inspecting.inspect(plan.environment())
        if report["refused"] is not None:
            raise MachineError(f"the model {plan.name} cannot be loaded: {report['refused']}")
        known[plan.name] = report["metadata"]
    for graph in graphs:
        told = inspecting.look_at_graph(graph, known)
        print(json_text(told) if options.json else drawn(told))
        if told["unknown"]:
            names = ", ".join(told["unknown"])
            print(f"not served here, so neither asked nor checked: {names}", file=sys.stderr)
        if told["refused"] is not None:
            raise MachineError(f"the graph {graph.name} cannot work: {told['refused']}")
    return 0


def batch(options: argparse.Namespace) -> int:
    """Score the rows of files: become the runtime's batch program."""
    if not (options.model or options.to):
        raise FieldError("say which model is to compute: --model PATH, or --to URL of a service")
    if options.to and options.set:
        raise FieldError("--set is of a model that is started here: leave it out with --to")
    if find_spec("pyarrow") is None:
        raise MachineError('rows of files are read with pyarrow: pip install "shoal[batch]"')
    model = dict(os.environ) if options.to else planned(None, options.model, options.set).environment()
    settings = {**model, **batch_environment(options)}
    # Nothing stands between it and Ctrl-C, or the terminal that it draws on.
    os.execve(sys.executable, [sys.executable, "-P", "-m", "shoal_runtime", "batch", "shoal"], settings)


def serve(options: argparse.Namespace) -> int:
    """Serve models until told to stop."""
    if options.port and options.port == options.admin_port:
        raise FieldError(f"--port and --admin-port must differ, not both be {options.port}")
    if not (options.targets or options.management):
        raise FieldError("name what is to be served: a manifest, a folder, a file or a URL (shoal serve --help)")
    graphs = [graph for each in options.targets for graph in graphs_in(each)]
    plans = [plan for each in options.targets for plan in _plans(each, options)]
    _check_keys(options, [*plans, *graphs], alone=not graphs)
    names = [*(plan.name for plan in plans), *(graph.name for graph in graphs)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise FieldError(f"two models are called {', '.join(twice)}: name them as in `shoal serve one=PATH two=PATH`")
    # A graph is served behind the front that its models are.
    shared = options.management or len(names) > 1 or bool(graphs)
    if shared and (options.tls_certificate or os.environ.get(CERTIFICATE)):
        raise FieldError(
            "one model alone on a port can speak TLS: leave --tls-certificate out, or serve the others apart"
        )
    with ports.claimed(ADMIN_PORT) as ours:
        port = ports.find_port(options.host, options.port, option="--port")
        output, log = outlets(json=options.json)
        teller = Teller(output, log, quiet=options.quiet, json=options.json)
        with closing(teller):
            usual = names.index(main) if (main := main_graph(graphs)) else 0
            several = _Several(options, teller, port, shared=shared, usual=usual if ours else None, main=main)
            launches = [*map(several.launch, plans), *map(several.launch_graph, graphs)]
            return asyncio.run(serving.serve(launches, teller, several.port_of_all()))


def _plans(target: str, options: argparse.Namespace) -> list[Plan]:
    """Return how to serve what one target names: of a graph's file, each of its services."""
    return planned_services(target, options.set) if graphs_in(target) else [planned(*named_target(target), options.set)]


def _check_keys(options: argparse.Namespace, plans: Sequence["Plan | Graph"], *, alone: bool) -> None:
    """Refuse to serve anybody what asks for keys, and to seem to ask for them.

    Raises:
        FieldError: keys are asked for, and none are given; or they would guard only a part of what is served.
    """
    if options.api_key_file is None:
        if KEYS not in os.environ and any(name.startswith(ASKS_FOR_KEYS) for plan in plans for name in plan.ignored):
            if not alone:
                raise FieldError(
                    "access.apiKeys asks callers for a key, and only a model alone on its port can: leave it out"
                )
            raise FieldError("access.apiKeys asks callers for a key: name the file of the keys, --api-key-file FILE")
    elif options.management or len(plans) > 1 or not alone:
        raise FieldError("--api-key-file guards one model: serve each by a command, and a port, of its own")
    elif not os.access(options.api_key_file, os.R_OK):
        raise MachineError(f"cannot read {options.api_key_file}: it must hold a NAME=KEY in each line")


class _Several:
    """Launches, one after another, each with an admin port of its own."""

    def __init__(
        self, options: argparse.Namespace, teller: Teller, port: int, *, shared: bool, usual: int | None, main: str
    ) -> None:
        self._options = options
        self._teller = teller
        self._port = port
        self._shared = shared
        self._usual = usual
        self._main = main
        self._count = 0

    def launch(self, plan: Plan) -> Launch:
        """Return how to serve one model, and tell of it."""
        options, index = self._options, self._count
        self._count += 1
        keys = options.api_key_file
        guard = {} if keys is None else {KEYS: str(keys.absolute())}
        launch = Launch(
            name=plan.name,
            settings={**self._settings(index, plan.fields), **guard, **_tls(options)},
            host=options.host,
            port=self._port,
            admin_port=self._admin_port(index),
            teller=self._teller,
            files=files_beside(plan.target),
            shared=self._shared,
            key_file=keys,
        )
        uri = shown(plan.fields["model.uri"])
        launch.say(f"serving {launch.name} from {uri}", name=launch.name, uri=uri)
        self._tell_ignored(launch, plan.ignored)
        if not self._shared and options.admin_port is None and launch.admin_port != ADMIN_PORT:
            launch.say(
                f"{ADMIN_PORT} is in use, so metrics are on {launch.admin_url}/metrics", admin_url=launch.admin_url
            )
        return launch

    def _settings(self, index: int, fields: Values) -> dict[str, str]:
        """Return what the processes of a model or a graph are told by its fields and the command's options."""
        options = self._options
        grpc = {} if options.grpc_port is None else {"proxy.grpcPort": self._grpc_port(index)}
        log_level = options.log_level or ("error" if options.quiet else None)
        level = {"SHOAL_LOG_LEVEL": log_level.upper()} if log_level else {}
        form = {"SHOAL_LOG_FORMAT": options.log_format} if options.log_format else {}
        return {DOCS: "true", **os.environ, **to_environment(merge(fields, grpc)), **level, **form}

    def _tell_ignored(self, launch: Launch, names: Sequence[str]) -> None:
        if ignored := [name for name in names if not name.startswith(ASKS_FOR_KEYS)]:
            launch.say(f"without effect on one machine: {', '.join(ignored)}", ignored=ignored)

    def launch_graph(self, graph: Graph) -> Launch:
        """Return how to run a graph of models that are served beside it, and tell of it."""
        index = self._count
        self._count += 1
        launch = Launch(
            name=graph.name,
            settings=self._settings(index, graph.fields),
            host=self._options.host,
            port=self._port,
            admin_port=self._admin_port(index),
            teller=self._teller,
            shared=True,
            graph=graph,
        )
        steps = ", ".join(step.name for step in graph.spec.steps)
        launch.say(f"a graph of {steps}", name=graph.name, steps=steps)
        self._tell_ignored(launch, graph.ignored)
        return launch

    def port_of_all(self) -> serving.Shared | None:
        """Return what the models share, if they do."""
        if not self._shared:
            return None
        management = None
        if self._options.management:
            asked = self._options.management_port
            management = ports.find_port(serving.LOOPBACK, asked, option="--management-port")
        return serving.Shared(self._options.host, self._port, management, self._register, self._main)

    def _register(self, asked: Mapping[str, str], taken: Container[str]) -> Launch:
        """Return how to serve what TorchServe's ``POST /models`` asks for, under a name that is not taken."""
        if not asked.get("url"):
            raise FieldError("say what to register: POST /models?url=MODEL.mar")
        named = {"batch_size": "batching.maxBatchSize", "response_timeout": "runtime.forwardTimeoutSeconds"}
        given = [f"{field}={asked[key]}" for key, field in named.items() if asked.get(key)]
        if asked.get("batch_size") and asked["url"].partition("?")[0].endswith(".mar"):
            # Over what the archive says, whatever the number is.
            given.append(f"model.parameters.batchSize={asked['batch_size']}")
        plan = planned(asked.get("model_name"), asked["url"], [*self._options.set, *given])
        if plan.name in taken:
            raise FieldError(f"a model {plan.name} is registered already")
        return self.launch(plan)

    def _grpc_port(self, index: int) -> int:
        """Return the port of gRPC that was asked for, or one of those after it."""
        return ports.find_port(self._options.host, _following(self._options.grpc_port, index), option="--grpc-port")

    def _admin_port(self, index: int) -> int:
        """Return an admin port: the one asked for and those after it, else 9090 if it is free, else any that is."""
        options = self._options
        if options.admin_port is not None:
            return ports.find_port(options.host, _following(options.admin_port, index), option="--admin-port")
        usual = index == self._usual and options.port != ADMIN_PORT
        if usual and ports.is_free(options.host, ADMIN_PORT):
            return ADMIN_PORT
        return ports.find_port(options.host, 0, option="--admin-port")


def _tls(options: argparse.Namespace) -> dict[str, str]:
    """Return the settings of files that may be given relative to here."""
    given = {CERTIFICATE: options.tls_certificate, KEY: options.tls_key, CLIENT_CA: options.tls_client_ca}
    return {name: str(file.absolute()) for name, file in given.items() if file}


def _following(port: int, index: int) -> int:
    """Return the port of the model with this number, from 0 on, where the first one's was asked for; 0 is any."""
    return port + index if port else 0
