"""Weights of an ONNX graph in files of their own (external data), where links lead to them.

onnxruntime refuses a data file that lies, links resolved, outside the model's directory: among them files of the
Hugging Face cache, of ConfigMaps, and of several volumes. A link is the choice of the user who made the directory; a
location is the choice of the model file. Links are followed here; a location that is absolute or has `..` is refused.
"""

import mmap
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from shoal_runtime.errors import LoadError

MAX_LINKS: Final = 40
"""In a row, as Linux allows."""
MAX_DEPTH: Final = 100
"""Of protobuf messages within one another, as protobuf allows."""

_INNER: Final[Mapping[str, Mapping[int, str]]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
    "entry": {},
}
"""Messages of onnx.proto on the way to external data: the numbers of their fields, and the messages in these."""
_KEY, _VALUE = 1, 2
_LENGTH_DELIMITED: Final = 2
_FIXED: Final = {1: 8, 5: 4}
"""Bytes of the wire types of fixed size."""


def locations(path: Path) -> list[str]:
    """Return the locations of external data that an ONNX file names, each once.

    Raises:
        ValueError: the file is not a protobuf message.
    """
    if not path.stat().st_size:
        return []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return list(dict.fromkeys(_found(data, 0, len(data), "model", 0)))


def linked_files(path: Path) -> dict[str, Path]:
    """Return the files behind the locations of a model's external data, links followed.

    The model's own path may be a link: its directory and those of the links behind it are tried in turn.

    Raises:
        LoadError: a location leads out of the directory, or there is no file.
    """
    try:
        named = locations(path)
    except ValueError:
        return {}
    for location in named:
        if location.startswith("/") or ".." in PurePosixPath(location).parts or "\0" in location:
            raise LoadError(
                f"{path.name} names external data at {location!r}, outside its directory, which is refused: save the"
                " model again with its data beside it"
            )
    for directory in _directories(path):
        if all(os.path.isfile(directory / location) for location in named):
            return {location: directory / location for location in named}
    raise LoadError(_missing(path, named))


def mapped(files: Mapping[str, Path]) -> tuple[list[str], list[mmap.mmap | bytes], list[int]]:
    """Return names, contents and sizes of files as `add_external_initializers_from_files_in_memory` takes them.

    Raises:
        LoadError: a file cannot be read.
    """
    contents: list[mmap.mmap | bytes] = []
    for path in files.values():
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                contents.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
        except OSError as error:
            raise LoadError(f"{os.path.realpath(path)}, external data, cannot be read: {error.strerror}") from None
    return list(files), contents, [len(content) for content in contents]


def _directories(path: Path) -> list[Path]:
    """Return the directories of a path and of each link behind it."""
    found = [path.parent]
    while path.is_symlink() and len(found) <= MAX_LINKS:
        path = path.parent / os.readlink(path)
        found.append(path.parent)
    return found


def _missing(path: Path, named: Sequence[str]) -> str:
    lacking = next(location for location in named if not os.path.isfile(path.parent / location))
    target = f", a link to {os.readlink(path)}," if path.is_symlink() else ""
    return (
        f"{path.name}{target} names external data {lacking}, which is not in {path.parent}: copy it there"
        f" (cp -L {shlex.quote(lacking)} {shlex.quote(str(path.parent))}), or serve the directory that holds both"
    )


def _found(data: mmap.mmap, start: int, end: int, kind: str, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise ValueError("messages too deep within one another")
    inner = _INNER[kind]
    key = value = b""
    for number, first, last in _fields(data, start, end):
        if kind == "entry":
            key, value = (data[first:last], value) if number == _KEY else (key, data[first:last])
        elif number in inner:
            yield from _found(data, first, last, inner[number], depth + 1)
    if key == b"location":
        yield value.decode()


def _fields(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each length-delimited field of a message."""
    while at < end:
        tag, at = _varint(data, at, end)
        wire_type = tag & 7
        if wire_type == _LENGTH_DELIMITED:
            size, at = _varint(data, at, end)
            if size > end - at:
                raise ValueError("a field ends outside its message")
            yield tag >> 3, at, at + size
            at += size
        elif wire_type == 0:
            _, at = _varint(data, at, end)
        elif wire_type in _FIXED:
            at += _FIXED[wire_type]
        else:
            raise ValueError(f"wire type {wire_type}")


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number does not end")
