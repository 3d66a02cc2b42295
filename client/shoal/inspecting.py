"""``shoal inspect``: a runtime, or a graph's proxy, that loads what it would serve, and reports instead."""

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import orjson

from shoal.folder import own_directory
from shoal.graph_file import Graph
from shoal.outlet import Outlet
from shoal.pair import MODULES
from shoal.processes import Process
from shoal.serving.fields import MachineError
from shoal.serving.graph_drawing import described
from shoal.serving.supervision import CANNOT_LOAD, Exit, cause, exit_message
from shoal_schema.graphs.composer import ComposerReport, declared_signature
from shoal_schema.graphs.faults import GraphError
from shoal_schema.graphs.plan import make_plan
from shoal_schema.graphs.tensors import Signature
from shoal_schema.graphs.types import graph_metadata, typed

STANDARD_ERROR = 2
# What the model's code printed last waits this long for whoever reads it slowly.
READERS_PATIENCE_S = 2.0


def inspect(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the report of a runtime with this environment; what the model's code prints goes to standard error.

    Raises:
        MachineError: it ended without one.
        KeyboardInterrupt: somebody interrupted it.
    """
    report: dict[str, Any] = orjson.loads(_report("runtime", "inspect", environment))
    return report


def _report(role: str, command: str, environment: Mapping[str, str]) -> bytes:
    with own_directory() as folder:
        file = Path(folder, "report.json")
        log = Outlet(STANDARD_ERROR)
        try:
            end = asyncio.run(_run(role, command, environment, str(file), log))
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            log.close(READERS_PATIENCE_S)
        if end.returncode not in (0, CANNOT_LOAD) or not file.exists():
            raise MachineError(exit_message(end))
        return file.read_bytes()


def look_at_graph(graph: Graph, known: dict[str, Any]) -> dict[str, Any]:
    """Return what a graph is, and why its models do not fit one another; None where they do.

    Args:
        graph: the graph.
        known: the V2 metadata of what is served beside it, by name; the graph's own is added.
    """
    plan = make_plan(graph.spec, graph.name)
    names = {step.name: step.service or step.graph or "" for step in graph.spec.steps}
    documents = {step: known[name] for step, name in names.items() if name in known}
    unknown = [step for step in names if step not in documents]
    typed_graph, refused = None, None
    try:
        composer = _look_at_composer(graph) if graph.spec.composer else None
        if not unknown:
            typed_graph = typed(plan, documents, graph.name, composer)
            known[graph.name] = graph_metadata(typed_graph, graph.name, frozenset({graph.name, *graph.graphs}))
    except GraphError as error:
        refused = str(error)
    return {**described(graph.name, graph.spec, plan, typed_graph), "unknown": unknown, "refused": refused}


def _look_at_composer(graph: Graph) -> Signature:
    """Return what a composer takes and gives; its code is loaded as to serve it.

    Raises:
        GraphError: it cannot be.
    """
    told = graph.environment(dict.fromkeys((*graph.services, *graph.graphs), "/none"))
    report = msgspec.json.decode(_report("proxy", "composer", {**os.environ, **told}), type=ComposerReport)
    if report.refused:
        raise GraphError(report.path, report.refused)
    return declared_signature(report.inputs, report.outputs, "composer")


async def _run(role: str, command: str, environment: Mapping[str, str], file: str, log: Outlet) -> Exit:
    task = asyncio.current_task()
    assert task is not None
    # asyncio's own way wakes no loop that has just looked for signals and is about to sleep, which may be for long.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
    process = await Process.start(MODULES[role], environment, command, file, log=log)
    try:
        returncode = await process.wait()
    finally:
        process.kill()
    return Exit(role, returncode, cause(process.last_written), served=False)
