"""The first request: a curl line and a ``shoal predict`` line that fit a model's signature."""

import shlex
from collections.abc import Collection
from math import prod
from typing import Any
from urllib.parse import quote

import orjson

from shoal.wire.signature import Signature, Tensor

# A request with more numbers than this is made by a program, not typed.
TYPED_NUMBERS = 64
SAMPLE_LENGTH = 3
SAMPLE_TEXT = "a small fish among many"
SAMPLE_DATE = "2024-01-31T12:00:00"
SAMPLE_FILES = {"image/jpeg": "picture.jpg", "image/png": "picture.png"}


def first_requests(
    url: str,
    signature: Signature,
    files: Collection[str] = (),
    *,
    among_others: bool = False,
    certificate: str = "",
) -> tuple[str, str]:
    """Return a curl line and a shoal line, each a whole command for a shell; what a model calls its inputs is quoted.

    Args:
        url: the server's.
        signature: the model's.
        files: paths that are there, one of which may be an item to send.
        among_others: other models share the server.
        certificate: file of the server's own, whom a caller on this machine may trust; empty without TLS.
    """
    curl, command = _first_requests(url, signature, files, among_others=among_others)
    if not certificate:
        return curl, command
    file = shlex.quote(certificate)
    return curl.replace("curl", f"curl --cacert {file}", 1), command.replace(
        " predict", f" predict --ca-file {file}", 1
    )


def _first_requests(url: str, signature: Signature, files: Collection[str], *, among_others: bool) -> tuple[str, str]:
    server = f"{url} --model {signature.name}" if among_others else url
    required = [tensor for tensor in signature.inputs if not tensor.optional]
    only = required[0] if len(required) == 1 else None
    if only and only.datatype == "BYTES" and not set(only.content_types) <= {"text/plain", "application/json"}:
        return _file_requests(url, server, signature, only, files)
    if any(prod(_sample_shape(tensor, signature)) > TYPED_NUMBERS for tensor in required):
        return _made_requests(url, server, signature, required)
    values: dict[str, Any] = {}
    for tensor in required:
        columns = dict.fromkeys(tensor.columns if signature.batches else (), _element(tensor))
        values |= columns or {tensor.name: _filled(_sample_shape(tensor, signature), _element(tensor))}
    row = values[only.name] if only and list(values) == [only.name] and not only.columns else values
    return _curl(url, signature, f"-d {_quoted({'instances': [row]})}"), _shoal(server, row)


def _file_requests(
    url: str, server: str, signature: Signature, tensor: Tensor, files: Collection[str]
) -> tuple[str, str]:
    media_type = tensor.content_types[0]
    name = SAMPLE_FILES.get(media_type, "FILE")
    file = shlex.quote(next((path for path in files if path.rpartition("/")[2] == name), name))
    path = f"{url}/predictions/{quote(signature.name, safe='')}"
    if media_type == "*/*":
        return f"curl -T {file} {path}", f"shoal predict {server} {file}"
    curl = f"curl -H {shlex.quote(f'Content-Type: {media_type}')} --data-binary @{file} {path}"
    return curl, f"shoal predict {server} {file}"


def _made_requests(url: str, server: str, signature: Signature, required: list[Tensor]) -> tuple[str, str]:
    arrays = [f"numpy.full({_sample_shape(each, signature)}, {_element(each)!r}).tolist()" for each in required]
    row = arrays[0]
    if len(arrays) > 1:
        pairs = zip(required, arrays, strict=True)
        row = "{" + ", ".join(f"{orjson.dumps(each.name).decode()}: {array}" for each, array in pairs) + "}"
    program = f'import json, numpy; print(json.dumps({{"instances": [{row}]}}))'
    file = "item.npy" if len(arrays) == 1 else "item.npz"
    return (
        f"python -c {shlex.quote(program)} | {_curl(url, signature, '-d @-')}",
        f"shoal predict {server} {file}",
    )


def _curl(url: str, signature: Signature, body: str) -> str:
    path = f"{url}/v1/models/{quote(signature.name, safe='')}:predict"
    return f"curl -H 'Content-Type: application/json' {body} {path}"


def _shoal(server: str, row: Any) -> str:
    if isinstance(row, str):
        return f"shoal predict {server} --text {shlex.quote(row)}"
    return f"shoal predict {server} --data {_quoted(row)}"


def _quoted(value: Any) -> str:
    return shlex.quote(orjson.dumps(value).decode())


def _sample_shape(tensor: Tensor, signature: Signature) -> tuple[int, ...]:
    return tuple(SAMPLE_LENGTH if n < 0 else n for n in signature.row_shape(tensor))


def _element(tensor: Tensor) -> Any:
    if tensor.datatype == "BYTES":
        text = SAMPLE_DATE if tensor.logical_type == "datetime" else SAMPLE_TEXT
        return {} if tensor.is_json else tensor.example or text
    if tensor.datatype == "BOOL":
        return True
    return 1 if "INT" in tensor.datatype else 0.5


def _filled(shape: tuple[int, ...], element: Any) -> Any:
    return [_filled(shape[1:], element)] * shape[0] if shape else element
