"""Parse the source of a composer, without running it.

A composer is a Python class that calls a graph's steps. The parser returns the class's name and signature.
"""

import ast
import re
from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from shoal_schema.graphs.errors import GraphError
from shoal_schema.graphs.tensors import Signature, Tensor
from shoal_schema.wire.codes import CODES

PATH = "composer.source"
_TENSOR = re.compile(r"([A-Z0-9]+)(?:\[((?:-1|\d{1,9})(?:, *(?:-1|\d{1,9}))*)\])?")
_ASYNC_RUN = "a composer is a class with `inputs`, `outputs` and `async def run(self, inputs, steps)`"


class DeclaredComposer(NamedTuple):
    """Name and signature of a composer, a class that calls a graph's steps."""

    name: str
    signature: Signature


class ComposerReport(Struct, frozen=True, omit_defaults=True):
    """Result of loading a composer, a class that calls a graph's steps.

    It holds the declared inputs and outputs. For a rejected composer, ``refused`` is the error of the field at
    ``path``.
    """

    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}
    path: str = ""
    refused: str = ""


def as_declared(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return tensors as texts in the notation of a composer's class, ``FP32[-1, 4]``."""
    return {name: str(tensor) for name, tensor in tensors.items()}


def read_source(source: str) -> DeclaredComposer:
    """Return the composer class of a source.

    Raises:
        GraphError: the source is not Python, or does not define exactly one composer.
    """
    try:
        module = ast.parse(source)
        found = [
            each
            for each in module.body
            if isinstance(each, ast.ClassDef)
            and any(isinstance(part, ast.AsyncFunctionDef) and part.name == "run" for part in each.body)
        ]
        if len(found) != 1:
            raise GraphError(PATH, f"defines {len(found)} composers, not one: {_ASYNC_RUN}")
        inputs, outputs = (_literal(found[0], name) for name in ("inputs", "outputs"))
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise GraphError(PATH, f"{where}{error.msg}") from None
    # Deep nesting exhausts the parser.
    except (RecursionError, MemoryError):
        raise GraphError(PATH, "is nested too deeply to be parsed") from None
    # Null bytes, or text that is not UTF-8.
    except ValueError as error:
        if isinstance(error, GraphError):
            raise
        raise GraphError(PATH, f"cannot be parsed: {error}") from None
    return DeclaredComposer(found[0].name, declared_signature(inputs, outputs, PATH))


def declared_signature(inputs: object, outputs: object, path: str) -> Signature:
    """Parse a composer's declarations: name -> datatype and shape of one row, such as ``FP32[-1, 4]``.

    Raises:
        GraphError: a declaration is malformed.
    """
    return Signature(_tensors(inputs, "inputs", path), _tensors(outputs, "outputs", path), frozenset(), frozenset())


def _literal(of: ast.ClassDef, name: str) -> object:
    for part in of.body:
        if not isinstance(part, ast.Assign | ast.AnnAssign) or part.value is None:
            continue
        targets = part.targets if isinstance(part, ast.Assign) else [part.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            try:
                # Literals only: the source is never run here.
                return ast.literal_eval(part.value)
            except ValueError:
                raise GraphError(PATH, f"line {part.lineno}: {of.name}.{name} must be a literal") from None
    raise GraphError(PATH, f"{of.name} has no `{name}`: {_ASYNC_RUN}")


def _tensors(given: object, what: str, path: str) -> Mapping[str, Tensor]:
    if not isinstance(given, Mapping) or not given or not all(isinstance(name, str) and name for name in given):
        raise GraphError(path, f"`{what}` must be a dict of tensors by name, not {given!r:.80}")
    tensors = {}
    for name, text in given.items():
        match = _TENSOR.fullmatch(text) if isinstance(text, str) else None
        if match is None or match[1] not in CODES:
            raise GraphError(
                path, f"`{what}[{name!r}]` must be a datatype and a row's shape, as in 'FP32[-1, 4]', not {text!r:.80}"
            )
        tensors[name] = Tensor(match[1], tuple(map(int, match[2].split(","))) if match[2] else (), {})
    return tensors
