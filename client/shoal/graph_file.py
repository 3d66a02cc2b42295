"""A file with an ``InferenceGraph``, and beside it the ``InferenceService`` of each of its steps."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from shoal.documents import read_text, read_yaml
from shoal.serving.fields import FieldError, MachineError, Values
from shoal.serving.manifest import fields_alike
from shoal.targets import MANIFEST_SUFFIXES
from shoal_schema.declaring import NAME, NAME_IN_WORDS, fields_of
from shoal_schema.decoding import SpecError, parse_graph_spec
from shoal_schema.resource import API_VERSION, GRAPH_KIND, KIND
from shoal_schema.resource.graph import GraphSpec, InferenceGraphSpec, StepSpec

WRITE_IT = "write its InferenceService into the file, after a line ---"


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph by its name, in a file of this ``folder``; its steps name ``services`` and ``graphs`` served here.

    ``fields`` are those of its own proxy; ``ignored`` those of the document that have no effect on one machine.
    """

    name: str
    spec: InferenceGraphSpec
    folder: Path = Path()
    fields: Values = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    @property
    def services(self) -> Iterator[str]:
        """Yield the services that its steps name."""
        yield from dict.fromkeys(step.service for step in self.spec.steps if step.service)

    @property
    def graphs(self) -> Iterator[str]:
        """Yield the graphs that its steps name."""
        yield from dict.fromkeys(step.graph for step in self.spec.steps if step.graph)

    def environment(self, sockets: Mapping[str, str]) -> dict[str, str]:
        """Return what the proxy that runs it is told; ``sockets`` is where each model's proxy is asked."""
        steps = tuple(_located(step, sockets) for step in self.spec.steps)
        document = msgspec.json.encode(self.spec.graph(steps)).decode()
        return {"SHOAL_PROXY_GRAPH": document, "SHOAL_PROXY_COMPOSER_DIR": str(self.folder)}


def graphs_in(target: str) -> list[Graph]:
    """Return the graphs that a file holds, each after those that it calls; none of anything else.

    Raises:
        FieldError: one cannot work, or names what is not in the file.
        MachineError: the file cannot be read.
    """
    file = Path(target)
    if file.suffix not in MANIFEST_SUFFIXES or not file.is_file():
        return []
    try:
        documents = [each for each in read_yaml(read_text(file)) if isinstance(each, Mapping)]
        found = [graph for each in documents if (graph := _graph(each, file.parent))]
        graphs = {graph.name: graph for graph in found}
        if len(graphs) < len(found):
            names = [graph.name for graph in found]
            raise FieldError(f"two graphs are called {next(name for name in names if names.count(name) > 1)}")
        services = {str((each.get("metadata") or {}).get("name")) for each in documents if each.get("kind") == KIND}
        if shared := sorted(graphs.keys() & services):
            raise FieldError(f"a graph and a service are both called {shared[0]}: rename one, as both have a URL by it")
        return list(_in_order(graphs, services)) if graphs else []
    except FieldError as error:
        raise FieldError(f"{file}: {error}") from error
    except OSError as error:
        raise MachineError(f"cannot read {file}: {error.strerror}") from error


def _graph(document: Mapping[str, Any], folder: Path) -> Graph | None:
    if document.get("kind") != GRAPH_KIND:
        return None
    if document.get("apiVersion") != API_VERSION:
        raise FieldError(f"apiVersion must be {API_VERSION}, not {document.get('apiVersion')}")
    name = (document.get("metadata") or {}).get("name")
    if not isinstance(name, str) or not re.search(NAME, name):
        raise FieldError(f"metadata.name of the {GRAPH_KIND} must be {NAME_IN_WORDS}, not {name!r:.80}")
    try:
        spec = parse_graph_spec({"metadata": {"name": name}, "spec": document.get("spec") or {}})
    except SpecError as error:
        raise FieldError(f"{name}: {error}") from None
    alike = fields_alike(spec, document.get("spec") or {}, {each.name for each in fields_of(GraphSpec)})
    return Graph(name, spec, folder.resolve(), alike.fields, tuple(alike.without_effect([])))


def _in_order(graphs: Mapping[str, Graph], services: set[str]) -> Iterator[Graph]:
    left = dict(graphs)
    for graph in graphs.values():
        for missing in (each for each in graph.services if each not in services):
            raise FieldError(f"{graph.name} has a step of the service {missing}, which is not here: {WRITE_IT}")
        for missing in (each for each in graph.graphs if each not in graphs):
            raise FieldError(f"{graph.name} has a step of the graph {missing}, which is not in the file")
    while left:
        ready = [graph for graph in left.values() if not left.keys() & set(graph.graphs)]
        if not ready:
            raise FieldError(f"the graphs call one another in a circle: {', '.join(left)}")
        for graph in ready:
            del left[graph.name]
            yield graph


def _located(step: StepSpec, sockets: Mapping[str, str]) -> StepSpec:
    name = step.service or step.graph
    if name is None:
        return step
    return structs.replace(step, url=f"unix:{sockets[name]}/v2/models/{name}", service=None, graph=None)


def main_graph(graphs: Sequence[Graph]) -> str:
    """Return the name of the graph that calls all others; none where there are several such, or none."""
    called = {name for graph in graphs for name in graph.graphs}
    names = [graph.name for graph in graphs if graph.name not in called]
    return names[0] if len(names) == 1 else ""
