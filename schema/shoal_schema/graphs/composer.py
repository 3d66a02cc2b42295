"""A composer's source, read without being run: which class it is, and what it takes and gives."""

import ast
import re
from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from shoal_schema.graphs.faults import GraphError
from shoal_schema.graphs.tensors import Signature, Tensor
from shoal_schema.wire.codes import CODES

PATH = "composer.source"
_TENSOR = re.compile(r"([A-Z0-9]+)(?:\[((?:-1|\d{1,9})(?:, *(?:-1|\d{1,9}))*)\])?")
_ASYNC_RUN = "a composer is a class with `inputs`, `outputs` and `async def run(self, inputs, steps)`"


class Declared(NamedTuple):
    """A class, and what it takes and gives."""

    name: str
    signature: Signature


class ComposerReport(Struct, frozen=True, omit_defaults=True):
    """What loading a composer has shown: what it takes and gives, as it declares them.

    Where it is ``refused``, that says why, of the field at ``path``.
    """

    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    path: str = ""
    refused: str = ""


def as_declared(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return tensors as a composer's class declares them."""
    return {name: str(tensor) for name, tensor in tensors.items()}


def read_source(source: str) -> Declared:
    """Return the class that a source defines.

    Raises:
        GraphError: it is no Python, or has no such class, or several.
    """
    try:
        module = ast.parse(source)
        found = [each for each in module.body if isinstance(each, ast.ClassDef) and _runs(each)]
        if len(found) != 1:
            raise GraphError(PATH, f"it defines {len(found)} composers, not one: {_ASYNC_RUN}")
        inputs, outputs = (_literal(found[0], name) for name in ("inputs", "outputs"))
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise GraphError(PATH, f"{where}{error.msg}") from None
    except (RecursionError, MemoryError):
        raise GraphError(PATH, "it is nested too deeply to be read") from None
    except ValueError as error:
        if isinstance(error, GraphError):
            raise
        raise GraphError(PATH, f"it cannot be read: {error}") from None
    return Declared(found[0].name, declared_signature(inputs, outputs, PATH))


def declared_signature(inputs: object, outputs: object, path: str) -> Signature:
    """Return what a composer says it takes and gives: texts like ``FP32[-1, 4]``, a row's own shape, by name.

    Raises:
        GraphError: they are something else.
    """
    return Signature(_tensors(inputs, "inputs", path), _tensors(outputs, "outputs", path), frozenset(), frozenset())


def _runs(each: ast.ClassDef) -> bool:
    return any(isinstance(part, ast.AsyncFunctionDef) and part.name == "run" for part in each.body)


def _literal(of: ast.ClassDef, name: str) -> object:
    for part in of.body:
        if isinstance(part, ast.Assign | ast.AnnAssign) and part.value is not None and _assigns(part, name):
            try:
                return ast.literal_eval(part.value)
            except ValueError:
                raise GraphError(PATH, f"line {part.lineno}: {of.name}.{name} is to be written out") from None
    raise GraphError(PATH, f"{of.name} has no `{name}`: {_ASYNC_RUN}")


def _assigns(part: ast.Assign | ast.AnnAssign, name: str) -> bool:
    targets = part.targets if isinstance(part, ast.Assign) else [part.target]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def _tensors(given: object, what: str, path: str) -> Mapping[str, Tensor]:
    if not isinstance(given, Mapping) or not given or not all(isinstance(name, str) and name for name in given):
        raise GraphError(path, f"`{what}` is to be a dict of tensors by name, not {given!r:.80}")
    return {name: _tensor(text, f"{what}[{name!r}]", path) for name, text in given.items()}


def _tensor(text: object, what: str, path: str) -> Tensor:
    match = _TENSOR.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[1] not in CODES:
        raise GraphError(path, f"`{what}` is to be a datatype and a row's shape, as in 'FP32[-1, 4]', not {text!r:.80}")
    return Tensor(match[1], tuple(map(int, match[2].split(","))) if match[2] else (), {})
