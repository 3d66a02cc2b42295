"""Format results and signatures as text tables or JSON."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from shoal.wire.signature import Signature, Tensor
from shoal_schema.fields.redaction import visible

MAX_ARRAY_ELEMENTS = 64
"""Longer arrays are summarized."""
MAX_TABLE_ROWS = 50
MAX_COLUMNS = 10
"""Names of columns that are shown of a tensor."""
BAR_WIDTH = 30
"""Characters of a progress bar."""
_PERCENTAGE = re.compile(r"(?P<what>\w+) (?P<percent>\d{1,3}) %")


def result_text(answer: Any, names: Sequence[str]) -> str:
    """Format a result of ``Client.predict`` as text; ``names`` are the model's outputs in order."""
    outputs = answer if isinstance(answer, Mapping) and len(names) > 1 else {names[0]: answer}
    ordered = {name: outputs[name] for name in (*names, *outputs) if name in outputs}
    # Outputs of one dimension and one length (labels, probabilities) are a table.
    arrays = list(ordered.values())
    lengths = {array.shape if isinstance(array, np.ndarray) else () for array in arrays}
    together = len(arrays) > 1 and len(lengths) == 1 and len(next(iter(lengths))) == 1
    if together and 0 < len(arrays[0]) <= MAX_TABLE_ROWS:
        cells = (
            [f"{float(each):.4g}" if isinstance(each, float | np.floating) else _value(each) for each in row]
            for row in zip(*arrays, strict=True)
        )
        return table([list(ordered), *cells])
    return "\n".join(f"{name}: {_value(value)}" for name, value in ordered.items())


def json_text(value: Any) -> str:
    """Format a value, such as a result of ``Client.predict``, as indented JSON; bytes become text."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        if isinstance(value, np.ndarray | np.generic):
            return value.tolist()
        raise TypeError(f"{type(value).__name__} cannot be written as JSON")

    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
    return orjson.dumps(value, default=plain, option=options).decode()


def signature_text(signature: Signature) -> str:
    """Format a signature as a headline and a table of the inputs and outputs."""
    parts = [signature.name, *(f"version {version}" for version in signature.versions)]
    if not signature.batches:
        parts.append("one item per call")
    elif signature.max_batch_size is not None:
        parts.append(f"batches of up to {signature.max_batch_size}")
    if signature.allowed_batch_sizes:
        parts.append(f"padded up to {', '.join(map(str, signature.allowed_batch_sizes))} rows")
    rows = [("", "name", "type", "one row", "notes")]
    for kind, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        for each in tensors:
            lengths = ", ".join("any" if length < 0 else str(length) for length in signature.row_shape(each))
            notes = [*each.content_types, *(("optional",) if each.optional else ())]
            if each.columns:
                more = f" and {len(each.columns) - MAX_COLUMNS} more" if len(each.columns) > MAX_COLUMNS else ""
                notes.append(f"columns {', '.join(each.columns[:MAX_COLUMNS])}{more}")
            rows.append((kind, each.name, each.datatype, f"[{lengths}]" if lengths else "scalar", ", ".join(notes)))
    return f"{'; '.join(parts)}\n\n{table(rows)}"


def signature_json(signature: Signature) -> str:
    """Format a signature as JSON; shapes are of one row, and -1 is a free length."""

    def tensors(given: Sequence[Tensor]) -> list[Any]:
        return [
            {
                "name": each.name,
                "datatype": each.datatype,
                "row_shape": signature.row_shape(each),
                "content_types": each.content_types,
                "optional": each.optional,
                "columns": each.columns,
            }
            for each in given
        ]

    return json_text(
        {
            "name": signature.name,
            "versions": signature.versions,
            "batches": signature.batches,
            "max_batch_size": signature.max_batch_size,
            "allowed_batch_sizes": signature.allowed_batch_sizes,
            "inputs": tensors(signature.inputs),
            "outputs": tensors(signature.outputs),
        }
    )


def progress_bar(text: str) -> str:
    """Return a progress bar for a text with a percentage; empty for any other text."""
    found = _PERCENTAGE.search(text)
    if found is None:
        return ""
    done = min(int(found["percent"]) * BAR_WIDTH // 100, BAR_WIDTH)
    return f"{found['what']} [{done * '#'}{(BAR_WIDTH - done) * '-'}] {found['percent']} %"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of cells as a text table with aligned columns."""
    # Control characters of a server's names must not reach the terminal.
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _value(value: Any) -> str:
    """Return a value as text; a long array as its range and its first elements."""
    if isinstance(value, np.ndarray) and value.size > MAX_ARRAY_ELEMENTS and value.dtype != object:
        return (
            f"{value.dtype} {list(value.shape)}, {value.min():.4g} to {value.max():.4g},"
            f" begins {np.array2string(value.ravel()[:6], precision=4)[1:-1]}"
        )
    if isinstance(value, np.ndarray) and value.dtype != object:
        return np.array2string(value, precision=6, separator=", ", max_line_width=100)
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return value if isinstance(value, str) else json_text(value)
