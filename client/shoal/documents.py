"""Read untrusted text files within limits of their size, and YAML within limits of its expansion."""

import os
import stat
from pathlib import Path
from typing import Any

from shoal.serving.errors import FieldError, LocalError
from shoal.serving.fields import MAX_DEPTH

MAX_BYTES = 1 << 20
MAX_NODES = 100_000
"""Values in one document; values behind an alias count each time."""


def read_text(file: Path) -> str:
    """Return the text of a regular file of at most 1 MiB, without blocking on a pipe or device.

    Raises:
        FieldError: the file is not regular, too long, or not UTF-8.
        OSError: the file cannot be opened.
    """
    # O_NONBLOCK: opening a pipe without a writer would block.
    with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise FieldError("it is not a regular file")
        data = opened.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise FieldError(f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise FieldError(f"it is not UTF-8 text: {error}") from None


def read_yaml(text: str) -> list[Any]:
    """Return the documents of a YAML text.

    Raises:
        FieldError: the text is not YAML, or expands beyond the limits of a manifest.
    """
    try:
        import yaml  # noqa: PLC0415 (only manifests need it, and it is not a dependency of the client)
    except ImportError as error:
        raise LocalError('reading a manifest needs yaml. Run pip install "shoal[serve]"') from error
    try:
        found, loader = [], yaml.SafeLoader(text)
        # The node tree is checked before it is constructed: merging (`<<`) expands aliases.
        while loader.check_node():
            node = loader.get_node()
            nodes, levels = _size(node, {}, set())
            if nodes > MAX_NODES:
                raise FieldError(f"it expands to more than {MAX_NODES} values")
            if levels > MAX_DEPTH:
                raise FieldError(f"it is nested deeper than {MAX_DEPTH} levels")
            found.append(loader.construct_document(node))
        return found
    except RecursionError:
        raise FieldError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    except FieldError:
        raise
    # ValueError: a number with thousands of digits, or a date that does not exist.
    except (yaml.YAMLError, ValueError) as error:
        raise FieldError(f"it is not valid YAML: {' '.join(str(error).split())}") from None


def _size(node: Any, known: dict[int, tuple[int, int]], around: set[int]) -> tuple[int, int]:
    """Return the number of nodes and the depth of a YAML tree.

    An alias counts as the whole tree to which it refers.
    """
    key = id(node)
    if key in around:
        raise FieldError("an alias contains itself")
    # Each node is visited once; an alias reuses the sizes.
    if key not in known:
        children: list[Any] = []
        if isinstance(node.value, list):
            # Items of a sequence, or pairs of a mapping.
            children = [child for each in node.value for child in (each if isinstance(each, tuple) else (each,))]
        else:
            try:
                node.value.encode()
            except UnicodeEncodeError:
                raise FieldError("it contains half of a surrogate pair, which is not a character") from None
        sizes = [_size(each, known, around | {key}) for each in children]
        known[key] = 1 + sum(nodes for nodes, _ in sizes), 1 + max((levels for _, levels in sizes), default=0)
    return known[key]
