"""``shoal inspect``: load a model or a composer in a child process, and return the report on it."""

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import orjson

from shoal.directory import own_directory
from shoal.graph_file import ServedGraph
from shoal.outlet import Outlet
from shoal.pair import MODULES
from shoal.processes import Process
from shoal.serving.errors import LocalError
from shoal.serving.graph_drawing import describe_graph
from shoal.serving.supervision import CANNOT_LOAD, Exit, cause, exit_message
from shoal_schema.graphs.composer import ComposerReport, declared_signature
from shoal_schema.graphs.errors import GraphError
from shoal_schema.graphs.plan import make_plan
from shoal_schema.graphs.tensors import Signature
from shoal_schema.graphs.types import graph_metadata, type_check

STANDARD_ERROR = 2
DRAIN_TIMEOUT_S = 2.0
"""Time for a slow reader of the last output."""


def inspect(environment: Mapping[str, str]) -> dict[str, Any]:
    """Load a model in a runtime process, and return the runtime's report.

    The other output of the process goes to standard error.

    Raises:
        LocalError: the runtime exited without a report.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    report: dict[str, Any] = orjson.loads(_report("runtime", "inspect", environment))
    return report


def measure_precisions(environment: Mapping[str, str], rows: str | None) -> dict[str, Any]:
    """Measure a model in each precision in a runtime process, and return the runtime's report.

    Args:
        environment: environment variables of the process.
        rows: address of a file with the rows; None to generate rows.

    Raises:
        LocalError: the runtime exited without a report.
        KeyboardInterrupt: Ctrl-C was pressed.
    """
    given = () if rows is None else (rows,)
    report: dict[str, Any] = orjson.loads(_report("runtime", "precision", environment, *given))
    return report


def _report(role: str, command: str, environment: Mapping[str, str], *arguments: str) -> bytes:
    """Run a component's ``command``, and return the report that the process writes to a file."""
    with own_directory() as directory:
        file = Path(directory, "report.json")
        log = Outlet(STANDARD_ERROR)

        async def run() -> Exit:
            task = asyncio.current_task()
            assert task is not None
            # asyncio's own handler does not wake a loop that has just checked for signals and is about to block.
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
            process = await Process.start(MODULES[role], environment, command, str(file), *arguments, log=log)
            try:
                returncode = await process.wait()
            finally:
                process.kill()
            return Exit(role, returncode, cause(process.last_written), served=False)

        try:
            end = asyncio.run(run())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            log.close(DRAIN_TIMEOUT_S)
        # A model that cannot be loaded has a report too.
        if end.returncode not in (0, CANNOT_LOAD) or not file.exists():
            raise LocalError(exit_message(end))
        return file.read_bytes()


def inspect_graph(graph: ServedGraph, known: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a graph, for ``shoal inspect``.

    Args:
        graph: the graph.
        known: V2 metadata of the models and graphs inspected so far, by name; this graph's metadata is added.

    Returns:
        The description. Its key ``refused`` is the error of a graph whose models do not fit one another, else None.
    """
    plan = make_plan(graph.spec, graph.name)
    names = {step.name: step.service or step.graph or "" for step in graph.spec.steps}
    documents = {step: known[name] for step, name in names.items() if name in known}
    unknown = [step for step in names if step not in documents]
    typed_graph, refused = None, None
    try:
        composer: Signature | None = None
        if graph.spec.composer:
            # Load the composer's code as to serve it; its steps need no address for that.
            variables = graph.environment(dict.fromkeys((*graph.services, *graph.graphs), "/none"))
            document = _report("proxy", "composer", {**os.environ, **variables})
            report = msgspec.json.decode(document, type=ComposerReport)
            if report.refused:
                raise GraphError(report.path, report.refused)
            composer = declared_signature(report.inputs, report.outputs, "composer")
        if not unknown:
            typed_graph = type_check(plan, documents, graph.name, composer)
            known[graph.name] = graph_metadata(typed_graph, graph.name, frozenset({graph.name, *graph.graphs}))
    except GraphError as error:
        refused = str(error)
    return {**describe_graph(graph.name, graph.spec, plan, typed_graph), "unknown": unknown, "refused": refused}
