"""External data of ONNX models: weights in other files, which may be behind symbolic links.

onnxruntime rejects a data file whose resolved path is outside the model's directory, as in the Hugging Face cache and
in ConfigMaps. Links are set by the user who created the directory, so they are followed here. The locations are set by
the model file, so absolute locations and locations with `..` are rejected.
"""

import mmap
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from shoal_runtime.errors import LoadError

MAX_LINKS: Final = 40
"""Consecutive links, as in Linux."""
MAX_DEPTH: Final = 100
"""Nesting of protobuf messages, as in protobuf."""

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
"""Messages of onnx.proto that lead to external data: message types by field number."""
_KEY, _VALUE = 1, 2
_LENGTH_DELIMITED: Final = 2
_FIXED: Final = {1: 8, 5: 4}
"""Size in bytes of the wire types with fixed size."""


def locations(path: Path) -> list[str]:
    """Return the distinct external data locations in an ONNX file.

    Raises:
        ValueError: the file is not a protobuf message.
    """
    if not path.stat().st_size:
        return []
    # Mapped, since a model of many gigabytes is searched for a few names.
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return list(dict.fromkeys(_found(data, 0, len(data), "model", 0)))


def linked_files(path: Path) -> dict[str, Path]:
    """Return the file of each external data location of a model.

    If the model's path is a link, the directory of each link in the chain is tried in order.

    Raises:
        LoadError: a location is outside the directory, or a file is missing.
    """
    try:
        named = locations(path)
    except ValueError:
        return {}
    for location in named:
        if location.startswith("/") or ".." in PurePosixPath(location).parts or "\0" in location:
            raise LoadError(
                f"{path.name} has external data at {location!r}, outside its directory."
                " Save the model again with its data beside it"
            )
    # The directory of the path, and of each link behind it.
    directories, link = [path.parent], path
    while link.is_symlink() and len(directories) <= MAX_LINKS:
        link = link.parent / os.readlink(link)
        directories.append(link.parent)
    for directory in directories:
        if all(os.path.isfile(directory / location) for location in named):
            return {location: directory / location for location in named}
    absent = next(location for location in named if not os.path.isfile(path.parent / location))
    target = f" (a link to {os.readlink(path)})" if path.is_symlink() else ""
    raise LoadError(
        f"{path.name}{target} has external data {absent}, which is not in {path.parent}. Copy it there"
        f" (cp -L {shlex.quote(absent)} {shlex.quote(str(path.parent))}), or serve the directory that holds both"
    )


def mapped(files: Mapping[str, Path]) -> tuple[list[str], list[mmap.mmap | bytes], list[int]]:
    """Map files into memory as arguments of `add_external_initializers_from_files_in_memory`.

    Returns: Names, contents and sizes.

    Raises:
        LoadError: a file cannot be read.
    """
    contents: list[mmap.mmap | bytes] = []
    for path in files.values():
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                # An empty file cannot be mapped.
                contents.append(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")
        except OSError as error:
            raise LoadError(f"external data {os.path.realpath(path)} cannot be read: {error.strerror}") from None
    return list(files), contents, [len(content) for content in contents]


def _found(data: mmap.mmap, start: int, end: int, kind: str, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        raise ValueError("messages are nested too deeply")
    inner = _INNER[kind]
    key = value = b""
    for number, first, last in _fields(data, start, end):
        if kind == "entry":
            key, value = (data[first:last], value) if number == _KEY else (key, data[first:last])
        elif number in inner:
            yield from _found(data, first, last, inner[number], depth + 1)
    # Only an entry sets the key.
    if key == b"location":
        yield value.decode()


def _fields(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each length-delimited field of a protobuf message."""
    while at < end:
        # A tag holds the number of the field and its wire type in the lowest 3 bits.
        tag, at = _varint(data, at, end)
        wire_type = tag & 7
        if wire_type == _LENGTH_DELIMITED:
            size, at = _varint(data, at, end)
            if size > end - at:
                raise ValueError("a field exceeds its message")
            yield tag >> 3, at, at + size
            at += size
        elif wire_type == 0:
            _, at = _varint(data, at, end)
        elif wire_type in _FIXED:
            at += _FIXED[wire_type]
        else:
            raise ValueError(f"unknown wire type {wire_type}")


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        # 7 bits per byte, lowest first; the highest bit marks that more follow.
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number is truncated")
