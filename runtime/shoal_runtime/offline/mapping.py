"""Mapping of the input's columns to the model's inputs, with checks. Pure.

A column is matched by name with an input of the model, or with a named column of the model's only numeric input. The
order of columns does not matter. If the model has no column names, the user must list the columns in order.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Final

import pyarrow as pa

from shoal_runtime.offline.errors import InvalidSettings
from shoal_runtime.offline.schemas import (
    few,
    holds_bytes,
    is_bytes,
    is_file,
    is_list,
    is_partition,
    is_spelled,
    is_text,
    is_time,
    permuted,
    plain_type,
)
from shoal_runtime.signature.spec import ANY, TensorSpec
from shoal_schema.resource.model import ExtraColumns
from shoal_schema.wire.columns import decode_columns

JSON: Final = "application/json"
_NUMBERS: Final = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_null,
)
_BOOLS: Final = (pa.types.is_boolean, pa.types.is_null)
_NAMED: Final = (*_NUMBERS, pa.types.is_boolean)
"""Types of a named column of numbers: true and false are 1 and 0, as in pandas."""

_PARAMETERS: Final = (
    *("batch_dim", "content_type", "optional", "nullable", "logical_type", "unit"),
    *("pad_axis", "pad_value", "pad_mask", "unpad_axis", "unpad_input"),
)


def tensors(described: list[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    """Return the specification of each tensor in V2 metadata."""
    found = []
    for each in described:
        given = each.get("parameters") or {}
        parameters = {name: given[name] for name in _PARAMETERS if name in given}
        if columns := given.get("columns"):
            parameters["columns"] = decode_columns(str(columns))
        # Lists travel as text in V2 parameters.
        if buckets := given.get("pad_buckets"):
            parameters["pad_buckets"] = tuple(int(size) for size in str(buckets).split(","))
        found.append(TensorSpec(each["name"], each["datatype"], each["shape"], **parameters))
    return tuple(found)


def mapped_columns(specs: Sequence[TensorSpec], asked: Mapping[str, str], schema: pa.Schema) -> dict[str, list[str]]:
    """Return the columns of each of the model's inputs, in the model's order.

    Args:
        specs: the model's inputs.
        asked: value of ``--columns`` for each input: column names, separated by commas.
        schema: columns of the rows.

    Raises:
        InvalidSettings: an input has no column, or a listed column does not exist or is at the wrong position.
    """
    inputs = {spec.name: spec for spec in specs}
    if unknown := sorted(set(asked) - set(inputs)):
        raise InvalidSettings(f"the model has no input {unknown[0]}: its inputs are {few(sorted(inputs))}")
    names = set(schema.names)
    found = {name: _listed(inputs[name], text, names) for name, text in asked.items()}
    # Padding masks are made by the runtime, not read.
    masks = {each.pad_mask for each in specs}
    # Padding masks are made when rows are batched, not read.
    required = [spec for spec in specs if not spec.optional and spec.name not in masks]
    for spec in specs:
        if spec.name in found:
            continue
        if spec.columns and names >= set(spec.columns):
            found[spec.name] = list(spec.columns)
        elif spec.name in names and (not spec.columns or is_list(plain_type(schema.field(spec.name).type))):
            found[spec.name] = [spec.name]
    missing = [spec for spec in required if spec.name not in found]
    # One input and one column that fits need no common name.
    if len(missing) == len(required) == 1 and (only := _only_column(required[0], schema)):
        found[missing[0].name] = [only]
        missing = []
    if missing:
        raise InvalidSettings(_missing_columns(missing[0], schema, names))
    if absent := [name for columns in found.values() for name in columns if name not in names]:
        raise InvalidSettings(f"the input has no column {absent[0]}. {_columns_text(schema)}")
    return found


def _listed(spec: TensorSpec, text: str, names: Set[str]) -> list[str]:
    """Return the columns that a user lists for one input of the model.

    Raises:
        InvalidSettings: a listed column is at the position of another column.
    """
    listed = [text] if text in names else [part.strip() for part in text.split(",")]
    if len(listed) != len(spec.columns):
        return listed
    # The model's own names in any order are put into the model's order.
    if sorted(listed) == sorted(spec.columns):
        return list(spec.columns)
    for place, (given, own) in enumerate(zip(listed, spec.columns, strict=True)):
        if given != own and given in spec.columns:
            raise InvalidSettings(
                f"--columns {spec.name}: {given} is at position {place + 1}, where the model expects {own}, and {given}"
                f" is another of its columns. List the columns in the model's order: {few(spec.columns)}"
            )
    return listed


def _only_column(spec: TensorSpec, schema: pa.Schema) -> str | None:
    """Return the only column that fits an input of text, bytes or lists, or None."""
    fields = [each for each in schema if not is_partition(each)]
    if len(fields) == 1 and (spec.datatype == "BYTES" or is_list(plain_type(fields[0].type))):
        return str(fields[0].name) if spec.logical_type is None else None
    # One column of bytes among others is the obvious input.
    binary = [each.name for each in fields if spec.datatype == "BYTES" and holds_bytes(each.type)]
    return binary[0] if len(binary) == 1 else None


def _missing_columns(spec: TensorSpec, schema: pa.Schema, names: Set[str]) -> str:
    """Return the error message for an input without columns, with its remedy."""
    if spec.columns:
        missing = [name for name in spec.columns if name not in names]
        return (
            f"the input has no column {few(missing)}, which the model reads ({spec.name}). Rename the columns of the"
            f" file, or give --columns {spec.name}=COLUMN,COLUMN,... in the model's order. {_columns_text(schema)}"
        )
    # The model takes rows of several numbers without names.
    several = spec.datatype != "BYTES" and len(spec.row_shape) == 1 and spec.pad_axis is None
    many = "COLUMN,COLUMN,..." if several else "COLUMN"
    order = ", in the order of its training data, because the model has no column names" if several else ""
    return (
        f"no column matches the model's input {spec.name}. Give --columns {spec.name}={many}{order} (input.columns in"
        f" a manifest). {_columns_text(schema)}"
    )


def _columns_text(schema: pa.Schema) -> str:
    return f"The input has the columns {few(schema.names)}"


def required_columns(specs: Sequence[TensorSpec], columns: Mapping[str, Sequence[str]], schema: pa.Schema) -> list[str]:
    """Return the columns that every file must contain.

    Partition columns, whose values are in file paths, are not included.
    """
    needed = dict.fromkeys(name for spec in specs if not spec.optional for name in columns.get(spec.name, ()))
    return [name for name in needed if not is_partition(schema.field(name))]


def check_extra(policy: ExtraColumns, schema: pa.Schema, read: Iterable[str]) -> None:
    """Reject columns that the job does not read, if the model rejects extra columns.

    Args:
        policy: the model's policy; `Auto` ignores extra columns.
        schema: columns of the rows; partitions are never extra.
        read: names of columns that the model reads or the user names.

    Raises:
        InvalidSettings: there is an extra column.
    """
    known = set(read)
    extra = [each.name for each in schema if each.name not in known and not is_partition(each)]
    if policy is ExtraColumns.REJECT and extra:
        raise InvalidSettings(
            f"the model has no column {few(extra)}, and model.extraColumns is Reject. Name the column in --keep or"
            " --where if it is intended, or remove it from the input"
        )


def check_kinds(specs: Sequence[TensorSpec], columns: Mapping[str, Sequence[str]], schema: pa.Schema) -> None:
    """Reject columns whose type does not fit the model's input.

    Raises:
        InvalidSettings: a type does not fit; the message names the column.
    """
    for spec in specs:
        names = columns.get(spec.name, [])
        for name in names:
            _check_kind(spec, schema.field(name), several=len(names) > 1)
        if len(names) > 1 and list(spec.row_shape) not in ([ANY], [len(names)]):
            raise InvalidSettings(
                f"{spec.name} takes rows of the shape {list(spec.row_shape)}, but {len(names)} columns are given"
            )


def _check_kind(spec: TensorSpec, column: pa.Field, *, several: bool) -> None:
    # Arrow stores such tensors in another order than their shape says.
    if permuted(column.type):
        raise InvalidSettings(
            f"the column {column.name} has the type {column.type}. Store it without a permutation of dimensions"
        )
    kind = plain_type(column.type)
    if spec.datatype == "BYTES":
        if several:
            raise InvalidSettings(f"{spec.name} takes text or bytes, but several columns are given. Name one column")
        if spec.logical_type == "datetime":
            number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
            fits = is_text(kind) or is_time(kind) or pa.types.is_null(kind) or (number and spec.unit is not None)
        else:
            plain = is_text(kind) or is_bytes(kind) or is_time(kind) or pa.types.is_null(kind)
            fits = JSON in spec.media_types or plain or is_file(kind)
        if not fits:
            raise _misfit(spec, column, kind)
        return
    # True and false count as numbers in named columns only, not inside lists.
    named = not is_list(kind) and (spec.columns if several else list(spec.row_shape) in ([], [1]))
    # The innermost values decide.
    while is_list(kind):
        kind = kind.value_type
    good = _BOOLS if spec.datatype == "BOOL" else _NAMED if named else _NUMBERS
    if not (is_spelled(column) or any(each(kind) for each in good)):
        raise _misfit(spec, column, kind)


def _misfit(spec: TensorSpec, column: pa.Field, kind: pa.DataType) -> InvalidSettings:
    if spec.logical_type == "datetime":
        wanted = "dates" if spec.unit else "dates, and numbers only where the model declares their unit"
    else:
        wanted = {"BYTES": "text or bytes", "BOOL": "true or false"}.get(spec.datatype, "numbers")
    return InvalidSettings(f"{spec.name} takes {wanted}, but the column {column.name} holds {kind}")
