"""Conversion of one row's outputs, as a handler returns them, to wire arrays.

Python scalars, str, bytes, lists, arrays and tensors are cast to the declared datatype; a fraction never becomes an
integer. An output of content type application/json holds any JSON value.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from shoal_runtime.batches.ragged import pad_ragged
from shoal_runtime.errors import ForwardFailed, RaggedRows
from shoal_runtime.signature.spec import TensorSpec, fits
from shoal_runtime.signature.tensors import Signature
from shoal_runtime.tensors.library import Library
from shoal_runtime.tensors.numpy_tensors import castable, lost, refuse_hidden
from shoal_schema.wire.datatypes import DTYPES, Array, bfloat16_to_float32, float32_to_bfloat16
from shoal_schema.wire.elements import object_array


def row_outputs(value: Any, signature: Signature, library: Library) -> dict[str, Array]:
    """Convert the outputs of one row to arrays of their declared datatypes.

    Raises:
        ValueError: an output is missing, or cannot be cast without loss.
    """
    if len(signature.outputs) == 1:
        spec = signature.outputs[0]
        named = isinstance(value, dict) and spec.name in value and not is_json(spec)
        return {spec.name: row_array(value[spec.name] if named else value, spec, library)}
    if not isinstance(value, dict):
        raise ValueError(f"a row must be a dict of outputs, not {type(value).__name__}")
    missing = [spec.name for spec in signature.outputs if spec.name not in value]
    if missing:
        raise ValueError(f"output {missing[0]} is missing")
    return {spec.name: row_array(value[spec.name], spec, library) for spec in signature.outputs}


def row_array(value: Any, spec: TensorSpec, library: Library) -> Array:
    """Convert one output of one row to an array of the declared datatype and row shape.

    Raises:
        ValueError: the value does not fit the declaration.
    """
    value = library.readable(value)
    if spec.datatype == "BYTES":
        elements, shape, rank = [value], [], len(spec.row_shape)
        # One level of lists for each dimension of a row; the levels below belong to elements in JSON.
        for _ in range(rank):
            if not all(isinstance(element, list | tuple | np.ndarray) for element in elements):
                raise ValueError(f"a row of output {spec.name} requires {rank} levels of lists")
            sizes = {len(element) for element in elements}
            if len(sizes) > 1:
                raise ValueError(f"a row of output {spec.name} has ragged lists")
            shape.append(sizes.pop() if sizes else 0)
            elements = [inner for element in elements for inner in element]
        encode = _json_element if is_json(spec) else _text_element
        array = object_array([encode(element, spec) for element in elements], tuple(shape))
    else:
        array = _numeric_array(value, spec)
    if not fits(array.shape, spec.row_shape):
        raise ValueError(
            f"a row of output {spec.name} has shape {list(array.shape)}; the signature declares {list(spec.row_shape)}"
        )
    return array


def stack_rows(
    rows: Sequence[Mapping[str, Array]], signature: Signature, lengths: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Stack the outputs of rows along each output's batch dimension; without rows, return no outputs.

    Args:
        rows: outputs by name, one dict per row.
        signature: the model's signature.
        lengths: length of each row along `unpad_axis` in the response, by output, where known.

    Raises:
        RaggedRows: rows of one output have different shapes.
    """
    stacked: dict[str, Array] = {}
    for spec in signature.outputs if rows else ():
        arrays: Sequence[Array] | None = [row[spec.name] for row in rows]
        shapes = {row[spec.name].shape for row in rows}
        if len(shapes) > 1:
            own = (lengths or {}).get(spec.name)
            arrays = pad_ragged([row[spec.name] for row in rows], spec, own) if own is not None else None
        if arrays is None:
            raise RaggedRows(
                f"rows of output {spec.name} have different shapes: {sorted(map(list, shapes))}."
                " Pad them in postprocess, or declare the output as BYTES of application/json"
            )
        stacked[spec.name] = np.stack(arrays, axis=spec.batch_dim).astype(DTYPES[spec.datatype], copy=False)
    return stacked


def _numeric_array(value: Any, spec: TensorSpec) -> Array:
    # BF16 is computed as float32, and its bits travel as uint16.
    wanted = np.dtype(np.float32) if spec.datatype == "BF16" else DTYPES[spec.datatype]
    refuse_hidden(value)
    array = np.asarray(value)
    if array.dtype.kind == "f" and wanted.kind in "iu" and not isinstance(value, np.ndarray | np.generic):
        # numpy makes floats of Python integers beside one above 2**63; as objects they stay exact.
        exact = np.asarray(value, dtype=object)
        array = exact if exact.size and set(map(type, exact.flat)) == {int} else array
    if not castable(array, wanted):
        first = f", such as {array.flat[0]}" if array.dtype.kind in "bfc" else ""
        raise ValueError(f"output {spec.name} is {spec.datatype}; the value is {array.dtype}{first}")
    if array.dtype == wanted and spec.datatype != "BF16":
        return array
    try:
        with np.errstate(over="ignore"):
            cast = array.astype(wanted, copy=False)
    except OverflowError as error:
        raise ValueError(f"output {spec.name} is {spec.datatype}, which cannot hold the value: {error}") from None
    bits = float32_to_bfloat16(cast) if spec.datatype == "BF16" else cast
    misfits = lost(array, bfloat16_to_float32(bits) if spec.datatype == "BF16" else cast)
    if misfits.any():
        number = array.reshape(-1)[int(misfits.reshape(-1).argmax())]
        raise ValueError(f"output {spec.name} is {spec.datatype}, which cannot hold {number}")
    return bits


def text_array(array: Array, spec: TensorSpec) -> Array:
    """Encode an array of texts, bytes or JSON values as a wire array.

    Raises:
        ForwardFailed: an element has another type.
    """
    encode = _json_element if is_json(spec) else _text_element
    try:
        return object_array([encode(element, spec) for element in array.ravel().tolist()], array.shape)
    except ValueError as error:
        raise ForwardFailed(str(error)) from None


def _json_element(element: Any, spec: TensorSpec) -> bytes:
    try:
        return orjson.dumps(element, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise ValueError(f"output {spec.name} cannot be encoded as JSON: {error}") from None


def _text_element(element: Any, spec: TensorSpec) -> bytes:
    # Handlers may return a numpy text without dimensions.
    if isinstance(element, np.ndarray) and element.ndim == 0:
        element = element.item()
    if isinstance(element, str):
        return element.encode()
    if isinstance(element, bytes | bytearray | memoryview):
        return bytes(element)
    raise ValueError(f"output {spec.name} is BYTES; the value is {type(element).__name__}")


def is_json(spec: TensorSpec) -> bool:
    """Return whether each element of a tensor is a JSON value, by its content type."""
    return "application/json" in spec.media_types
