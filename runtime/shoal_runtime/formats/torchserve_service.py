"""Adapter that runs TorchServe's `handle(data, context)` as a Shoal handler.

Each request becomes a dict: the parts of a form by name, or the body as `body`. JSON is parsed and text decoded; other
data, and malformed JSON or text, is a bytearray.
"""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qsl

import orjson
import torch

from shoal_runtime.errors import ItemError
from shoal_runtime.formats.torchserve_context import Context, RequestProcessor
from shoal_runtime.signature.spec import ANY, TensorSpec
from shoal_schema.wire.carried_headers import REQUEST_HEADERS, RESPONSE_HEAD, checked_head

BODY: Final = "body"
HEADERS: Final = "headers"
HEAD: Final = "head"
INPUTS: Final = (
    TensorSpec(BODY, "BYTES", [ANY], content_type="*/*"),
    TensorSpec(HEADERS, "BYTES", [ANY], content_type="application/json", optional=True, carries=REQUEST_HEADERS),
)
OUTPUTS: Final = (
    TensorSpec(BODY, "BYTES", [ANY]),
    TensorSpec(HEAD, "BYTES", [ANY], content_type="application/json", carries=RESPONSE_HEAD),
)

Handle = Callable[[Any, Context], Any]


class Service:
    """Shoal handler that runs batches through a TorchServe handler."""

    def __init__(self, handle: Handle, context: Context) -> None:
        self._handle = handle
        self._context = context

    def forward(self, batch: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Run a batch through the TorchServe handler.

        Returns:
            For each row, the body, status and headers of its response, or an `ItemError`.
        """
        # Requests with a malformed body never reach the handler.
        rows: list[Any] = [_row_of(item) for item in batch]
        good = [row for row in rows if not isinstance(row, ItemError)]
        if not good:
            return rows
        data, processors = [data for data, _ in good], [processor for _, processor in good]
        self._context.take(processors)
        try:
            results = self._handle(data, self._context)
        except Exception as error:
            # With one request the error is that request's; with several, the proxy isolates the one that causes it.
            # A RuntimeError with a code comes from the device.
            own = len(data) == 1 and not isinstance(error, RuntimeError)
            if not own or not isinstance(status := getattr(error, "error_code", None), int):
                raise
            failed = ItemError(str(getattr(error, "message", error)), status)
            return [row if isinstance(row, ItemError) else failed for row in rows]
        if not isinstance(results, list):
            raise TypeError(f"handle must return a list with one item per request, not a {type(results).__name__}")
        if len(results) != len(data):
            raise ValueError(f"handle returned {len(results)} items for {len(data)} requests")
        outputs = (_encoded(result, processor) for result, processor in zip(results, processors, strict=True))
        return [row if isinstance(row, ItemError) else next(outputs) for row in rows]


def _row_of(item: Any) -> tuple[dict[str, Any], RequestProcessor] | ItemError:
    """Return the data and headers of one request, or an error for a malformed body."""
    headers, body = item.get(HEADERS) or {}, item[BODY]
    if not isinstance(headers, dict):
        return ItemError(f"input {HEADERS} must be a JSON object of headers")
    content_type = str(headers.get("content-type", ""))
    kind = content_type.partition(";")[0].strip().lower()
    try:
        if kind == "multipart/form-data":
            from shoal_schema.wire.multipart import form_parts  # noqa: PLC0415 (only forms require python-multipart)

            form = form_parts(body, content_type.encode("latin-1"))
            parts = [(part.name, part.media_type, part.data) for part in form]
        elif kind == "application/x-www-form-urlencoded":
            # As TorchServe decodes forms; latin-1 keeps any byte.
            fields = parse_qsl(body.decode("latin-1"), keep_blank_values=True, encoding="latin-1", max_num_fields=128)
            parts = [(name, "", value.encode("latin-1")) for name, value in fields]
        else:
            parts = [(BODY, kind, body)]
    except ValueError as error:
        return ItemError(str(error))
    # Handlers may query the media type of each part.
    known = {name: {"content-type": media_type} for name, media_type, _ in parts}
    data: dict[str, Any] = {}
    for name, media_type, value in parts:
        data[name] = bytearray(value)
        # A malformed value reaches the handler as bytes.
        with suppress(ValueError, RecursionError):
            if media_type == "application/json":
                data[name] = json.loads(value)
            elif media_type.startswith("text"):
                data[name] = value.decode()
    return data, RequestProcessor(headers, known)


def _encoded(result: Any, processor: RequestProcessor) -> dict[str, Any] | ItemError:
    """Encode one row's result; values other than text, bytes and tensors become JSON."""
    try:
        content_type = "application/octet-stream"
        if isinstance(result, bytes | bytearray):
            body = bytes(result)
        elif isinstance(result, str):
            body, content_type = result.encode(), "text/plain; charset=utf-8"
        elif isinstance(result, torch.Tensor):
            file = io.BytesIO()
            torch.save(result, file)
            body = file.getvalue()
        else:
            content_type = "application/json"
            try:
                body = json.dumps(result, indent=2, allow_nan=False).encode()
            except ValueError:
                # NaN and infinities become null, as in responses of all other models.
                body = orjson.dumps(result, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
        headers = {"content-type": content_type}
        for name, value in processor.get_response_headers().items():
            headers[name.lower()] = value
        head = checked_head(processor.get_response_status_code(), headers)
    except (TypeError, ValueError, RecursionError) as error:
        return ItemError(f"the handler's result cannot be encoded: {error}", 500)
    return {BODY: body, HEAD: {"status": head.status, "headers": head.headers}}
