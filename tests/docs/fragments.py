"""Checks YAML of the pages as what will read it does."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from helm_python import Chart, HelmError

from e2e.gateways.envoy import RETRIES
from shoal_local.apiserver.kinds.registry import resources_of
from shoal_local.apiserver.schemas.custom import CustomSchema
from shoal_local.apiserver.schemas.node import root_of
from shoal_local.apiserver.server import load_definitions
from shoal_local.installing import chart_directory
from shoal_local.kubelet.images import BadTableError, parse_table
from shoal_schema.decoding import parse_batch_spec, parse_graph_spec, parse_spec
from shoal_schema.publishing.batch import batches
from shoal_schema.publishing.crd import custom_resource_definition, services
from shoal_schema.publishing.graph import graphs
from shoal_schema.resource import API_VERSION, BATCH_KIND, GRAPH_KIND, KIND

CHARTS_SCHEMA = Path(__file__).parents[2] / "charts" / "shoal" / "values.schema.json"


DEFINITIONS = {KIND: services, GRAPH_KIND: graphs, BATCH_KIND: batches}


def check_yaml(text: str, kind: str | None) -> None:
    """Check resources by their kind, and a fragment as its declared kind.

    Raises:
        ValueError: what is wrong with it.
    """
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    check = FRAGMENTS.get(kind) if kind else _resource
    if check is None:
        raise ValueError(f"there is no check for {kind!r}; there are {', '.join(FRAGMENTS)}")
    for document in documents:
        check(document)


def _resource(found: Any) -> None:
    if not isinstance(found, dict) or "kind" not in found:
        raise ValueError("no resource; declare its kind: <!-- test: as KIND -->")
    if found["kind"] == KIND:
        parse_spec(found)
        _as_defined(found, KIND)
    elif found["kind"] == GRAPH_KIND:
        parse_graph_spec(found)
        _as_defined(found, GRAPH_KIND)
    elif found["kind"] == BATCH_KIND:
        parse_batch_spec(found)
        _as_defined(found, BATCH_KIND)
    else:
        _built_in(found)


def _as_defined(found: dict[str, Any], kind: str) -> None:
    """Check what the API server checks, the definition's rules included."""
    schema = _schema_of(kind)
    causes = schema.causes(schema.admitted(found), None)
    if causes:
        raise ValueError("; ".join(f"{cause.field}: {cause.message}" for cause in causes))


@functools.cache
def _schema_of(kind: str) -> CustomSchema:
    [resource] = resources_of(custom_resource_definition(DEFINITIONS[kind]()))
    return CustomSchema.of(root_of("", resource.schema, load_definitions()))


def _container(found: Any) -> None:
    containers = [{"name": "main", "image": "main", **found}]
    _built_in({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "main"}, "spec": {"containers": containers}})


def _built_in(resource: dict[str, Any]) -> None:
    try:
        kubernetes_validate.validate(resource, "1.37", strict=True)
    except kubernetes_validate.ValidationError as error:
        raise ValueError(str(error)) from error


def _images(found: Any) -> None:
    try:
        parse_table(found)
    except BadTableError as error:
        raise ValueError(str(error)) from error


def _envoy(found: Any) -> None:
    """Check clusters of Envoy's: those that are named once, with a policy and somewhere to go."""
    for cluster in found["clusters"]:
        if not {"name", "type", "lb_policy", "load_assignment"} <= cluster.keys():
            raise ValueError(f"cluster without a part: {cluster}")
        if cluster["load_assignment"]["cluster_name"] != cluster["name"]:
            raise ValueError("load_assignment is of another cluster")


def _spec(found: Any) -> None:
    """Check a part of a service's spec."""
    model = {"uri": "file:///models/cat"}
    _resource({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "cat"}, "spec": {"model": model, **found}})


def _graph(found: Any) -> None:
    """Check the outputs of a graph whose steps are those that they name."""
    names = dict.fromkeys(reference.partition(".")[0] for each in found["outputs"].values() for reference in each)
    steps = [{"name": name, "service": name, "inputs": {"x": "request.x"}} for name in names]
    metadata = {"name": "pipeline"}
    _resource({"apiVersion": API_VERSION, "kind": GRAPH_KIND, "metadata": metadata, "spec": {"steps": steps, **found}})


def _route(found: Any) -> None:
    """Check an action of Envoy's routes against the one that was tried with it."""
    if found != {"timeout": "65s", "retry_policy": RETRIES}:
        raise ValueError("e2e/gateways/envoy.py has tried another")


def _values(found: Any) -> None:
    """Check values of the chart as Helm does."""
    with Chart.load(chart_directory()) as chart:
        try:
            chart.render(values={**found, "images": {"registry": "shoal", **found.get("images", {})}})
        except HelmError as error:
            raise ValueError(str(error)) from error


def _scrapes(found: Any) -> None:
    """Check what Prometheus scrapes; tests/monitoring has promtool read it."""
    for job in found["scrape_configs"]:
        if not {"job_name", "kubernetes_sd_configs", "relabel_configs"} <= job.keys():
            raise ValueError(f"job without a part: {job}")


FRAGMENTS: dict[str, Callable[[Any], None]] = {
    "container": _container,
    "envoy": _envoy,
    "graph": _graph,
    "images": _images,
    "spec": _spec,
    "route": _route,
    "values": _values,
    "scrapes": _scrapes,
}
