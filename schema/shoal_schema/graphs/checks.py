"""What a graph's document must keep to before anybody asks in what order its steps run."""

import keyword
from collections.abc import Iterable, Mapping
from typing import Final

from shoal_schema.addresses import parse_origin
from shoal_schema.graphs.composer import read_source
from shoal_schema.graphs.faults import Fault, GraphError
from shoal_schema.resource.graph import REQUEST, GraphSpec, OnError

_OF_STEPS: Final = ("left_s",)
"""What a composer's ``steps`` has beside the steps."""
_TOLD: Final = ("inputs", "when", "each", "count")
_LONGEST_NAME: Final = 256


def step_paths(spec: GraphSpec) -> dict[str, str]:
    """Return the path of each step's field, by its name.

    Raises:
        GraphError: two have one name, or one has the request's.
    """
    paths: dict[str, str] = {}
    for index, step in enumerate(spec.steps):
        path = f"steps[{index}]"
        if step.name == REQUEST:
            raise GraphError(f"{path}.name", "request is what the caller sends: give the step another name")
        if step.name in paths:
            raise GraphError(f"{path}.name", f"{paths[step.name]} is called {step.name}, too")
        paths[step.name] = path
    return paths


def check_spec(spec: GraphSpec, name: str, paths: Mapping[str, str]) -> None:
    """Refuse what cannot be, whatever the models are; ``name`` is the graph's own, ``paths`` are those of its steps.

    Raises:
        GraphError: names the field.
    """
    for each in spec.steps:
        path = paths[each.name]
        if keyword.iskeyword(each.name):
            raise GraphError(
                f"{path}.name", f"{each.name!r} is a word of Python's, and of expressions: call it otherwise"
            )
        if name and each.graph == name:
            raise GraphError(f"{path}.graph", f"the graph calls itself ({name})", Fault.CYCLE)
        if name and each.service == name:
            what = f"it is the graph's own name ({name}), and whoever asks for it asks the graph: name another service"
            raise GraphError(f"{path}.service", what, Fault.CYCLE)
        _check_url(each.url, f"{path}.url")
        _check_names(each.inputs, f"{path}.inputs")
    _check_composer(spec, paths)
    _check_names(spec.outputs, "outputs")
    for unknown in spec.combine:
        if unknown not in spec.outputs:
            raise GraphError(f"combine.{unknown}", f"there is no such output; there are {', '.join(spec.outputs)}")


def _check_url(url: str | None, path: str) -> None:
    if url is None:
        return
    try:
        origin = parse_origin(url.rpartition("/v2/models/")[0])
    except ValueError as error:
        raise GraphError(path, str(error)) from None
    if not origin.address.path and origin.address.port == 0:
        raise GraphError(path, "no server listens at port 0")


def _check_composer(spec: GraphSpec, paths: Mapping[str, str]) -> None:
    """Refuse a graph that does not say what steps are given; and one that says it beside the code that does."""
    if spec.composer is None:
        for each in (each for each in spec.steps if not each.inputs):
            raise GraphError(f"{paths[each.name]}.inputs", "name a tensor for each input of the model")
        if not spec.outputs:
            raise GraphError("outputs", "name what the answer holds")
        return
    if spec.composer.source is not None:
        read_source(spec.composer.source)
    for each in spec.steps:
        if each.name in _OF_STEPS:
            raise GraphError(f"{paths[each.name]}.name", f"steps.{each.name} is something else in Python")
    told = [f"{paths[each.name]}.{name}" for each in spec.steps for name in _TOLD if getattr(each, name)]
    told += [f"{paths[each.name]}.onError" for each in spec.steps if each.on_error is not OnError.FAIL]
    told += [name for name in ("outputs", "combine") if getattr(spec, name)]
    if told:
        raise GraphError(told[0], "the composer's code says that: leave it out")


def _check_names(names: Iterable[str], path: str) -> None:
    """Refuse what YAML has made of a name: ``y``, ``yes`` and ``on`` are truth values to it."""
    for name in names:
        if not 0 < len(name) <= _LONGEST_NAME:
            raise GraphError(path, f"a tensor's name has 1 to {_LONGEST_NAME} characters, not {len(name)}")
        if name in ("true", "false"):
            raise GraphError(f"{path}.{name}", "YAML reads y, n, yes, no, on and off as true and false: quote the name")
