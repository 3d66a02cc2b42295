"""Commands of ``shoal``: each takes parsed options and returns an exit status."""

import asyncio
import os
import shlex
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from shoal import inspecting, ports, starter
from shoal import serve as serving
from shoal.batch import batch_environment
from shoal.bench import bench as measure
from shoal.client import Client
from shoal.colours import Style, styled
from shoal.compilation import UNCOMPILED, is_compiled
from shoal.discovery import find_model
from shoal.exchange import trusted
from shoal.files import given_item
from shoal.graph_file import ServedGraph, graphs_in, main_graph
from shoal.keys import key_in
from shoal.pair import CERTIFICATE, CLIENT_CA, DOCS, KEY, KEYS, Launch, Reporter, outlets
from shoal.printing import json_text, result_text, signature_json, signature_text
from shoal.serving.errors import FieldError, LocalError
from shoal.serving.fields import Values, merge, to_environment
from shoal.serving.graph_drawing import draw_graph
from shoal.serving.inspection import report_text, with_requests
from shoal.serving.precision_table import precision_text, with_names
from shoal.targets import ServePlan, files_beside, make_plan, named_target, plan_services
from shoal.wire.messages import result_path
from shoal_schema.resource.locations import shown

ADMIN_PORT = 8079
"""Default admin port: not assigned by IANA, and not 9090 as in a pod, which is the default of Prometheus."""
REQUIRES_KEYS = "access.apiKeys"
"""Prefix of the fields that require API keys."""


def predict(options: SimpleNamespace) -> int:
    """Send one item and print the result, or the location of an asynchronous one."""
    item = given_item(options, options.file)
    with _client(options, "predict") as client:
        if options.later:
            return _submit(client, item, options)
        outputs = [output.name for output in client.signature().outputs]
        result = client.predict(item)
    print(json_text(result) if options.json else _with_headline(result_text(result, outputs)))
    return 0


def _submit(client: Client, item: Any, options: SimpleNamespace) -> int:
    """Send an asynchronous request; print where its result will be, or with ``--wait`` the result."""
    signature = client.signature()
    job = client.submit(item, within_s=options.wait, callback=options.callback)
    if options.wait is None:
        location = result_path(signature.name, job.id)
        print(json_text({"id": job.id, "location": location}) if options.json else location)
        return 0
    result = job.result(options.wait)
    print(
        json_text(result)
        if options.json
        else _with_headline(result_text(result, [output.name for output in signature.outputs]))
    )
    return 0


def _client(options: SimpleNamespace, command: str) -> Client:
    key = key_in(options.api_key_file)
    url, model = (options.url, options.model) if options.url else find_model(command, options.model)
    return Client(url, model, timeout_s=options.timeout, api_key=key, verify=trusted(options))


def info(options: SimpleNamespace) -> int:
    """Print the model's signature."""
    with _client(options, "info") as client:
        signature = client.signature()
    print(signature_json(signature) if options.json else _with_headline(signature_text(signature)))
    return 0


def bench(options: SimpleNamespace) -> int:
    """Measure the capacity of a server."""
    return measure(options)


def top(options: SimpleNamespace) -> int:
    """Show the load of services."""
    with _require_extra("watch"):
        from shoal.top import top as show  # noqa: PLC0415 (needs an extra)
    return show(options)


def dashboard(options: SimpleNamespace) -> int:
    """Show the load of services in a browser."""
    with _require_extra("watch"):
        from shoal.dashboard import dashboard as show  # noqa: PLC0415 (likewise)
    return show(options)


def rollout(options: SimpleNamespace) -> int:
    """Show or change a rollout by candidate."""
    from shoal.rollouts import rollout as run  # noqa: PLC0415 (its imports are needed by no other command)

    return run(options)


@contextmanager
def _require_extra(extra: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise LocalError(f"{error.name} is not installed. Run pip install 'shoal[{extra}]'") from None


def _with_headline(text: str) -> str:
    first, newline, rest = text.partition("\n")
    return f"{styled(first, Style.BOLD, stream=sys.stdout)}{newline}{rest}" if rest else text


def init(options: SimpleNamespace) -> int:
    """Write a small model directory that can be served."""
    for file in starter.make(Path(options.directory), options.template):
        print(f"wrote {file}")
    print(f"serve it:\n  shoal serve {shlex.quote(options.directory)}")
    return 0


def inspect(options: SimpleNamespace) -> int:
    """Load a model as ``shoal serve`` would, and print its signature or raise its error."""
    if graphs := graphs_in(options.target):
        if options.precision:
            raise FieldError(f"{options.target} is a graph. Measure each of its models with --precision")
        return _inspect_graphs(options, graphs)
    plan = make_plan(None, options.target, options.set)
    if options.precision:
        return _inspect_precision(options, plan)
    if not options.json:
        print(f"inspecting {shown(plan.fields['model.uri'])}", file=sys.stderr)
    report = with_requests(inspecting.inspect(plan.environment()), files_beside(options.target))
    text = json_text(report) if options.json else _with_headline(report_text(report, options.target))
    if text:
        print(text)
    if report["refused"] is not None:
        raise LocalError(f"the model cannot be loaded: {report['refused']}")
    return 0


def _inspect_precision(options: SimpleNamespace, plan: ServePlan) -> int:
    if not options.json:
        print(f"measuring {shown(plan.fields['model.uri'])}", file=sys.stderr)
    report = with_names(inspecting.measure_precisions(plan.environment(), options.rows))
    if options.json:
        print(json_text(report))
    if report["refused"] is not None:
        raise LocalError(f"the model cannot be measured: {report['refused']}")
    if not options.json:
        print(_with_headline(precision_text(report)))
    return 0


def _inspect_graphs(options: SimpleNamespace, graphs: Sequence[ServedGraph]) -> int:
    # Metadata of the models, and then of inner graphs, by name.
    known: dict[str, Any] = {}
    for plan in plan_services(options.target, options.set):
        if not options.json:
            print(f"inspecting {shown(plan.fields['model.uri'])}", file=sys.stderr)
        report = inspecting.inspect(plan.environment())
        if report["refused"] is not None:
            raise LocalError(f"the model {plan.name} cannot be loaded: {report['refused']}")
        known[plan.name] = report["metadata"]
    for graph in graphs:
        described = inspecting.inspect_graph(graph, known)
        print(json_text(described) if options.json else draw_graph(described))
        if described["unknown"]:
            names = ", ".join(described["unknown"])
            print(f"not checked, because no model of this command serves it: {names}", file=sys.stderr)
        if described["refused"] is not None:
            raise LocalError(f"the graph {graph.name} cannot work: {described['refused']}")
    return 0


def batch(options: SimpleNamespace) -> int:
    """Run a model on the rows of files: execute the runtime's batch program."""
    if not (options.model or options.to):
        raise FieldError("there is no model. Pass --model PATH, or --to URL of a service")
    if options.to and options.set:
        raise FieldError("--set applies to a model started here, not to --to. Omit it")
    if find_spec("pyarrow") is None:
        raise LocalError('reading files needs pyarrow. Run pip install "shoal[batch]"')
    model = dict(os.environ) if options.to else make_plan(None, options.model, options.set).environment()
    settings = {**model, **batch_environment(options)}
    # It replaces this process, and so receives Ctrl-C and the terminal.
    os.execve(sys.executable, [sys.executable, "-P", "-m", "shoal_runtime", "batch", "shoal"], settings)


def serve(options: SimpleNamespace) -> int:
    """Serve models until a signal stops the command."""
    if options.port and options.port == options.admin_port:
        raise FieldError(f"--port and --admin-port must differ, not both be {options.port}")
    if not (options.targets or options.management):
        raise FieldError("there is no model. Pass a manifest, a directory, a file or a URL (shoal serve --help)")
    graphs = [graph for each in options.targets for graph in graphs_in(each)]
    plans: list[ServePlan] = []
    for target in options.targets:
        # The file of a graph also has the services of its steps.
        if graphs_in(target):
            plans += plan_services(target, options.set)
        else:
            plans.append(make_plan(*named_target(target), options.set))
    _check_keys(options, [*plans, *graphs], alone=not graphs)
    names = [*(plan.name for plan in plans), *(graph.name for graph in graphs)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise FieldError(f"two models are named {', '.join(twice)}. Name them with `shoal serve one=PATH two=PATH`")
    # A graph shares the port with the models of its steps.
    shared = options.management or len(names) > 1 or bool(graphs)
    if shared and (options.tls_certificate or os.environ.get(CERTIFICATE)):
        raise FieldError(
            "TLS requires a port with a single model. Omit --tls-certificate, or serve the models separately"
        )
    # The model's own port may be the default admin port.
    default = options.admin_port is None and options.port != ADMIN_PORT
    # Of several `shoal serve` on one address, the first one gets the default admin port.
    with ports.claimed(options.host, ADMIN_PORT) if default else nullcontext() as ours:
        port = ports.find_port(options.host, options.port, option="--port")
        output, log = outlets(json=options.json)
        reporter = Reporter(output, log, quiet=options.quiet, json=options.json)
        with closing(reporter):
            if not is_compiled():
                reporter.report(UNCOMPILED, compiled=False)
            # The main graph gets it before its models.
            usual = names.index(main) if (main := main_graph(graphs)) else 0
            launcher = _Launcher(options, reporter, port, shared=shared, usual=usual if ours else None, main=main)
            # Models first, so that a graph finds the sockets of its steps.
            launches = [*map(launcher.launch, plans), *map(launcher.launch_graph, graphs)]
            return asyncio.run(serving.serve(launches, reporter, launcher.shared_port()))


def _check_keys(options: SimpleNamespace, plans: Sequence["ServePlan | ServedGraph"], *, alone: bool) -> None:
    """Check that required API keys are given, and that they protect every served model.

    Raises:
        FieldError: keys are required but not given, or would protect only some of the models.
    """
    if options.api_key_file is None:
        if KEYS not in os.environ and any(name.startswith(REQUIRES_KEYS) for plan in plans for name in plan.ignored):
            if not alone:
                raise FieldError("access.apiKeys requires a port with a single model and no graph. Omit it")
            raise FieldError("access.apiKeys requires API keys. Name their file with --api-key-file FILE")
    elif options.management or len(plans) > 1 or not alone:
        raise FieldError("--api-key-file supports a single model. Serve each model with its own command and port")
    elif not os.access(options.api_key_file, os.R_OK):
        raise LocalError(f"cannot read {options.api_key_file}: it must have one NAME=KEY per line")


class _Launcher:
    """Factory of `Launch` objects, each with its own admin port.

    Args:
        options: options of ``shoal serve``.
        reporter: prints events.
        port: port on which the models are served.
        shared: whether several models share the port.
        usual: index of the launch that gets the default admin port; None if that port is not available.
        main: name of the default graph; may be empty.
    """

    def __init__(
        self, options: SimpleNamespace, reporter: Reporter, port: int, *, shared: bool, usual: int | None, main: str
    ) -> None:
        self._options = options
        self._reporter = reporter
        self._port = port
        self._shared = shared
        self._usual = usual
        self._main = main
        self._count = 0

    def launch(self, plan: ServePlan) -> Launch:
        """Return the processes to start for a model, and print what is served."""
        options, index = self._options, self._count
        self._count += 1
        files = {
            KEYS: options.api_key_file,
            CERTIFICATE: options.tls_certificate,
            KEY: options.tls_key,
            CLIENT_CA: options.tls_client_ca,
        }
        guard = {name: str(file.absolute()) for name, file in files.items() if file}
        launch = Launch(
            name=plan.name,
            settings={**self._settings(index, plan.fields), **guard},
            host=options.host,
            port=self._port,
            admin_port=self._admin_port(index),
            reporter=self._reporter,
            files=files_beside(plan.target),
            shared=self._shared,
            key_file=options.api_key_file,
        )
        uri = shown(plan.fields["model.uri"])
        launch.report(f"serving {launch.name} from {uri}", name=launch.name, uri=uri)
        self._report_ignored(launch, plan.ignored)
        if not self._shared and options.admin_port is None and launch.admin_port != ADMIN_PORT:
            launch.report(
                f"port {ADMIN_PORT} of {options.host} is in use, so metrics are on {launch.admin_url}/metrics",
                admin_url=launch.admin_url,
            )
        return launch

    def _settings(self, index: int, fields: Values) -> dict[str, str]:
        """Return the environment variables of a model's processes, from its fields and the command's options."""
        options = self._options
        grpc: Values = {}
        if options.grpc_port is not None:
            port = _following(options.grpc_port, index)
            grpc = {"proxy.grpcPort": ports.find_port(options.host, port, option="--grpc-port")}
        log_level = options.log_level or ("error" if options.quiet else None)
        level = {"SHOAL_LOG_LEVEL": log_level.upper()} if log_level else {}
        form = {"SHOAL_LOG_FORMAT": options.log_format} if options.log_format else {}
        # Later entries override earlier ones: the fields come after the environment.
        return {DOCS: "true", **os.environ, **to_environment(merge(fields, grpc)), **level, **form}

    def _report_ignored(self, launch: Launch, names: Sequence[str]) -> None:
        if ignored := [name for name in names if not name.startswith(REQUIRES_KEYS)]:
            launch.report(f"without effect on one machine: {', '.join(ignored)}", ignored=ignored)

    def launch_graph(self, graph: ServedGraph) -> Launch:
        """Return the processes to start for a graph, and print its steps."""
        index = self._count
        self._count += 1
        launch = Launch(
            name=graph.name,
            settings=self._settings(index, graph.fields),
            host=self._options.host,
            port=self._port,
            admin_port=self._admin_port(index),
            reporter=self._reporter,
            shared=True,
            graph=graph,
        )
        steps = ", ".join(step.name for step in graph.spec.steps)
        launch.report(f"a graph of {steps}", name=graph.name, steps=steps)
        self._report_ignored(launch, graph.ignored)
        return launch

    def shared_port(self) -> serving.Shared | None:
        """Return the settings of the port that several models share; None for one model."""
        if not self._shared:
            return None
        management = None
        if self._options.management:
            port = self._options.management_port
            management = ports.find_port(serving.LOOPBACK, port, option="--management-port")
        return serving.Shared(self._options.host, self._port, management, self._register, self._main)

    def _register(self, query: Mapping[str, str], taken: Container[str]) -> Launch:
        """Return the `Launch` for a TorchServe ``POST /models`` query; its name must not be in ``taken``."""
        if not query.get("url"):
            raise FieldError("the query has no url: POST /models?url=MODEL.mar")
        named = {"batch_size": "batching.maxBatchSize", "response_timeout": "runtime.forwardTimeoutSeconds"}
        given = [f"{field}={query[key]}" for key, field in named.items() if query.get(key)]
        if query.get("batch_size") and query["url"].partition("?")[0].endswith(".mar"):
            # The archive has a batch size of its own, which the query overrides.
            given.append(f"model.parameters.batchSize={query['batch_size']}")
        plan = make_plan(query.get("model_name"), query["url"], [*self._options.set, *given])
        if plan.name in taken:
            raise FieldError(f"a model {plan.name} is registered already")
        return self.launch(plan)

    def _admin_port(self, index: int) -> int:
        """Return the admin port of the launch ``index``.

        With ``--admin-port`` the ports are counted from there. Otherwise one launch gets the default if it is free, and
        others get any free port.
        """
        options = self._options
        if options.admin_port is not None:
            return ports.find_port(options.host, _following(options.admin_port, index), option="--admin-port")
        # Models registered later find whether it is still free.
        if index == self._usual and ports.is_free(options.host, ADMIN_PORT):
            return ADMIN_PORT
        return ports.find_port(options.host, 0, option="--admin-port")


def _following(port: int, index: int) -> int:
    """Return the port of the launch ``index``.

    Args:
        port: port of the first launch; 0 (any free port) applies to all launches.
        index: number of the launch, from 0.
    """
    return port + index if port else 0
