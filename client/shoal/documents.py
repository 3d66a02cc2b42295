"""Text files that somebody else may have written: read within bounds, and YAML within bounds of what it expands to."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.serving.fields import MAX_DEPTH, FieldError, MachineError

MAX_BYTES = 1 << 20
MAX_NODES = 100_000
"""Values in one document, those that an alias repeats counted each time."""


def read_text(file: Path) -> str:
    """Return the text of a regular file of at most 1 MiB; it waits for neither a pipe nor a device.

    Raises:
        FieldError: it is another kind of file, longer, or not UTF-8.
        OSError: it cannot be opened.
    """
    with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise FieldError("it is not a regular file")
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise FieldError(f"it is over {MAX_BYTES >> 20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FieldError(f"it is not UTF-8 text: {error}") from None


def read_yaml(text: str) -> list[Any]:
    """Return the documents of a YAML text.

    Raises:
        FieldError: it is not YAML, or expands to more, or deeper, than any manifest.
    """
    try:
        import yaml  # noqa: PLC0415 (only manifests need it, and it is not a dependency of the client)
    except ImportError as error:
        raise MachineError('reading a manifest needs yaml: pip install "shoal[serve]"') from error
    try:
        return list(_documents(yaml.SafeLoader(text)))
    except RecursionError:
        raise FieldError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    except FieldError:
        raise
    # ValueError: a number of thousands of digits, a date that does not exist.
    except (yaml.YAMLError, ValueError) as error:
        raise FieldError(f"it is not valid YAML: {' '.join(str(error).split())}") from None


def _documents(loader: Any) -> Iterator[Any]:
    # Looked at before anything is made of it: merging (`<<`) expands aliases.
    while loader.check_node():
        node = loader.get_node()
        nodes, levels = _size(node, {}, set())
        if nodes > MAX_NODES:
            raise FieldError(f"it expands to more than {MAX_NODES} values")
        if levels > MAX_DEPTH:
            raise FieldError(f"it is nested deeper than {MAX_DEPTH} levels")
        yield loader.construct_document(node)


def _size(node: Any, known: dict[int, tuple[int, int]], around: set[int]) -> tuple[int, int]:
    """Return how many nodes there are with aliases expanded, and how deep they lie."""
    key = id(node)
    if key in around:
        raise FieldError("an alias contains itself")
    if key not in known:
        sizes = [_size(each, known, around | {key}) for each in _children(node)]
        known[key] = 1 + sum(nodes for nodes, _ in sizes), 1 + max((levels for _, levels in sizes), default=0)
    return known[key]


def _children(node: Any) -> Iterator[Any]:
    if isinstance(node.value, list):
        for each in node.value:
            yield from each if isinstance(each, tuple) else (each,)
    elif not _is_text(node.value):
        raise FieldError("it holds half of a surrogate pair, which is not a character")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
