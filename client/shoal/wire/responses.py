"""Decode responses: output tensors, or the error for a status."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import orjson

from shoal import errors
from shoal.wire.datatypes import DATATYPES, decode, numpy_dtype, object_array
from shoal.wire.messages import HEADER_LENGTH, Response
from shoal.wire.signature import Signature, Tensor
from shoal_schema.interfaces.headers import EXECUTED, REQUEST_ID
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.row_errors import RowError, decode_row_errors

_BY_STATUS: dict[int, type[errors.ShoalError]] = {
    400: errors.InvalidInput,
    401: errors.NotAllowed,
    403: errors.NotAllowed,
    404: errors.NotFound,
    405: errors.NotFound,
    408: errors.DeadlineExceeded,
    413: errors.TooLarge,
    415: errors.InvalidInput,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.DeadlineExceeded,
}
ACCEPTED, NO_CONTENT = 202, 204
DEFAULT_RETRY_AFTER_S = 1.0
"""Pause after a 202 or 429 without ``Retry-After``, or with a date as its value."""


def single_result(response: Response, signature: Signature) -> Any:
    """Return the outputs of one item, without the batch dimension.

    If the model has one output, return its value instead of a dict.
    """
    if not signature.batches:
        return _simplified(_outputs(response, signature))
    return _simplified({name: rows[0] for name, rows in _rows(response, signature, 1).items()})


def accepted_id(response: Response) -> str:
    """Return the id of an asynchronous request from the response that accepts it.

    Raises:
        ShoalError: the server rejected the request, or ran it at once.
    """
    if response.status == 200:
        raise errors.ServerFailed(
            "the server ran the request at once: it accepts no asynchronous requests", status=200, may_have_run=True
        )
    if response.status != ACCEPTED:
        raise_for_status(response)
    job_id = response.headers.get("location", "").rpartition("/")[2]
    if not job_id:
        raise _broken(response, "status 202 without the location of the result")
    return job_id


def retry_after_s(response: Response) -> float:
    """Return the pause that the server requests; `DEFAULT_RETRY_AFTER_S` without a number of seconds."""
    wait = response.headers.get("retry-after", "")
    return float(wait) if wait.isdecimal() else DEFAULT_RETRY_AFTER_S


def batch_result(response: Response, signature: Signature, rows: int) -> Any:
    """Return the outputs of ``rows`` items, with the batch dimension first.

    If the model has one output, return its value instead of a dict.
    """
    return _simplified(_rows(response, signature, rows))


def partial_results(
    response: Response, signature: Signature, rows: int
) -> tuple[dict[str, Array], tuple[RowError, ...]]:
    """Return a runtime's outputs of the rows that succeeded, in order, and the errors of the other rows."""
    raise_for_status(response)
    try:
        parameters = _split(response)[0].get("parameters") or {}
        failed = decode_row_errors(orjson.loads(parameters.get("errors", "[]")))
        # Each row may fail once, and only rows of this batch.
        if len({each.row for each in failed if each.row < rows}) < len(failed):
            raise ValueError(f"errors of {[each.row for each in failed]} among {rows} rows")
    except (TypeError, ValueError, AttributeError) as error:
        raise _broken(response, f"{error!r}") from error
    return (_rows(response, signature, rows - len(failed)) if len(failed) < rows else {}), failed


def json_body(response: Response) -> Any:
    """Return the JSON value of a successful response.

    Raises:
        ShoalError: the status is not 200, or the body is not JSON.
    """
    raise_for_status(response)
    try:
        return orjson.loads(response.body)
    except orjson.JSONDecodeError as error:
        raise _broken(response, f"the body is not JSON: {error}") from error


def raise_for_status(response: Response) -> None:
    """Raise the error for the response's status; return when it is 200."""
    error = error_from(response)
    if error is not None:
        raise error


def error_from(response: Response) -> errors.ShoalError | None:
    """Return the error for the response's status; None when it is 200."""
    if response.status == 200:
        return None
    # The message and the failed rows, in the form of V2 or of TorchServe.
    rows: tuple[RowError, ...] = ()
    try:
        body = orjson.loads(response.body)
        found = body.get("error") or body.get("message") or body.get("detail")
    except (orjson.JSONDecodeError, AttributeError):
        text = response.body[:200].decode(errors="replace").strip()
        found = text.splitlines()[0] if text else None
    else:
        with suppress(ValueError):  # another server's `errors` may have any form; its message still counts
            rows = decode_row_errors(body.get("errors", []))
    message = str(found or f"the server returned {response.status}")
    facts: dict[str, Any] = {
        "status": response.status,
        "errors": rows,
        "request_id": response.headers.get(REQUEST_ID),
        "may_have_run": response.headers.get(EXECUTED) != "no",
    }
    if response.status == 429 or (response.status == 503 and response.headers.get("retry-after")):
        return errors.Overloaded(message, retry_after_s=retry_after_s(response), **facts)
    return _BY_STATUS.get(response.status, errors.ServerFailed)(message, **facts)


def _rows(response: Response, signature: Signature, rows: int) -> dict[str, Array]:
    outputs = _outputs(response, signature)
    batch_dims = {tensor.name: tensor.batch_dim for tensor in signature.outputs}
    for name, array in outputs.items():
        batch_dim = batch_dims.get(name, 0)
        if array.ndim <= batch_dim or array.shape[batch_dim] != rows:
            raise _broken(response, f"{rows} rows were sent, but {name} has shape {list(array.shape)}")
        # Clients see the batch dimension first, whatever the model's is.
        outputs[name] = np.moveaxis(array, batch_dim, 0)
    return outputs


def _simplified(outputs: Mapping[str, Any]) -> Any:
    return next(iter(outputs.values())) if len(outputs) == 1 else dict(outputs)


def _outputs(response: Response, signature: Signature) -> dict[str, Array]:
    raise_for_status(response)
    declared = {tensor.name: tensor for tensor in signature.outputs}
    try:
        header, tail = _split(response)
        found: dict[str, Array] = {}
        for output in header["outputs"]:
            array, tail = _tensor(output, tail)
            found[output["name"]] = _elements(array, declared.get(output["name"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _broken(response, f"{error!r}") from error
    if not found or tail:
        raise _broken(response, f"{len(found)} outputs, and {len(tail)} bytes that belong to no output")
    return found


def _split(response: Response) -> tuple[Any, bytes]:
    # Without the header the whole body is JSON.
    length = response.headers.get(HEADER_LENGTH)
    header_bytes = len(response.body) if length is None else int(length)
    if not 0 <= header_bytes <= len(response.body):
        raise ValueError(f"JSON header of {header_bytes} bytes in {len(response.body)}")
    return orjson.loads(response.body[:header_bytes]), response.body[header_bytes:]


def _tensor(output: Mapping[str, Any], tail: bytes) -> tuple[Array, bytes]:
    """Decode one output; return its array, and the binary data that follows it in ``tail``."""
    datatype, shape = str(output["datatype"]), tuple(int(n) for n in output["shape"])
    if datatype not in DATATYPES or min(shape, default=0) < 0:
        raise ValueError(f"output {output['name']}: datatype {datatype}, shape {list(shape)}")
    # V2 binary extension: the bytes of the outputs follow the JSON header, in order.
    size = (output.get("parameters") or {}).get("binary_data_size")
    if size is not None:
        if not 0 <= int(size) <= len(tail):
            raise ValueError(f"output {output['name']}: {size} bytes announced, {len(tail)} received")
        return decode(tail[: int(size)], datatype, shape), tail[int(size) :]
    if datatype == "BYTES":
        flat = [str(each).encode() for each in np.ravel(np.asarray(output["data"], dtype=object))]
        return object_array(flat, shape), tail
    return np.asarray(output["data"], dtype=numpy_dtype(datatype)).reshape(shape), tail


def _elements(array: Array, declared: Tensor | None) -> Array:
    """Decode BYTES elements to JSON values, texts or bytes, by the output's content type."""
    if array.dtype != object:
        return array
    # Without a declaration, text is assumed, and bytes that are not UTF-8 stay bytes.
    if declared is not None and declared.is_json:
        return object_array(map(orjson.loads, array.flat), array.shape)
    if declared is not None and declared.content_types not in ((), ("text/plain",)):
        return array
    try:
        return object_array((element.decode() for element in array.flat), array.shape)
    except UnicodeDecodeError:
        return array


def _broken(response: Response, reason: str) -> errors.ServerFailed:
    return errors.ServerFailed(
        f"the server's response violates the protocol: {reason}",
        status=response.status,
        request_id=response.headers.get(REQUEST_ID),
        may_have_run=True,
    )
