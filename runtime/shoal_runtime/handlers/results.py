"""Checks of the result of `forward`; its division into outputs or rows.

tensor, array              the only output
dict of tensors, arrays    outputs by name
list                       one result per row; if it is an exception, that row fails
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal_runtime.errors import ForwardFailed, WrongRows, WrongShape
from shoal_runtime.signature.spec import fits
from shoal_runtime.signature.tensors import Signature
from shoal_runtime.tensors.library import Library, Tensor
from shoal_schema.wire.datatypes import Array


def named_outputs(result: Any, signature: Signature, library: Library) -> dict[str, Tensor | Array]:
    """Return a result's tensors by output name, for a handler without `postprocess`.

    Raises:
        ForwardFailed: an output is missing, or not a tensor.
    """
    if not isinstance(result, dict):
        if len(signature.outputs) != 1:
            names = ", ".join(spec.name for spec in signature.outputs)
            raise ForwardFailed(f"forward returned {type(result).__name__}; outputs {names} require a dict")
        result = {signature.outputs[0].name: result}
    outputs = {}
    for spec in signature.outputs:
        value = result.get(spec.name)
        if not isinstance(value, np.ndarray) and not library.is_tensor(value):
            what = type(value).__name__ if spec.name in result else "nothing"
            raise ForwardFailed(f"forward returned {what} for output {spec.name}; expected a tensor")
        outputs[spec.name] = value
    return outputs


def undeclared(value: Any, signature: Signature) -> str | None:
    """Return an error message if a result has outputs that the signature does not declare, else None."""
    if not isinstance(value, dict):
        return None
    names = {spec.name for spec in signature.outputs}
    extra = ", ".join(str(name) for name in value if name not in names)
    return f"output {extra} is not declared in the signature" if extra else None


def take_rows(outputs: Mapping[str, Array], signature: Signature, *, given: int, kept: int) -> dict[str, Array]:
    """Remove padding from outputs: cut `given` rows to the first `kept` rows.

    Raises:
        WrongRows: an output has another number of rows.
        WrongShape: an output differs from its declared shape.
    """
    cut = {}
    for spec in signature.outputs:
        array, dim = outputs[spec.name], spec.batch_dim
        if array.ndim <= dim:
            shape = list(array.shape)
            raise WrongRows(f"output {spec.name} has shape {shape}, without rows, for a batch of {given}")
        # An array of another rank fails the check of the shape below.
        if array.ndim == len(spec.shape):
            check_rows(array.shape[dim], given, spec.name)
            if kept != given:
                array = array[(slice(None),) * dim + (slice(kept),)]
        if not fits(array.shape, spec.shape):
            raise WrongShape(
                f"output {spec.name} has shape {list(array.shape)}; the signature declares {list(spec.shape)}"
            )
        cut[spec.name] = array
    return cut


def check_rows(got: int, given: int, what: str) -> None:
    """Raise WrongRows if the model returned another number of rows than it received."""
    if got != given:
        raise WrongRows(f"forward returned {got} rows of {what} for a batch of {given}")


def check_result_rows(result: Any, given: int, signature: Signature) -> None:
    """Check that every output of a result has as many rows as the batch.

    Raises:
        WrongRows: an output has another number of rows.
        ForwardFailed: an output has no rows.
    """
    # Names that `postprocess` alone reads are not in the signature; their rows are along the first dimension.
    dims = {spec.name: spec.batch_dim for spec in signature.outputs}
    named = result if isinstance(result, dict) else {"results": result}
    for name, value in named.items():
        dim = dims.get(name, 0)
        if isinstance(value, list):
            check_rows(len(value), given, name)
        elif isinstance(value, np.ndarray) and value.ndim > dim:
            check_rows(value.shape[dim], given, name)
        else:
            raise ForwardFailed(f"forward returned {type(value).__name__} for {name}; expected rows")


def split_rows(result: Any, rows: int, signature: Signature) -> list[Any]:
    """Return the first ``rows`` rows of a result, one value per row.

    Each value is an element of an array, or a dict of elements by output name.
    """
    if not isinstance(result, dict):
        return [result[row] for row in range(rows)]
    dims = {spec.name: spec.batch_dim for spec in signature.outputs if spec.batch_dim}
    return [
        {name: np.take(value, row, dims[name]) if name in dims else value[row] for name, value in result.items()}
        for row in range(rows)
    ]
