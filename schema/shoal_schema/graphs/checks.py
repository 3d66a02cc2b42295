"""Checks of a graph that its rules in the resource do not express: names, URLs and a composer's source."""

import keyword
from collections.abc import Iterable, Mapping
from typing import Final

from shoal_schema.fields.addresses import parse_origin
from shoal_schema.graphs.composer import read_source
from shoal_schema.graphs.errors import GraphError, GraphFault
from shoal_schema.resource.graph import GraphSpec

_OF_STEPS: Final = ("left_s",)
"""Attributes of a composer's ``steps`` other than the steps."""
_MAX_NAME: Final = 256


def step_paths(spec: GraphSpec) -> dict[str, str]:
    """Return the path of each step's field, by step name.

    Raises:
        GraphError: two steps have one name.
    """
    paths: dict[str, str] = {}
    for index, step in enumerate(spec.steps):
        path = f"steps[{index}]"
        if step.name in paths:
            raise GraphError(f"{path}.name", f"{paths[step.name]} has the same name ({step.name}). Rename one")
        paths[step.name] = path
    return paths


def check_spec(spec: GraphSpec, name: str, paths: Mapping[str, str]) -> None:
    """Check names, URLs and references of a graph regardless of its models.

    Args:
        spec: the graph.
        name: the graph's name, to reject a graph that calls itself.
        paths: step name -> path of its field.

    Raises:
        GraphError: a check fails; the error names the field.
    """
    for each in spec.steps:
        path = paths[each.name]
        if keyword.iskeyword(each.name):
            raise GraphError(
                f"{path}.name", f"{each.name!r} is a keyword of Python and of expressions: choose another name"
            )
        if name and each.graph == name:
            raise GraphError(f"{path}.graph", f"the graph calls itself ({name})", GraphFault.CYCLE)
        if name and each.service == name:
            what = f"a service of the graph's own name ({name}) is the graph: name another service"
            raise GraphError(f"{path}.service", what, GraphFault.CYCLE)
        if each.url is not None:
            try:
                origin = parse_origin(each.url.rpartition("/v2/models/")[0])
            except ValueError as error:
                raise GraphError(f"{path}.url", str(error)) from None
            if not origin.address.path and origin.address.port == 0:
                raise GraphError(f"{path}.url", "port 0 is not a server's port")
        _check_names(each.inputs, f"{path}.inputs")
        if spec.composer is not None and each.name in _OF_STEPS:
            raise GraphError(f"{path}.name", f"{each.name} is a reserved attribute of a composer's steps")
    if spec.composer is not None and spec.composer.source is not None:
        read_source(spec.composer.source)
    _check_names(spec.outputs, "outputs")


def _check_names(names: Iterable[str], path: str) -> None:
    """Check the length of tensor names, and reject names that YAML turned into booleans."""
    for name in names:
        if not 0 < len(name) <= _MAX_NAME:
            raise GraphError(path, f"a tensor's name must have 1 to {_MAX_NAME} characters, not {len(name)}")
        # YAML 1.1 parses y, yes and on as true; JSON keys are then "true".
        if name in ("true", "false"):
            raise GraphError(f"{path}.{name}", "YAML reads y, n, yes, no, on and off as booleans: quote the name")
