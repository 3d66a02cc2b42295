"""Read a file with an ``InferenceGraph`` and the ``InferenceService`` of each of its steps."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from shoal.documents import read_text, read_yaml
from shoal.serving.errors import FieldError, LocalError
from shoal.serving.fields import Values
from shoal.serving.manifest import fields_alike
from shoal.targets import MANIFEST_SUFFIXES
from shoal_schema.decoding import SpecError, parse_graph_spec
from shoal_schema.fields.declaring import NAME, NAME_IN_WORDS, fields_of
from shoal_schema.resource import API_VERSION, GRAPH_KIND, KIND
from shoal_schema.resource.graph import GraphSpec, InferenceGraphSpec

WRITE_IT = "Add its InferenceService to the file, after a line ---"


@dataclass(frozen=True, slots=True)
class ServedGraph:
    """A graph read from a YAML file."""

    name: str
    spec: InferenceGraphSpec
    directory: Path = Path()
    """The directory of the file."""
    fields: Values = field(default_factory=dict)
    """The fields of the graph's own proxy."""
    ignored: tuple[str, ...] = ()
    """Fields without effect on one machine."""

    @property
    def services(self) -> Iterator[str]:
        """Names of the services that the steps call."""
        yield from dict.fromkeys(step.service for step in self.spec.steps if step.service)

    @property
    def graphs(self) -> Iterator[str]:
        """Names of the graphs that the steps call."""
        yield from dict.fromkeys(step.graph for step in self.spec.steps if step.graph)

    def environment(self, sockets: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the graph's proxy; ``sockets`` maps models to the sockets of their proxies."""
        steps = []
        for step in self.spec.steps:
            name = step.service or step.graph
            if name is not None:
                url = f"unix:{sockets[name]}/v2/models/{name}"
                step = structs.replace(step, url=url, service=None, graph=None)  # noqa: PLW2901 (with its address)
            steps.append(step)
        document = msgspec.json.encode(self.spec.graph(tuple(steps))).decode()
        return {"SHOAL_PROXY_GRAPH": document, "SHOAL_PROXY_COMPOSER_DIR": str(self.directory)}


def graphs_in(target: str) -> list[ServedGraph]:
    """Return the graphs in a manifest file, called graphs before their callers; empty for other targets.

    Raises:
        FieldError: a graph is invalid, or refers to a service or graph that is not in the file.
        LocalError: the file cannot be read.
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
            raise FieldError(f"two graphs are named {next(name for name in names if names.count(name) > 1)}")
        services = {str((each.get("metadata") or {}).get("name")) for each in documents if each.get("kind") == KIND}
        if shared := sorted(graphs.keys() & services):
            raise FieldError(
                f"a graph and a service are both named {shared[0]}, which is part of their URLs. Rename one"
            )
        return list(_in_order(graphs, services)) if graphs else []
    except FieldError as error:
        raise FieldError(f"{file}: {error}") from error
    except OSError as error:
        raise LocalError(f"cannot read {file}: {error.strerror}") from error


def _graph(document: Mapping[str, Any], directory: Path) -> ServedGraph | None:
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
    # The graph's own proxy has some fields of a service.
    alike = fields_alike(spec, document.get("spec") or {}, {each.name for each in fields_of(GraphSpec)})
    return ServedGraph(name, spec, directory.resolve(), alike.fields, tuple(alike.without_effect([])))


def _in_order(graphs: Mapping[str, ServedGraph], services: set[str]) -> Iterator[ServedGraph]:
    """Check references to services and graphs, and yield called graphs before their callers."""
    left = dict(graphs)
    for graph in graphs.values():
        for missing in (each for each in graph.services if each not in services):
            raise FieldError(f"{graph.name} has a step of service {missing}, which is not in the file. {WRITE_IT}")
        for missing in (each for each in graph.graphs if each not in graphs):
            raise FieldError(f"{graph.name} has a step of graph {missing}, which is not in the file")
    # Topological order; graphs that remain without a ready one form a cycle.
    while left:
        ready = [graph for graph in left.values() if not left.keys() & set(graph.graphs)]
        if not ready:
            raise FieldError(f"the graphs form a cycle: {', '.join(left)}")
        for graph in ready:
            del left[graph.name]
            yield graph


def main_graph(graphs: Sequence[ServedGraph]) -> str:
    """Return the name of the only graph that no other graph calls.

    The name is empty if several graphs, or none, are uncalled.
    """
    called = {name for graph in graphs for name in graph.graphs}
    names = [graph.name for graph in graphs if graph.name not in called]
    return names[0] if len(names) == 1 else ""
