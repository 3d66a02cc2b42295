"""One row's outputs, as handlers return them, to wire arrays.

Python scalars, str, bytes, lists, arrays and tensors are cast to the declared datatype, never with a loss of kind (no
fraction becomes an integer). An output whose content type is application/json takes any value that JSON has.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from shoal_runtime.batches.ragged import pad_ragged
from shoal_runtime.errors import ForwardFailed, RaggedRows
from shoal_runtime.handlers.signature import Signature
from shoal_runtime.handlers.spec import TensorSpec, fits
from shoal_runtime.tensors.library import Library
from shoal_runtime.tensors.numpy_tensors import castable, lost, refuse_hidden
from shoal_schema.wire.datatypes import DTYPES, Array, bfloat16_to_float32, float32_to_bfloat16
from shoal_schema.wire.elements import object_array


def row_outputs(value: Any, signature: Signature, library: Library) -> dict[str, Array]:
    """Return one row's outputs in their wire datatypes.

    Raises:
        ValueError: an output is missing, or cannot be cast without loss.
    """
    if len(signature.outputs) == 1:
        spec = signature.outputs[0]
        named = isinstance(value, dict) and spec.name in value and not is_json(spec)
        return {spec.name: row_array(value[spec.name] if named else value, spec, library)}
    if not isinstance(value, dict):
        raise ValueError(f"a row needs a dict of outputs, not {type(value).__name__}")
    missing = [spec.name for spec in signature.outputs if spec.name not in value]
    if missing:
        raise ValueError(f"output {missing[0]} is missing")
    return {spec.name: row_array(value[spec.name], spec, library) for spec in signature.outputs}


def row_array(value: Any, spec: TensorSpec, library: Library) -> Array:
    """Return one row's value in the output's datatype and shape, without the batch dimension.

    Raises:
        ValueError: it does not fit.
    """
    value = library.readable(value)
    array = _bytes_array(value, spec) if spec.datatype == "BYTES" else _numeric_array(value, spec)
    if not fits(array.shape, spec.row_shape):
        raise ValueError(
            f"a row of output {spec.name} has shape {list(array.shape)}; the signature says {list(spec.row_shape)}"
        )
    return array


def stack_rows(
    rows: Sequence[Mapping[str, Array]], signature: Signature, lengths: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Stack the rows' outputs along each output's batch dimension; no rows make no outputs.

    ``lengths`` are, by output, what its `unpad_axis` leaves of each row, where that is known.

    Raises:
        RaggedRows: rows of one output have different shapes.
    """
    if not rows:
        return {}
    known = lengths or {}
    return {
        spec.name: _stack([row[spec.name] for row in rows], spec, known.get(spec.name)) for spec in signature.outputs
    }


def _stack(arrays: Sequence[Array], spec: TensorSpec, lengths: Array | None) -> Array:
    shapes = {array.shape for array in arrays}
    alike: Sequence[Array] | None = arrays
    if len(shapes) > 1:
        alike = pad_ragged(arrays, spec, lengths) if lengths is not None else None
    if alike is None:
        raise RaggedRows(
            f"rows of output {spec.name} have shapes {sorted(map(list, shapes))}, which make no tensor:"
            " let postprocess pad them, or declare the output as BYTES of application/json"
        )
    return np.stack(alike, axis=spec.batch_dim).astype(DTYPES[spec.datatype], copy=False)


def _numeric_array(value: Any, spec: TensorSpec) -> Array:
    wanted = np.dtype(np.float32) if spec.datatype == "BF16" else DTYPES[spec.datatype]
    array = _exact(value, wanted)
    if not castable(array, wanted):
        some = f", such as {array.flat[0]}" if array.dtype.kind in "bfc" else ""
        raise ValueError(f"output {spec.name} is {spec.datatype} and got {array.dtype} values{some}")
    if array.dtype == wanted and spec.datatype != "BF16":
        return array
    try:
        with np.errstate(over="ignore"):
            cast = array.astype(wanted, copy=False)
    except OverflowError as error:
        raise ValueError(f"output {spec.name} is {spec.datatype}, which does not hold its numbers: {error}") from None
    bits = float32_to_bfloat16(cast) if spec.datatype == "BF16" else cast
    misfits = lost(array, bfloat16_to_float32(bits) if spec.datatype == "BF16" else cast)
    if misfits.any():
        number = array.reshape(-1)[int(misfits.reshape(-1).argmax())]
        raise ValueError(f"output {spec.name} is {spec.datatype}, which does not hold {number}")
    return bits


def _exact(value: Any, wanted: np.dtype[Any]) -> Array:
    """Return numbers as numpy sees them; Python's own integers stay exact beside one above 2**63."""
    refuse_hidden(value)
    array = np.asarray(value)
    if array.dtype.kind != "f" or wanted.kind not in "iu" or isinstance(value, np.ndarray | np.generic):
        return array
    exact = np.asarray(value, dtype=object)
    return exact if exact.size and set(map(type, exact.flat)) == {int} else array


def text_array(array: Array, spec: TensorSpec) -> Array:
    """Return a batch of texts, bytes or JSON values as a wire array.

    Raises:
        ForwardFailed: an element is neither.
    """
    encode = _json_element if is_json(spec) else _text_element
    try:
        return object_array([encode(element, spec) for element in array.ravel().tolist()], array.shape)
    except ValueError as error:
        raise ForwardFailed(str(error)) from None


def _bytes_array(value: Any, spec: TensorSpec) -> Array:
    elements, shape = _leaves(value, len(spec.row_shape), spec)
    encode = _json_element if is_json(spec) else _text_element
    return object_array([encode(element, spec) for element in elements], shape)


def _leaves(value: Any, rank: int, spec: TensorSpec) -> tuple[list[Any], tuple[int, ...]]:
    """Open `rank` levels of lists; what lies below is an element, a list too when it is JSON."""
    elements, shape = [value], []
    for _ in range(rank):
        if not all(isinstance(element, list | tuple | np.ndarray) for element in elements):
            raise ValueError(f"a row of output {spec.name} needs {rank} levels of lists")
        sizes = {len(element) for element in elements}
        if len(sizes) > 1:
            raise ValueError(f"a row of output {spec.name} has ragged lists")
        shape.append(sizes.pop() if sizes else 0)
        elements = [inner for element in elements for inner in element]
    return elements, tuple(shape)


def _json_element(element: Any, spec: TensorSpec) -> bytes:
    try:
        return orjson.dumps(element, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise ValueError(f"output {spec.name} cannot be written as JSON: {error}") from None


def _text_element(element: Any, spec: TensorSpec) -> bytes:
    if isinstance(element, np.ndarray) and element.ndim == 0:
        element = element.item()
    if isinstance(element, str):
        return element.encode()
    if isinstance(element, bytes | bytearray | memoryview):
        return bytes(element)
    raise ValueError(f"output {spec.name} is BYTES and got {type(element).__name__}")


def is_json(spec: TensorSpec) -> bool:
    """Return whether each element of a tensor is one JSON value."""
    return "application/json" in spec.media_types
