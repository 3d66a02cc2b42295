"""Files as items: read the content of a path or an open file just before it is sent."""

import sys
from collections.abc import Mapping
from io import BytesIO
from os import PathLike
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson

from shoal.errors import InvalidInput

NUMPY_SUFFIXES = (".npy", ".npz")


def given_item(options: SimpleNamespace, file: str | Path | None) -> Any:
    """Return the item of a command: ``--text``, ``--data``, or a file (``-`` is standard input)."""
    if options.text is not None:
        return options.text
    if options.data is not None:
        return parse_json(options.data, "--data")
    return None if file is None else sys.stdin.buffer.read() if file == "-" else load(Path(file))


def load(path: Path) -> Any:
    """Return the item in a file: arrays of ``.npy`` and ``.npz``, the value of ``.json``, otherwise the bytes.

    Raises:
        InvalidInput: the file cannot be read, or does not match its suffix.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error
    return parse(data, path)


def parse(data: bytes, path: Path) -> Any:
    """Return the item in the bytes of a file, as :func:`load` does; pickles are rejected."""
    suffix = path.suffix.lower()
    if suffix not in NUMPY_SUFFIXES:
        return parse_json(data, str(path)) if suffix == ".json" else data
    try:
        loaded = np.load(BytesIO(data), allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else dict(loaded)
    except (ValueError, OSError, EOFError) as error:
        raise InvalidInput(f"{path} is not a numpy file: {error}") from error


def parse_json(text: str | bytes, source: str) -> Any:
    """Parse JSON; an error names ``source``, such as a file or an option."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"{source} is not JSON: {error}") from error


def plain(item: Any) -> Any:
    """Return an item with each path and each open file replaced by its content."""
    if isinstance(item, PathLike):
        return load(Path(item))
    if callable(getattr(item, "read", None)):
        file = getattr(item, "name", "the open file")
        try:
            data = item.read()
        except (OSError, ValueError) as error:
            raise InvalidInput(f"cannot read {file}: {error}") from error
        if not data:
            raise InvalidInput(f"{file} is at its end, so there is no data to send. Reopen it, or call seek(0)")
        return data
    if isinstance(item, Mapping):
        return {name: plain(value) for name, value in item.items()}
    # Checking the types first keeps long lists of numbers fast.
    if isinstance(item, list | tuple) and any(
        issubclass(kind, PathLike | Mapping | list | tuple) or hasattr(kind, "read") for kind in set(map(type, item))
    ):
        read = [plain(each) for each in item]
        # A named tuple keeps its type, since its fields may be column names.
        named = getattr(type(item), "_make", None)
        return named(read) if named else read
    return item
