"""Checks of a graph's document that do not depend on the order of its steps or on its models."""

import keyword
from collections.abc import Iterable, Mapping
from typing import Final

from shoal_schema.fields.addresses import parse_origin
from shoal_schema.graphs.composer import read_source
from shoal_schema.graphs.errors import GraphError, GraphFault
from shoal_schema.resource.graph import REQUEST, GraphSpec, OnError

_OF_STEPS: Final = ("left_s",)
"""Attributes of a composer's ``steps`` other than the steps."""
_DATA_FIELDS: Final = ("inputs", "when", "each", "count")
_MAX_NAME: Final = 256


def step_paths(spec: GraphSpec) -> dict[str, str]:
    """Return the path of each step's field, by step name.

    Raises:
        GraphError: two steps have one name, or a step is called `request`.
    """
    paths: dict[str, str] = {}
    for index, step in enumerate(spec.steps):
        path = f"steps[{index}]"
        if step.name == REQUEST:
            raise GraphError(f"{path}.name", "request addresses the client's request: give the step another name")
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
    _check_composer(spec, paths)
    _check_names(spec.outputs, "outputs")
    for unknown in spec.combine:
        if unknown not in spec.outputs:
            raise GraphError(f"combine.{unknown}", f"there is no such output; known are {', '.join(spec.outputs)}")


def _check_composer(spec: GraphSpec, paths: Mapping[str, str]) -> None:
    """Check that data flow is declared either in fields or in a composer's code."""
    # Without a composer the fields define the data flow; with one they must be empty.
    if spec.composer is None:
        for each in (each for each in spec.steps if not each.inputs):
            raise GraphError(f"{paths[each.name]}.inputs", "must name a tensor for each input of the model")
        if not spec.outputs:
            raise GraphError("outputs", "must name the graph's outputs")
        return
    if spec.composer.source is not None:
        read_source(spec.composer.source)
    for each in spec.steps:
        if each.name in _OF_STEPS:
            raise GraphError(f"{paths[each.name]}.name", f"{each.name} is a reserved attribute of a composer's steps")
    declared = [f"{paths[each.name]}.{name}" for each in spec.steps for name in _DATA_FIELDS if getattr(each, name)]
    declared += [f"{paths[each.name]}.onError" for each in spec.steps if each.on_error is not OnError.FAIL]
    declared += [name for name in ("outputs", "combine") if getattr(spec, name)]
    if declared:
        raise GraphError(declared[0], "the composer's code declares it already. Remove it")


def _check_names(names: Iterable[str], path: str) -> None:
    """Check the length of tensor names, and reject names that YAML turned into booleans."""
    for name in names:
        if not 0 < len(name) <= _MAX_NAME:
            raise GraphError(path, f"a tensor's name must have 1 to {_MAX_NAME} characters, not {len(name)}")
        # YAML 1.1 parses y, yes and on as true; JSON keys are then "true".
        if name in ("true", "false"):
            raise GraphError(f"{path}.{name}", "YAML reads y, n, yes, no, on and off as booleans: quote the name")
