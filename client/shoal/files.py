"""Files as items: what a path or an open file holds, read when it is about to be sent."""

import sys
from argparse import Namespace
from collections.abc import Mapping
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from shoal.errors import InvalidInput

NUMPY_SUFFIXES = (".npy", ".npz")


def given_item(options: Namespace, file: str | Path | None) -> Any:
    """Return the item that a command was given: ``--text``, ``--data``, or a file, ``-`` being standard input."""
    if options.text is not None:
        return options.text
    if options.data is not None:
        return parse_json(options.data, "--data")
    return None if file is None else sys.stdin.buffer.read() if file == "-" else load(Path(file))


def load(path: Path) -> Any:
    """Return the item in a file: arrays of ``.npy`` and ``.npz``, the value of ``.json``, the bytes of any other.

    Raises:
        InvalidInput: it cannot be read, or does not hold what its name says.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error
    return parse(data, path)


def parse(data: bytes, path: Path) -> Any:
    """Return the item that the bytes of a file stand for, as :func:`load` does; pickles are refused."""
    suffix = path.suffix.lower()
    if suffix not in NUMPY_SUFFIXES:
        return parse_json(data, str(path)) if suffix == ".json" else data
    try:
        loaded = np.load(BytesIO(data), allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else dict(loaded)
    except (ValueError, OSError, EOFError) as error:
        raise InvalidInput(f"{path} is not a numpy file: {error}") from error


def parse_json(text: str | bytes, source: str) -> Any:
    """Return a JSON value; the error names ``source``."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{source} is not JSON: {error}") from error


def plain(item: Any) -> Any:
    """Return an item with each path and each open file in it replaced by what it holds."""
    if isinstance(item, PathLike):
        return load(Path(item))
    if callable(getattr(item, "read", None)):
        return _read(item)
    if isinstance(item, Mapping):
        return {name: plain(value) for name, value in item.items()}
    # Long lists of numbers are passed over at the price of a look at their types.
    if isinstance(item, list | tuple) and any(
        issubclass(kind, PathLike | Mapping | list | tuple) or hasattr(kind, "read") for kind in set(map(type, item))
    ):
        read = [plain(each) for each in item]
        named = getattr(type(item), "_make", None)  # a named tuple stays one
        return named(read) if named else read
    return item


def _read(file: Any) -> Any:
    try:
        data = file.read()
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read {getattr(file, 'name', 'the open file')}: {error}") from error
    if not data:
        name = getattr(file, "name", "the open file")
        raise InvalidInput(f"{name} is at its end: nothing is left to send; open it anew, or seek(0)")
    return data
